"""`WS /v1/jobs/{id}/progress`: the job on connect, then after each event, until it has ended.

Close codes: 1000 the job has ended, 1012 the server stops, 1013 too slow or too many (connect
again), 4404 no such job, 4422 no job's id. What the client sends is passed over.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from api.decisions import find_by
from api.listeners import FAILED, STOPPING, TOO_SLOW, Ended, Listener, Step
from api.live import Full
from api.operation import Services
from api.origins import is_cross_site
from api.server_sent import SEND_SECONDS
from ledger.domain.ids import queue_of
from ledger.domain.job import Job, status
from ledger.domain.job_view import job_json
from projections.reads import ReadsUnavailable

LOOK_SECONDS = 60.0
"""Between two looks at a queue in which nothing came; the server's pings show who has gone."""
CLOSE_SECONDS = 2.0
REASON_BYTES_MAX = 123
"""What fits a frame that closes."""
HAS_ENDED, GOING, FAILURE, AGAIN, UNKNOWN, INVALID = 1000, 1012, 1011, 1013, 4404, 4422
_CODES = {STOPPING: GOING, FAILED: AGAIN, TOO_SLOW: AGAIN}

log = structlog.get_logger(__name__)
Goodbye = tuple[int, str]
"""The code and the reason with which a socket is closed."""


async def progress(socket: WebSocket) -> None:
    if is_cross_site(socket.headers):
        # Browsers let a page open sockets to anywhere, and read from them.
        await socket.close()
        return
    await socket.accept()
    telling = asyncio.ensure_future(_tell(socket))
    gone = asyncio.ensure_future(_gone(socket))
    try:
        await asyncio.wait((telling, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (telling, gone):
            task.cancel()
        await asyncio.wait((telling, gone))


async def _gone(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _tell(socket: WebSocket) -> None:
    """Total: whatever happens closes the socket with a reason, unless the client has gone."""
    try:
        code, reason = await _told(socket, socket.app.state.services)
    except WebSocketDisconnect:
        return
    except TimeoutError:
        code, reason = AGAIN, f"TOO_SLOW: nothing was read for {SEND_SECONDS:.0f} s"
    except Full as full:
        code, reason = AGAIN, f"OVERLOADED: {full}"
    except Ended as ended:
        code, reason = _CODES[ended.ending], f"{ended.ending.code}: {ended.ending.detail}"
    except ReadsUnavailable:
        code, reason = AGAIN, "VIEW_UNAVAILABLE: the read model cannot be asked now"
    except Exception:
        log.exception("progress_failed")
        code, reason = FAILURE, "INTERNAL_ERROR"
    with suppress(TimeoutError, WebSocketDisconnect):
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.close(code, reason[:REASON_BYTES_MAX])


async def _told(socket: WebSocket, services: Services) -> Goodbye:
    job_id = socket.path_params["id"]
    if queue_of(job_id) is None:
        return INVALID, "VALIDATION_FAILED: that is no job id: <queue>.<uuid7>"
    if socket.scope["query_string"]:
        return INVALID, "VALIDATION_FAILED: this route takes no parameters"
    with services.live.seat():
        stored = await find_by(services, job_id)
        if stored is None:
            return UNKNOWN, "JOB_NOT_FOUND: the ledger knows no such job"
        with services.live.following(stored.job, stored.partition) as (job, listener):
            await _send(socket, job_json(job).decode())
            if job.end is None:
                job = await _steps(socket, listener, job.version)
    return HAS_ENDED, f"the job has ended: {status(job)}"


async def _steps(socket: WebSocket, listener: Listener[Step], version: int) -> Job:
    """Sends each after `version`; returns the job at its end."""
    while True:
        for step in await listener.take(LOOK_SECONDS):
            if step.seq > version:
                await _send(socket, step.state)
            if step.is_end:
                return step.job


async def _send(socket: WebSocket, text: str) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await socket.send_text(text)


ROUTES = (WebSocketRoute("/v1/jobs/{id}/progress", progress, name="watchJob"),)
