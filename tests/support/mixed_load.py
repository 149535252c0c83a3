"""A small load of every kind on a ledger whose processes die: who gets no answer asks again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from ledger.client.errors import NotAcknowledged, Undecided
from ledger.client.operators import Operator
from ledger.domain.commands import RequestJob
from ledger.domain.ids import CommandId, QueueName
from ledger.log.command_codec import command_record
from ledger.log.connection import Connection
from ledger.log.errors import LogError
from ledger.log.outbox import Outbox
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics
from ledger.objects import FolderStore
from processors.owner.seams import wall_clock

RUNTIME_QUEUES = ("red", "green", "blue")
"""Served by a runtime over Kafka."""
WEB, IDLE, LEFT = "web", "idle", "left"
"""Served over HTTP: the second has no job, so that a claim always waits there; of the third one's
claims the callers leave before they are answered."""
SCHEDULED = tuple(f"clock{number}" for number in range(8))
MINUTELY = {"cron": "* * * * *", "type": "tick"}
LEASE_SECONDS = 2
LARGE = {"text": "x" * 100_000}
PIPELINE: dict[str, Any] = {
    "lease_seconds": LEASE_SECONDS,
    "retry": {"max_attempts": 20, "backoff_seconds": [0.1]},
    "steps": [
        {"name": "plan"},
        {"name": "draw", "each": "/plan/pages"},
        {"name": "publish"},
    ],
}
LIMITS = ({"key": ["/labels/tenant"], "max": 2},)
PATIENCE_SECONDS = 120
ANSWER_SECONDS = 15.0
WAITS_SECONDS = 0.3
LEAVES_SECONDS = tuple(0.002 * 2**n for n in range(8))
"""One of them lies between claim and grant, however fast or busy the machine is."""
ORPHAN_SECONDS = 1_800
"""Older objects that nobody refers to are swept while the load runs."""


class MixedLoad:
    """`run` until `stop` is set, then everything that was asked for is asked to end."""

    def __init__(
        self, connection: Connection, topics: Topics, partitions: int, url: str, store: Path
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._partitions = partitions
        self._store = FolderStore(store)
        self._root = store
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS)
        self._operator = Operator(
            connection, partitions=partitions, prefix=topics.prefix, wait_seconds=5.0
        )
        self._outbox = Outbox(connection)
        self.keys: set[str] = set()
        """Idempotency keys of jobs whose requests the log, or the api, has acknowledged."""

    async def __aenter__(self) -> MixedLoad:
        await self._operator.__aenter__()
        await self._outbox.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._outbox.close()
        await self._operator.__aexit__(None, None, None)
        await self._http.aclose()
        await self._store.close()

    async def prepare(self) -> None:
        operator = self._operator
        await again(lambda: operator.put_template("green", "pipeline", PIPELINE))
        await again(lambda: operator.put_queue("red", limits=LIMITS))
        for queue in SCHEDULED:
            await again(partial(operator.put_schedule, queue, "minutely", MINUTELY))

    async def run(self, stop: asyncio.Event) -> None:
        works = (
            (self._submit, 0.2),
            (self._submit_over_http, 0.3),
            (self._work_over_http, 0.05),
            (self._wait_for_nothing, 0.05),
            (self._leave_a_claim, 0.5),
            (self._send_strays, 0.5),
            (self._leave_orphans, 0.5),
            (self._remove_an_owner, 2.0),
            (self._look, 0.5),
        )
        async with asyncio.TaskGroup() as group:
            for work, pause in works:
                group.create_task(self._until(stop, work, pause))

    async def finish(self) -> None:
        """No further job begins by itself, and what nobody serves is cancelled."""
        for queue in SCHEDULED:
            await again(partial(self._operator.disable_schedule, queue, "minutely"))
        for queue in (WEB, LEFT, *SCHEDULED):
            body = {"where": {"queue": queue}, "reason": "the load ends"}
            await self._posted("/v1/jobs/cancel", body, f"end-{queue}")

    async def _until(
        self, stop: asyncio.Event, work: Callable[[int], Awaitable[None]], pause: float
    ) -> None:
        for number in count():
            if stop.is_set():
                return
            with suppress(httpx.HTTPError, LogError, NotAcknowledged, TimeoutError):
                await work(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()

    # --- Over Kafka ------------------------------------------------------------------------------
    async def _submit(self, number: int) -> None:
        jobs: tuple[tuple[str, str, dict[str, object]], ...] = (
            ("work", "red", {"labels": {"tenant": f"t{number % 3}"}}),
            ("flaky", "blue", {}),
            ("pipeline", "green", {}),
            ("hopeless", "blue", {}),
        )
        requests: list[dict[str, object]] = [
            {
                "type": kind,
                "queue": queue,
                "payload": {"seconds": 0.0},
                "idempotency_key": f"{kind}-{number}",
                **({} if kind == "pipeline" else few_attempts()),
                **fields,
            }
            for kind, queue, fields in jobs
        ]
        await self._operator.submit_many(requests)
        self.keys.update(str(request["idempotency_key"]) for request in requests)

    async def _send_strays(self, number: int) -> None:
        """What cannot be read, and a request in another's partition."""
        key, value = b"red", b"{" * (number % 7 + 1)
        partition = number % self._partitions
        await self._outbox.send_one(self._topics.commands, partition, (key, value, []))
        strayed = f"strayed-{number}"
        record = command_record(
            RequestJob("work", QueueName("red"), idempotency_key=strayed, lease_seconds=2),
            CommandId(f"stray-{number}"),
            source="tests",
        )
        elsewhere = (partition_of(QueueName("red"), self._partitions) + 1) % self._partitions
        await self._outbox.send_one(self._topics.requests, elsewhere, record)
        self.keys.add(strayed)

    # --- Over HTTP -------------------------------------------------------------------------------
    async def _posted(self, path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
        """Until somebody says what came of it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(httpx.HTTPError):
                    headers = {"Idempotency-Key": key, "Prefer": "wait=5"}
                    answer = await self._http.post(path, json=body, headers=headers)
                    if answer.status_code < 500:
                        assert answer.is_success, answer.text
                        return dict(answer.json())
                await asyncio.sleep(0.2)

    async def _submit_over_http(self, number: int) -> None:
        key = f"web-{number}"
        body: dict[str, Any] = {"type": "manual", "queue": WEB, **few_attempts()}
        if number % 3 == 1:
            body = {"type": "large", "queue": "blue", "payload": LARGE, **few_attempts()}
            body["result_ttl_seconds"] = 0.2
        job = await self._posted("/v1/jobs", body, key)
        if number % 3 == 2 and "id" in job:
            await self._http.post(f"/v1/jobs/{job['id']}/cancel", json={"reason": "enough"})

    async def _work_over_http(self, number: int) -> None:
        claim = {"queues": [WEB], "types": ["manual"], "wait_seconds": 1}
        await self._claimed("web", claim, LARGE if number % 2 else {"n": number})

    async def _claimed(
        self, runtime: str, claim: dict[str, Any], output: object, seconds: float = ANSWER_SECONDS
    ) -> None:
        """`seconds`: its caller leaves when so much has gone by without an answer."""
        path = f"/v1/runtimes/{runtime}/claim"
        patience = httpx.Timeout(ANSWER_SECONDS, read=seconds)
        answer = await self._http.post(path, json=claim, timeout=patience)
        if answer.status_code == 200:
            for lease in answer.json()["items"]:
                said = {"fence": lease["fence"], "output": output}
                await self._http.post(f"/v1/jobs/{lease['job_id']}/result", json=said)

    async def _wait_for_nothing(self, number: int) -> None:
        claim = {"queues": [IDLE], "types": ["manual"], "wait_seconds": 5}
        await self._http.post("/v1/runtimes/idle/claim", json=claim)

    async def _leave_a_claim(self, number: int) -> None:
        """While it waits, just before there is a job; and while it is granted one that is there."""
        claim = {"queues": [LEFT], "types": ["manual"], "limit": 5, "wait_seconds": 5}
        request = {"type": "manual", "queue": LEFT, **few_attempts()}
        is_there, turn = number % 2 == 1, number // 2
        seconds = LEAVES_SECONDS[turn % len(LEAVES_SECONDS)] if is_there else WAITS_SECONDS
        if is_there:
            await self._operator.submit_many([request])
        with suppress(httpx.ReadTimeout):
            await self._claimed("left", claim, {"n": number}, seconds)
        if not is_there:
            await self._operator.submit_many([request])

    async def _look(self, number: int) -> None:
        """Whether it is ready; and what has ended is collected, so that its time begins."""
        await self._http.get("/readyz")
        found = await self._http.get("/v1/jobs", params={"type": "large", "status": "succeeded"})
        if found.status_code == 200 and (items := found.json()["items"]):
            await self._http.post("/v1/jobs/collect", json={"ids": [job["id"] for job in items]})

    # --- Objects ---------------------------------------------------------------------------------
    async def _leave_orphans(self, number: int) -> None:
        await self._orphan(
            f"users/nobody/tasks/x/input/o-{number}-payload.json", 2 * ORPHAN_SECONDS
        )

    async def _remove_an_owner(self, number: int) -> None:
        user = f"u{number}"
        await self._orphan(f"users/{user}/tasks/x/input/o-payload.json", ORPHAN_SECONDS - 600)
        await self._http.delete(f"/v1/owners/{user}")

    async def _orphan(self, key: str, age_seconds: int) -> None:
        data = key.encode()
        await self._store.put(key, data, sha256=sha256(data).hexdigest(), size=len(data))
        long_ago = wall_clock() / 1e6 - age_seconds
        with suppress(FileNotFoundError):  # Swept already.
            os.utime(self._root.joinpath(*key.split("/")), (long_ago, long_ago))


def few_attempts() -> dict[str, Any]:
    """Many, for here attempts are lost for no fault of the job's."""
    return {
        "lease_seconds": LEASE_SECONDS,
        "retry": {"max_attempts": 50, "backoff_seconds": [0.1]},
    }


async def again(ask: Callable[[], Awaitable[object]]) -> None:
    """What is not decided in time is asked for again: it is no news then."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await ask()
                return
            except (Undecided, NotAcknowledged):
                await asyncio.sleep(0.2)
