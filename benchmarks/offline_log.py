"""A log as owners write it, made with the rules alone: no broker, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Raw

from ledger.domain import runtimes
from ledger.domain.commands import (
    Asked,
    Beat,
    Command,
    HeldLease,
    PutTemplate,
    Report,
    ReportedFailure,
    ReportedResult,
    ReportedStart,
    RequestJob,
    RetryAsk,
    StepAsk,
    Template,
)
from ledger.domain.decide import Decided, decide, due
from ledger.domain.entries import GRANT, TIMER, Entry, Proven, TakeOver, cause_of
from ledger.domain.events import Event, LeaseGranted
from ledger.domain.ids import (
    SECOND,
    CommandId,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
    StepName,
)
from ledger.domain.partition import Bounds, Partition
from ledger.log.archive import ArchivedRecord, ArchiveWriter, archive_name
from ledger.log.effective import Effective, TakenOver
from ledger.log.entry_codec import EntryEncoder, take_over_record
from ledger.log.partitions import partition_of
from ledger.log.records import Outgoing

BEGIN = Micros(1_800_000_000 * SECOND)
TURN_US = 20_000
"""Between two turns of the owner."""
MANY = 50
"""Jobs that are requested, given, and reported in one turn."""
FAIL_EVERY = 20
FLOW_EVERY = 50
PAYLOAD = Raw(b'{"text":"' + b"x" * 189 + b'"}')
"""200 bytes."""
SLOTS = 10_000
RUNTIME, SESSION = RuntimeId("bench"), Session("s1")
PLAIN, FLOW = "noop", "flow"
TOPIC = "ledger.events.v1"


class OfflineLog:
    """One partition, one queue, one runtime. `mixed`: of 50 jobs one is a flow of three steps, and
    of 20 attempts one fails first; else every job goes well."""

    def __init__(
        self,
        number: int = 0,
        partitions: int = 1,
        *,
        mixed: bool = True,
        keeps: bool = True,
        bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
        payload: Callable[[], Raw] = lambda: PAYLOAD,
    ) -> None:
        """`keeps`: the records and entries, in memory."""
        names = (QueueName(f"queue{n}") for n in range(100_000))
        self.queue = next(name for name in names if partition_of(name, partitions) == number)
        self.partition = Partition(number, bounds)
        self.records: list[ArchivedRecord] = []
        self.entries: list[Effective] = []
        self.events = 0
        self.at = BEGIN
        self._mixed = mixed
        self._keeps = keeps
        self._payload = payload
        self._offset = 0
        self._asked = 0
        self._beats = 0
        self._failed: set[tuple[JobId, StepName]] = set()
        nonce = f"bench-{number}"
        self._encoder = EntryEncoder(partition=number, ledger_id="bench", nonce=nonce)
        self._hash = b""
        record = TakeOver(nonce, self.at, "bench", partitions)
        self._keep([take_over_record(record, partition=number)])
        self.entries.append(TakenOver(record, 0))
        self.partition.take_over(record)
        once = RetryAsk(max_attempts=3, backoff_seconds=(0.1,))
        steps = tuple(StepAsk(StepName(name), worker_type=PLAIN, retry=once) for name in "abc")
        self.say(PutTemplate(self.queue, FLOW, Template(steps=steps)))
        self.say(PutTemplate(self.queue, PLAIN, Template(retry=once)))

    def write(self, events: int) -> None:
        """At least so many."""
        while self.events < events:
            self.turn()

    def turn(self, many: int = MANY) -> None:
        """So many jobs asked for, as many and more given and reported."""
        self.request(many)
        self.report(self.grant(2 * many))
        for fallen in self.partition.due(self.at, 1_000):
            self._append(due(self.partition, fallen, self.at), TIMER)
        self.partition.drain_touched()

    def request(self, many: int) -> None:
        self.pass_time(TURN_US)
        for number in range(many):
            kind = FLOW if self._mixed and number % FLOW_EVERY == 0 else PLAIN
            labels = {"user": f"u{number % MANY}"}
            self.say(RequestJob(kind, self.queue, self._payload(), labels))

    def grant(self, many: int) -> list[LeaseGranted]:
        """To a runtime that has just beaten."""
        self.beat()
        given: list[LeaseGranted] = []
        while len(given) < many:
            session = self.partition.queue(self.queue).sessions[RUNTIME]
            grants = runtimes.grants(
                self.partition,
                self.queue,
                session.types,
                RUNTIME,
                many - len(given),
                self.at,
                session=SESSION,
                after=session.number,
            )
            if not grants:
                break
            self._append(tuple(grants), GRANT)
            given += grants
        return given

    def beat(self, held: Sequence[HeldLease] = ()) -> None:
        self._beats += 1
        types = (PLAIN,)
        leases = tuple(held)
        self.say(Beat(RUNTIME, SESSION, self.queue, self._beats, types, SLOTS, leases=leases))

    def report(self, grants: Sequence[LeaseGranted], *, ends: bool = True) -> None:
        """That they began; `ends`: and how they ended."""
        words: list[ReportedStart | ReportedResult | ReportedFailure] = []
        for number, grant in enumerate(grants):
            job, fence = grant.job_id, grant.fence
            words.append(ReportedStart(job, fence))
            if ends:
                words.append(self._end_of(number, grant))
        for first in range(0, len(words), 2 * MANY):
            self.say(Report(RUNTIME, SESSION, self.queue, tuple(words[first : first + 2 * MANY])))

    def pass_time(self, micros: int) -> None:
        self.at = Micros(self.at + micros)

    def save(self, directory: Path) -> Path:
        number = self.partition.number
        path = directory / archive_name(TOPIC, number, 0)
        with ArchiveWriter(path, topic=TOPIC, partition=number, first=0) as writer:
            writer.write(self.records)
            writer.finish(len(self.records))
        return path

    def _end_of(self, number: int, grant: LeaseGranted) -> ReportedResult | ReportedFailure:
        its = (grant.job_id, grant.step)
        if self._mixed and number % FAIL_EVERY == 0 and its not in self._failed:
            self._failed.add(its)
            return ReportedFailure(grant.job_id, grant.fence, "BROKEN", "it did not work")
        self._failed.discard(its)
        return ReportedResult(grant.job_id, grant.fence, Raw(b'{"ok":true}'))

    def say(self, command: Command) -> None:
        self._asked += 1
        command_id = CommandId(f"{self.partition.number}-{self._asked:026d}")
        asked = Asked(command, command_id, "bench", sent_at=self.at, appended_at=self.at)
        decided = decide(self.partition, asked, self.at)
        assert isinstance(decided, Decided), decided
        assert not decided.refused, decided
        self._append(decided.events, cause_of(asked.command_id, awaited=False))

    def _append(self, events: tuple[Event, ...], cause: str) -> None:
        if not events:
            return
        entry = Entry(self.partition.entry + 1, self.at, 0, 0, events, "bench", cause)
        encoded = self._encoder.encode(entry, self._hash)
        self._hash = encoded.hash
        first = self._offset
        self._keep(encoded.records)
        if self._keeps:
            self.entries.append(Proven(entry, first, self._offset - 1, encoded.hash))
        self.partition.apply(entry)
        self.events += len(events)

    def _keep(self, records: list[Outgoing]) -> None:
        if self._keeps:
            for offset, (key, value, headers) in enumerate(records, self._offset):
                at_ms = self.at // 1_000
                self.records.append(ArchivedRecord(offset, at_ms, key, value, list(headers)))
        self._offset += len(records)
