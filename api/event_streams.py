"""Server-sent events: the history of one job as it grows, and all events as they come."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import structlog
from starlette.responses import Response

from api.bodies import EventsQuery
from api.event_ids import parse_id
from api.filters import filter_of
from api.listeners import FAILED, Ended, Ending, job_frame
from api.live import Full, Live
from api.operation import Answer, Ask, Operation
from api.problems import invalid, refused
from api.server_sent import HEARTBEAT, MEDIA_TYPE, Chunks, EventStream, beginning, message, pieces
from ledger.domain.job import Job, status
from projections.answers import Stored
from projections.reads import Reads, ReadsUnavailable

HEARTBEAT_SECONDS = 15.0
HISTORY_MAX = 200
"""Events of a job's past, read at once."""
RETRY_AFTER_SECONDS = 5
UNAVAILABLE = Ending("VIEW_UNAVAILABLE", "the read model cannot be asked now; resume")
_MEDIA = re.compile(r"\s*([^\s;]+)\s*(?:;.*?\bq\s*=\s*([01](?:\.\d{0,3})?)\b)?.*")

log = structlog.get_logger(__name__)


def wants_stream(accept: str) -> bool:
    """Whether streams are named, and wanted no less than JSON."""
    found = [match for one in accept.split(",") if (match := _MEDIA.fullmatch(one))]
    wanted = {match[1].lower(): float(match[2] or 1) for match in found}
    stream = wanted.get(MEDIA_TYPE, 0.0)
    return stream > 0 and stream >= wanted.get("application/json", 0.0)


# --- One job -------------------------------------------------------------------------------------
def job_stream(ask: Ask, stored: Stored, last_event_id: str | None) -> Response:
    """From the beginning or after the event named; ends with the job. Who has all of an ended job
    gets 204, at which browsers stop asking."""
    after = _seq(_resumed_at(ask, last_event_id) or "0")
    if stored.job.end is not None and after >= stored.job.version:
        return Response(status_code=204, headers={"Ledger-Position": stored.position})
    live, reads = ask.services.live, ask.services.reads
    _refuse_if_full(live)
    return EventStream(lambda: _guarded(_of_job(live, reads, stored, after)), live.seat())


def _seq(event_id: str) -> int:
    if not (event_id.isascii() and event_id.isdecimal() and len(event_id) <= 15):
        raise invalid("/last_event_id", "an event in a job's stream has its seq as its id")
    return int(event_id)


async def _of_job(live: Live, reads: Reads, stored: Stored, after: int) -> Chunks:
    job_id = stored.job.id
    if stored.job.end is not None:
        async for _, chunk in _past(reads, job_id, after):
            yield chunk
        yield _end(stored.job)
        return
    # The past is read after the listener has joined, so it reaches to what the listener is told.
    with live.following(stored.job, stored.partition) as (job, listener):
        async for seq, chunk in _past(reads, job_id, after):
            after = seq
            yield chunk
        while job.end is None:
            steps = await listener.take(HEARTBEAT_SECONDS)
            if not steps:
                yield HEARTBEAT
            for piece in pieces(one.frame for one in steps if one.seq > after):
                yield piece
            job = next((one.job for one in steps if one.is_end), job)
        yield _end(job)


async def _past(reads: Reads, job_id: str, after: int) -> AsyncGenerator[tuple[int, bytes]]:
    """Each part with the `seq` of its last event."""
    more: int | None = after
    while more is not None:
        history = await reads.history(job_id, after_seq=more, limit=HISTORY_MAX)
        if history is None or not history.items:
            return
        for piece in pieces(map(job_frame, history.items)):
            yield history.items[-1].seq, piece
        more = history.next_seq


def _end(job: Job) -> bytes:
    said = {"status": status(job).value, "version": job.version}
    return message(msgspec.json.encode(said), event="end")


# --- All events ----------------------------------------------------------------------------------
async def stream_events(ask: Ask) -> Response:
    query: EventsQuery = ask.query
    where = filter_of(query)
    event_id = _resumed_at(ask, query.last_event_id)
    since = {} if event_id is None else parse_id(event_id, ask.services.settings.partitions)
    live = ask.services.live
    _refuse_if_full(live)
    # Whether the views can be asked at all shows before the answer begins.
    await ask.services.reads.positions()
    return EventStream(lambda: _guarded(live.told(where, since, HEARTBEAT_SECONDS)), live.seat())


# --- Both ----------------------------------------------------------------------------------------
def _resumed_at(ask: Ask, parameter: str | None) -> str | None:
    """The header is what a browser has seen since it was given the parameter."""
    return ask.request.headers.get("last-event-id") or parameter


def _refuse_if_full(live: Live) -> None:
    try:
        live.check_room()
    except Full as full:
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        raise refused("OVERLOADED", str(full), headers=headers) from None


async def _guarded(chunks: Chunks) -> Chunks:
    """The stream, with a last word where it ends before its time."""
    yield beginning()
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
        return
    except Ended as ended:
        ending = ended.ending
    except ReadsUnavailable:
        ending = UNAVAILABLE
    except Exception:
        log.exception("stream_failed")
        ending = FAILED
    yield message(msgspec.json.encode(ending), event="dropped")


LAST_EVENT_ID = {"Last-Event-ID": "The id of the last event seen: what came after it is sent"}

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/events",
        name="streamEvents",
        tag="live",
        summary="All events of jobs from now on, or from where a stream ended, as they come",
        endpoint=stream_events,
        query=EventsQuery,
        prefixed="label",
        is_read=True,
        headers=LAST_EVENT_ID,
        answers={
            200: Answer(
                content=None,
                description="Each event as the history of its job shows it",
                media_type=MEDIA_TYPE,
            )
        },
        codes=("OVERLOADED",),
    ),
)
