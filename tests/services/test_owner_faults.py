"""Each of the owner's first calls to the log fails once, in every way a call can: its take-overs,
its appends, what it sends, what it asks. The broker is real; what it said is lost on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import msgspec
import pytest

from ledger.domain.commands import Command, LockJob, RequestJob, SubmitResult
from ledger.domain.entries import command_of
from ledger.domain.events import CommandDuplicated, JobRequested, JobSucceeded, LeaseGranted
from ledger.domain.ids import Fence, RuntimeId
from ledger.log import outbox as outbox_module
from ledger.log import term as term_module
from ledger.log.connection import Connection
from ledger.log.errors import AppendRefused, LogUnavailable
from ledger.log.offsets import Isolation, Offsets
from ledger.log.producer import Appended, Batch, Producer
from ledger.log.replies import Reply
from processors.owner import service as service_module
from processors.owner.service import OwnerService, OwnerSettings
from tests.support.ledger import Client, Ledger, ledger_on

pytestmark = pytest.mark.services

DOOMED = "doomed"
"""The client id of the owner whose calls fail."""
CALLS_MAX = 5
PATIENCE_SECONDS = 60.0
ASK_AGAIN_SECONDS = 2.0

Target = Literal["append", "effects", "offsets"]
Fault = Literal["unavailable", "answer lost", "no offset", "refused", "surprise"]
"""It was not taken; it was and nobody said so; or where; the broker refuses for good; or something
that nobody has thought of. The last two end the owner, and the next one goes on."""


class Surprise(Exception):
    """What nobody has thought of."""


class Faults:
    """One call of the doomed owner fails."""

    def __init__(self, target: Target, fault: Fault) -> None:
        self.target = target
        self.fault = fault
        self._left = 0
        self.happened = 0

    def arm(self, nth: int) -> None:
        self._left = nth

    def hits(self, connection: Connection, target: Target) -> bool:
        if connection.client_id != DOOMED or target != self.target:
            return False
        self._left -= 1
        self.happened += self._left == 0
        return self._left == 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faults = self

        class FaultyProducer(Producer):
            def __init__(self, connection: Connection, role: str) -> None:
                super().__init__(connection, role)
                self._connection = connection
                self._target: Target = "append" if role.startswith("owner-") else "effects"
                self._hit = False

            async def send(self, topic: str, partition: int, batch: Batch) -> asyncio.Future[Any]:
                self._hit = faults.hits(self._connection, self._target)
                if self._hit and faults.fault == "unavailable":
                    raise LogUnavailable("it takes no batch")
                if self._hit and faults.fault == "refused":
                    raise AppendRefused("the broker refuses the append")
                if self._hit and faults.fault == "surprise":
                    raise Surprise
                return await super().send(topic, partition, batch)

            async def acknowledged(self, sent: asyncio.Future[Any]) -> Appended:
                hit, self._hit = self._hit, False
                found = await super().acknowledged(sent)
                if hit and faults.fault == "answer lost":
                    raise LogUnavailable("no acknowledgement came")
                return Appended(None, None) if hit and faults.fault == "no offset" else found

        class FaultyOffsets(Offsets):
            def __init__(
                self, connection: Connection, isolation: Isolation = "read_uncommitted"
            ) -> None:
                super().__init__(connection, isolation)

            async def _answered(self, question: Any, topic: str, wanted: object) -> Any:
                if faults.hits(self._connection, "offsets"):
                    if faults.fault == "surprise":
                        raise Surprise
                    raise LogUnavailable("no answer came")
                return await super()._answered(question, topic, wanted)

        for module in (term_module, outbox_module):
            monkeypatch.setattr(module, "Producer", FaultyProducer)
        for name in ("processors.owner.service", "ledger.log.entries_reader"):
            monkeypatch.setattr(f"{name}.Offsets", FaultyOffsets)


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@asynccontextmanager
async def doomed_owner(ledger: Ledger) -> AsyncIterator[None]:
    """As a supervisor runs it: what ends it for good starts it again."""
    settings = OwnerSettings(
        connection=replace(ledger.connection, client_id=DOOMED),
        topics=ledger.topics,
        partitions=ledger.partitions,
    )
    stop = asyncio.Event()

    async def run() -> None:
        while not stop.is_set():
            try:
                await OwnerService(settings).run(stop)
            except (AppendRefused, Surprise):
                continue

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        stop.set()
        await running


async def test_an_error_in_its_trimming_that_nobody_expects_ends_the_owner(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(connection: Connection) -> None:
        raise Surprise

    monkeypatch.setattr(service_module, "TRIM_SECONDS", 0.01)
    monkeypatch.setattr(service_module, "Admin", broken)
    settings = OwnerSettings(
        connection=ledger.connection, topics=ledger.topics, partitions=ledger.partitions
    )
    with pytest.raises(Surprise):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await OwnerService(settings).run(asyncio.Event())


async def ask(client: Client, command: Command, command_id: str) -> Reply:
    """As a careful client does: without an answer it asks again, under the same id."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                async with asyncio.timeout(ASK_AGAIN_SECONDS):
                    return await client.ask(command, command_id=command_id)
            except TimeoutError:
                continue


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        *(("append", fault) for fault in ("unavailable", "answer lost", "no offset")),
        *(("append", fault) for fault in ("refused", "surprise")),
        *(("effects", fault) for fault in ("unavailable", "answer lost", "no offset")),
        *(("effects", fault) for fault in ("refused", "surprise")),
        *(("offsets", fault) for fault in ("unavailable", "surprise")),
    ],
)
async def test_whichever_call_of_the_owner_fails_each_command_has_one_outcome(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, target: Target, fault: Fault
) -> None:
    """An owner's life for each call: a job is asked for, leased and done, and asked for again."""
    faults = Faults(target, fault)
    faults.install(monkeypatch)
    async with ledger.client() as client:
        for nth in range(1, CALLS_MAX + 1):
            faults.arm(nth)
            async with doomed_owner(ledger):
                request = RequestJob("t", idempotency_key=f"k{nth}")
                asked = await ask(client, request, f"request-{nth}")
                job_id = asked.job_id
                assert job_id is not None, asked
                lease = await ask(client, LockJob(job_id, RuntimeId("r")), f"lock-{nth}")
                assert lease.outcome == "accepted", lease
                assert lease.data is not None
                fence = Fence(msgspec.json.decode(lease.data)["fence"])
                done = await ask(client, SubmitResult(job_id, fence), f"result-{nth}")
                assert done.outcome in ("accepted", "duplicate"), done
                again = await ask(client, request, f"request-again-{nth}")
                assert again.job_id == job_id
            assert faults.happened == nth
    events = await ledger.events()
    for kind in (JobRequested, LeaseGranted, JobSucceeded):
        jobs = Counter(event.job_id for event in events if isinstance(event, kind))
        assert len(jobs) == CALLS_MAX
        assert set(jobs.values()) == {1}, kind
    outcomes: Counter[str] = Counter()
    for partition in range(ledger.partitions):
        for proven in await ledger.history(partition):
            command_id = command_of(proven.entry.cause)
            decides = not all(isinstance(e, CommandDuplicated) for e in proven.entry.events)
            outcomes.update([command_id] if command_id is not None and decides else [])
    assert set(outcomes.values()) == {1}
