"""`python -m tests.support.storm_runtime kafka NAME COUNT` and `… http NAME COUNT URL…`: runtimes
of a storm, several in one process. Each call of a handler leaves a line in LEDGER_TEST_EFFECTS
before it answers: what it did outside, which no crash undoes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import structlog

from cli import logs
from cli.servers import kafka_of, objects_of
from cli.settings import Settings, load_settings
from ledger.client.job_context import Context, JobFailure
from ledger.client.runtime import Runtime
from ledger.objects import open_store

QUEUES = ("red", "green", "blue")
TYPES = ("work", "flaky", "hopeless", "large", "limited", "chain", "part", "devour")
SLOTS = 10
LARGE_BYTES = 80_000
"""Of an output that does not fit the log."""
BEAT_SECONDS = 0.6
CLAIM_SECONDS = 5.0
ANSWER_SECONDS = 15.0
PATIENCE_SECONDS = 20.0
"""For one answer, over all apis; then the lease has long lapsed."""
PAUSE_SECONDS = 0.2

log = structlog.get_logger(__name__)


class Effects:
    """A file that every call of a handler adds a line to, whole or not at all."""

    def __init__(self, name: str) -> None:
        place = Path(os.environ["LEDGER_TEST_EFFECTS"]) / f"{name}.{os.getpid()}.jsonl"
        self._file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, job_id: str, fence: int) -> None:
        os.write(self._file, json.dumps([job_id, fence]).encode() + b"\n")


async def handled(kind: str, payload: Any, *, attempt: int, fence: int, by: str) -> dict[str, Any]:
    """The output. Raises `JobFailure`."""
    seconds = payload.get("seconds", 0.0) if isinstance(payload, dict) else 0.0
    await asyncio.sleep(seconds)
    if kind == "flaky" and attempt == 1:
        raise JobFailure("MODEL_TIMEOUT", "the first try never works")
    if kind == "hopeless":
        raise JobFailure("INVALID_SNAPSHOT", "it never works", retryable=False)
    if kind == "devour" and attempt == 1:
        # As the kernel ends whoever takes the memory of all.
        os.kill(os.getpid(), signal.SIGKILL)
    output: dict[str, Any] = {"by": by, "fence": fence, "attempt": attempt}
    if kind == "large":
        output["text"] = "y" * LARGE_BYTES
    return output


# --- Over Kafka ----------------------------------------------------------------------------------
async def serve_kafka(settings: Settings, name: str, count: int) -> None:
    effects = Effects(name)
    async with asyncio.TaskGroup() as serving:
        for number in range(count):
            serving.create_task(kafka_runtime(settings, f"{name}-{number}", effects).serve())


def kafka_runtime(settings: Settings, name: str, effects: Effects) -> Runtime:
    runtime = Runtime(
        name,
        kafka_of(settings),
        queue=QUEUES,
        slots=SLOTS,
        beat_seconds=BEAT_SECONDS,
        partitions=settings.partitions,
        prefix=settings.prefix,
        objects=open_store(objects_of(settings)),
    )

    async def handler(ctx: Context) -> object:
        effects.note(ctx.job_id, ctx.fence)
        ctx.progress(50, "half-way")
        return await handled(
            ctx.type, ctx.payload, attempt=ctx.attempt, fence=ctx.fence, by=runtime.id
        )

    for kind in TYPES:
        runtime.job(kind)(handler)
    return runtime


# --- Over HTTP -----------------------------------------------------------------------------------
class HttpRuntime:
    """As somebody would write one: claims, beats, and says its results until it is answered."""

    def __init__(self, name: str, urls: list[str], effects: Effects) -> None:
        self._name = name
        self._urls = urls
        self._effects = effects
        self._turn = 0

    async def serve(self) -> None:
        async with (
            httpx.AsyncClient(timeout=ANSWER_SECONDS) as self._http,
            asyncio.TaskGroup() as working,
        ):
            while True:
                for lease in await self._claimed():
                    working.create_task(self._work(lease))

    async def _claimed(self) -> list[dict[str, Any]]:
        ask = {"queues": QUEUES, "types": TYPES, "limit": SLOTS, "wait_seconds": CLAIM_SECONDS}
        answer = await self._post(f"/v1/runtimes/{self._name}/claim", ask)
        if answer is None or answer.status_code != 200:
            await asyncio.sleep(PAUSE_SECONDS)
            return []
        return list(answer.json()["items"])

    async def _work(self, lease: dict[str, Any]) -> None:
        job, fence = lease["job"], lease["fence"]
        self._effects.note(lease["job_id"], fence)
        beating = asyncio.create_task(self._beat(lease, asyncio.current_task()))
        try:
            output = await handled(
                job["type"],
                job.get("payload"),
                attempt=lease["attempt"],
                fence=fence,
                by=self._name,
            )
        except JobFailure as failure:
            body = {"code": failure.code, "message": failure.message}
            said = {**body, "retryable": failure.retryable is not False, "fence": fence}
            await self._say(lease, "fail", said)
        except asyncio.CancelledError:
            await self._say(lease, "cancelled", {"fence": fence})
        else:
            await self._say(lease, "result", {"fence": fence, "output": output})
        finally:
            beating.cancel()

    async def _beat(self, lease: dict[str, Any], work: asyncio.Task[None] | None) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            answer = await self._say(lease, "heartbeat", {"fence": lease["fence"]})
            is_over = answer is None or answer.status_code != 200
            if is_over or (answer is not None and answer.json().get("cancel_requested")):
                if work is not None:
                    work.cancel()
                return

    async def _say(
        self, lease: dict[str, Any], word: str, body: dict[str, Any]
    ) -> httpx.Response | None:
        return await self._post(f"/v1/jobs/{lease['job_id']}/{word}", body)

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response | None:
        """The first answer that is no 5xx; None: none in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while loop.time() < deadline:
            self._turn += 1
            url = self._urls[self._turn % len(self._urls)]
            try:
                answer = await self._http.post(f"{url}{path}", json=body)
                if answer.status_code < 500:
                    return answer
            except httpx.HTTPError:
                pass
            await asyncio.sleep(PAUSE_SECONDS)
        return None


async def serve_http(name: str, count: int, urls: list[str]) -> None:
    effects = Effects(name)
    async with asyncio.TaskGroup() as serving:
        for number in range(count):
            serving.create_task(HttpRuntime(f"{name}-{number}", urls, effects).serve())


def main() -> None:
    how, name, count, *urls = sys.argv[1:]
    settings = load_settings()
    logs.configure("WARNING")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if how == "kafka":
        asyncio.run(serve_kafka(settings, name, int(count)))
    else:
        asyncio.run(serve_http(name, int(count), urls))


if __name__ == "__main__":
    main()
