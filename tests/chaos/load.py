"""What is asked of the ledger while things go wrong: by careful producers, over Kafka and HTTP, who
say again, under the same key, whatever was not answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import httpx

from ledger.client.errors import NotAcknowledged, Refused, StoreFailed, Undecided
from ledger.client.producer import Producer, Submitted
from ledger.log.errors import LogError
from tests.chaos.journal import Ask, Done, Journal
from tests.support.storm_runtime import QUEUES

LEASE_SECONDS = 2.0
KAFKA_BATCH = 12
KAFKA_SECONDS = 0.3
HTTP_SECONDS = 0.15
OPERATORS, OPERATE_SECONDS = 2, 0.5
AGAIN_SECONDS = 0.5
AT_ONCE = 20
"""Requests that were not answered, said again together."""
ANSWER_SECONDS = 20.0
REGRETTED = 0.1
"""Of the requests over HTTP: cancelled as soon as they are accepted."""
REMEMBERED = (20, 500)
"""Of so many of the latest jobs operations choose one: of few, that are open, or of many."""
LARGE_BYTES = 80_000
TENANTS = 5
KINDS = {"work": 62, "flaky": 10, "hopeless": 4, "large": 6, "limited": 8, "chain": 10}
FLOODED = "flooded"
"""A type, and its queue: no runtime serves it."""
FLOODED_LEASE_SECONDS = 30.0
SCHEDULE = "every-minute"
EVERY_MINUTE = {"cron": "* * * * *", "type": "work", "payload": {"seconds": 0.0}}
LIMITED: dict[str, Any] = {
    "limits": [{"key": ["/labels/tenant"], "max": 2}],
    "overridable": ["labels", "lease_seconds", "retry", "delay_seconds", "priority"],
}
CHAIN: dict[str, Any] = {
    "retry": {"max_attempts": 5, "backoff_seconds": [0.1]},
    "lease_seconds": LEASE_SECONDS,
    "steps": [
        {"name": "plan", "retry": {"max_attempts": 20, "backoff_seconds": [0.1]}},
        {"name": "left", "worker_type": "part", "needs": ["plan"]},
        {"name": "right", "worker_type": "part", "needs": ["plan"]},
        {"name": "join", "needs": ["left", "right"]},
    ],
    "overridable": ["labels", "lease_seconds", "retry", "delay_seconds", "priority"],
}


class Load:
    """`async with`; `run` until `enough` is set, then `settle`."""

    def __init__(
        self, producer: Callable[[], Producer], urls: Sequence[str], chance: random.Random
    ) -> None:
        self._make = producer
        self._urls = urls
        self._chance = chance
        self._number = 0
        self.journal = Journal()

    async def __aenter__(self) -> Load:
        self.producer = await self._make().__aenter__()
        self._http = await httpx.AsyncClient(timeout=ANSWER_SECONDS).__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        await self.producer.__aexit__(None, None, None)

    async def prepare(self) -> None:
        put = {
            f"/v1/queues/{queue}/templates/{name}": template
            for queue in QUEUES
            for name, template in (("limited", LIMITED), ("chain", CHAIN))
        }
        put[f"/v1/queues/{QUEUES[0]}/schedules/{SCHEDULE}"] = EVERY_MINUTE
        for place, body in put.items():
            answer = await self._until_answered(partial(self._say, "PUT", place, body))
            assert answer.status_code in (200, 201), answer.text

    async def run(self, enough: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(enough, KAFKA_SECONDS, self._batch_over_kafka))
            group.create_task(self._again(enough, 2 * KAFKA_SECONDS, self._one_over_kafka))
            group.create_task(self._again(enough, HTTP_SECONDS, self._one_over_http))
            for _ in range(OPERATORS):
                group.create_task(self._again(enough, OPERATE_SECONDS, self._operate))

    async def settle(self, seconds: float) -> None:
        """Says again what was not answered, and ends what would go on for ever; then one more
        request to each queue: when that is decided, all before it are."""
        async with asyncio.timeout(seconds):
            await self._until_answered(self._end_schedule)
            for queue in QUEUES:
                await self._until_answered(partial(self._resume, queue))
            while unknown := self.journal.open():
                await asyncio.gather(*map(self._submit_over_http, unknown[:AT_ONCE]))
            await self._cancel_where_nobody_works()
            for queue in QUEUES:
                last = self.journal.ask({**self._request("work"), "queue": queue})
                while last.state in ("unknown", "acknowledged"):
                    await self._submit_over_http(last)

    # --- What faults need ------------------------------------------------------------------------
    async def submit_one(self, kind: str) -> None:
        await self._submit_over_http(self.journal.ask(self._request(kind)))

    async def say_again(self, many: int) -> None:
        answered = [ask for ask in self.journal.asks.values() if ask.state == "accepted"]
        for ask in self._chance.sample(answered, min(many, len(answered))):
            await self._submit_over_http(ask)

    async def held(self) -> tuple[str, int] | None:
        """A job under a lease of ours, and its fence; None: not now."""
        fields = {"queue": FLOODED, "lease_seconds": FLOODED_LEASE_SECONDS}
        ask = self.journal.ask({**self._request(FLOODED), **fields, "delay_seconds": 0})
        await self._submit_over_http(ask)
        lock = await self._say("POST", f"/v1/jobs/{ask.job_id}/lock", {"runtime_id": FLOODED})
        if lock is None or lock.status_code != 200:
            return None
        return ask.job_id, lock.json()["fence"]

    async def let_go(self, job_id: str, fence: int) -> None:
        await self._until_answered(
            partial(self._say, "POST", f"/v1/jobs/{job_id}/result", {"fence": fence, "output": {}})
        )

    # --- One after the other ---------------------------------------------------------------------
    async def _again(
        self, enough: asyncio.Event, seconds: float, act: Callable[[], Awaitable[None]]
    ) -> None:
        while not enough.is_set():
            await act()
            with suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), self._chance.uniform(0, 2 * seconds))

    def _request(self, kind: str = "") -> dict[str, Any]:
        chance = self._chance
        self._number += 1
        kind = kind or chance.choices(list(KINDS), list(KINDS.values()))[0]
        payload: dict[str, Any] = {"seconds": chance.choice([0.0, 0.0, 0.05, 0.3, 1.5])}
        if kind == "large":
            payload["text"] = "x" * LARGE_BYTES
        request: dict[str, Any] = {
            "type": kind,
            "queue": chance.choice(QUEUES),
            "payload": payload,
            "labels": {"tenant": f"t{self._number % TENANTS}"},
            "lease_seconds": LEASE_SECONDS,
            "retry": {"max_attempts": 50, "backoff_seconds": [0.1]},
            "idempotency_key": f"ask-{self._number}",
        }
        if chance.random() < 0.1:
            request["delay_seconds"] = chance.uniform(0.5, 5)
        if chance.random() < 0.2:
            request["priority"] = chance.randrange(10)
        return request

    async def _batch_over_kafka(self) -> None:
        asks = [self.journal.ask(self._request()) for _ in range(KAFKA_BATCH)]
        try:
            sent: list[Submitted] = await self.producer.submit_many([ask.body for ask in asks])
        except (NotAcknowledged, LogError, StoreFailed):
            self.journal.seen["not acknowledged"] += 1
            return  # Said again when the storm is over.
        for ask, one in zip(asks, sent, strict=True):
            self.journal.acknowledged(ask)
            self.journal.command_ids.add(one.command_id)

    async def _one_over_kafka(self) -> None:
        """Waits for the decision, and now and then says the same command again."""
        ask = self.journal.ask(self._request())
        command_id = f"storm-{ask.key}"
        for _ in range(self._chance.choice([1, 1, 1, 2])):
            try:
                accepted = await self.producer.submit(**ask.body, command_id=command_id)
            except NotAcknowledged:
                self.journal.seen["not acknowledged"] += 1
            except Undecided:
                self.journal.seen["undecided"] += 1
                self.journal.acknowledged(ask)
                self.journal.command_ids.add(command_id)
            except Refused as refused:
                self.journal.refused(ask, refused.code)
            except LogError:
                self.journal.seen["no broker"] += 1
            else:
                self.journal.command_ids.add(command_id)
                self.journal.accepted(ask, accepted.job_id)

    async def _one_over_http(self) -> None:
        await self._submit_over_http(self.journal.ask(self._request()))

    async def _submit_over_http(self, ask: Ask) -> None:
        answer = await self._say("POST", "/v1/jobs", ask.body)
        if answer is None or answer.status_code >= 500:
            return
        if answer.status_code == 202:
            self.journal.acknowledged(ask)
        elif answer.is_success:
            self.journal.accepted(ask, answer.json()["id"])
            await self._read_back(ask, answer.headers.get("Ledger-Position", ""))
            if self._chance.random() < REGRETTED:
                await self._told("cancel", ask.job_id, {"reason": "regretted"})
        else:
            self.journal.refused(ask, answer.json().get("code", str(answer.status_code)))

    async def _read_back(self, ask: Ask, position: str) -> None:
        """What was written is there at its position, or the read says that it is behind."""
        if self._chance.random() > 0.1:
            return
        place = f"/v1/jobs/{ask.job_id}"
        read = await self._say("GET", place, None, {"Ledger-Min-Position": position})
        if read is not None and read.status_code == 404:
            self.journal.violations.append(f"G8: {ask.job_id} is not found at {position}")

    async def _operate(self) -> None:
        chosen = self._chance.choice(["cancel", "rerun", "rerun", "collect", "run", "pause"])
        jobs = self.journal.jobs()[-self._chance.choice(REMEMBERED) :]
        if not jobs:
            return
        job_id = self._chance.choice(jobs)
        match chosen:
            case "cancel":
                await self._told("cancel", job_id, {"reason": "a storm"})
            case "rerun":
                await self._told("rerun", job_id, {})
            case "collect":
                ids = self._chance.sample(jobs, min(5, len(jobs)))
                await self._say("POST", "/v1/jobs/collect", {"ids": ids})
            case "run":
                place = f"/v1/queues/{QUEUES[0]}/schedules/{SCHEDULE}/run"
                await self._say("POST", place, {})
            case _:
                queue = self._chance.choice(QUEUES)
                await self._say("POST", f"/v1/queues/{queue}/pause", {"reason": "a storm"})
                await asyncio.sleep(self._chance.uniform(0, 1))
                await self._resume(queue)

    async def _told(self, kind: Any, job_id: str, body: dict[str, Any]) -> None:
        """Only what was decided is held against the log; refusals are many, and right."""
        self._number += 1
        headers = {"Idempotency-Key": f"{kind}-{self._number}"}
        answer = await self._say("POST", f"/v1/jobs/{job_id}/{kind}", body, headers)
        if answer is None or answer.status_code not in (200, 201):
            return
        new = answer.json()["id"] if kind == "rerun" else ""
        self.journal.done.append(Done(kind, job_id, new))

    async def _cancel_where_nobody_works(self) -> None:
        for ask in self.journal.asks.values():
            if ask.body["queue"] == FLOODED and ask.job_id:
                place = f"/v1/jobs/{ask.job_id}/cancel"
                await self._until_answered(partial(self._say, "POST", place, {}))

    async def _resume(self, queue: str) -> httpx.Response | None:
        return await self._say("POST", f"/v1/queues/{queue}/resume", {})

    async def _end_schedule(self) -> httpx.Response | None:
        return await self._say("DELETE", f"/v1/queues/{QUEUES[0]}/schedules/{SCHEDULE}", None)

    async def _until_answered(
        self, ask: Callable[[], Awaitable[httpx.Response | None]]
    ) -> httpx.Response:
        while True:
            answer = await ask()
            if answer is not None and answer.status_code not in (202, 503):
                return answer
            await asyncio.sleep(AGAIN_SECONDS)

    async def _say(
        self, method: str, path: str, body: object, headers: dict[str, str] | None = None
    ) -> httpx.Response | None:
        """None: nobody answered."""
        url = f"{self._chance.choice(self._urls)}{path}"
        try:
            answer = await self._http.request(method, url, json=body, headers=headers)
        except httpx.HTTPError as error:
            self.journal.seen[f"http {type(error).__name__}"] += 1
            return None
        if answer.status_code >= 500:
            code = answer.json().get("code", "") if answer.status_code == 503 else "?"
            self.journal.seen[f"{answer.status_code} {code}"] += 1
            if answer.status_code != 503:
                self.journal.violations.append(
                    f"{method} {path}: {answer.status_code} {answer.text[:300]}"
                )
        return answer
