"""A log as owners write it, made with the rules alone: no broker, no waiting."""

from __future__ import annotations

from pathlib import Path

from msgspec import Raw

from ledger.domain import runtimes
from ledger.domain.commands import (
    Asked,
    Beat,
    Command,
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
from ledger.domain.entries import GRANT, TIMER, Entry, TakeOver, cause_of
from ledger.domain.events import Event
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
from ledger.domain.partition import Partition
from ledger.log.archive import ArchivedRecord, ArchiveWriter, archive_name
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
PAYLOAD = Raw(b'{"text":"' + b"x" * 170 + b'"}')
RUNTIME, SESSION = RuntimeId("bench"), Session("s1")
PLAIN, FLOW = "noop", "flow"
TOPIC = "ledger.events.v1"


class OfflineLog:
    """One partition. Of 50 jobs one is a flow of three steps; of 20 attempts one fails first."""

    def __init__(self, number: int, partitions: int) -> None:
        names = (QueueName(f"queue{n}") for n in range(100_000))
        self.queue = next(name for name in names if partition_of(name, partitions) == number)
        self.partition = Partition(number)
        self.records: list[ArchivedRecord] = []
        self.events = 0
        self._at = BEGIN
        self._asked = 0
        self._failed: set[tuple[JobId, StepName]] = set()
        nonce = f"bench-{number}"
        self._encoder = EntryEncoder(partition=number, ledger_id="bench", nonce=nonce)
        self._hash = b""
        record = TakeOver(nonce, self._at, "bench", partitions)
        self._append_records([take_over_record(record, partition=number)])
        self.partition.take_over(record)
        once = RetryAsk(max_attempts=3, backoff_seconds=(0.1,))
        steps = tuple(StepAsk(StepName(name), worker_type=PLAIN, retry=once) for name in "abc")
        self._say(PutTemplate(self.queue, FLOW, Template(steps=steps)))
        self._say(PutTemplate(self.queue, PLAIN, Template(retry=once)))

    def write(self, events: int) -> None:
        """At least so many."""
        while self.events < events:
            self._turn()

    def save(self, directory: Path) -> Path:
        number = self.partition.number
        path = directory / archive_name(TOPIC, number, 0)
        with ArchiveWriter(path, topic=TOPIC, partition=number, first=0) as writer:
            writer.write(self.records)
            writer.finish(len(self.records))
        return path

    def _turn(self) -> None:
        self._at = Micros(self._at + TURN_US)
        for number in range(MANY):
            kind = FLOW if number % FLOW_EVERY == 0 else PLAIN
            labels = {"user": f"u{number}"}
            self._say(RequestJob(kind, self.queue, PAYLOAD, labels))
        self._say(Beat(RUNTIME, SESSION, self.queue, 1, (PLAIN,), MANY))
        session = self.partition.queue(self.queue).sessions[RUNTIME]
        grants = runtimes.grants(
            self.partition,
            self.queue,
            session.types,
            RUNTIME,
            2 * MANY,
            self._at,
            session=SESSION,
            after=session.number,
        )
        self._append(tuple(grants), GRANT)
        words: list[ReportedStart | ReportedResult | ReportedFailure] = []
        for number, grant in enumerate(grants):
            job, fence = grant.job_id, grant.fence
            words.append(ReportedStart(job, fence))
            if number % FAIL_EVERY == 0 and (job, grant.step) not in self._failed:
                self._failed.add((job, grant.step))
                words.append(ReportedFailure(job, fence, "BROKEN", "it did not work"))
            else:
                self._failed.discard((job, grant.step))
                words.append(ReportedResult(job, fence, Raw(b'{"ok":true}')))
        for first in range(0, len(words), 2 * MANY):
            self._say(Report(RUNTIME, SESSION, self.queue, tuple(words[first : first + 2 * MANY])))
        for fallen in self.partition.due(self._at, 1_000):
            self._append(due(self.partition, fallen, self._at), TIMER)

    def _say(self, command: Command) -> None:
        self._asked += 1
        command_id = CommandId(f"{self.partition.number}-{self._asked:026d}")
        asked = Asked(command, command_id, "bench", sent_at=self._at, appended_at=self._at)
        decided = decide(self.partition, asked, self._at)
        assert isinstance(decided, Decided), decided
        assert not decided.refused, decided
        self._append(decided.events, cause_of(asked.command_id, awaited=False))

    def _append(self, events: tuple[Event, ...], cause: str) -> None:
        if not events:
            return
        entry = Entry(self.partition.entry + 1, self._at, 0, 0, events, "bench", cause)
        encoded = self._encoder.encode(entry, self._hash)
        self._hash = encoded.hash
        self._append_records(encoded.records)
        self.partition.apply(entry)
        self.partition.drain_touched()
        self.events += len(events)

    def _append_records(self, records: list[Outgoing]) -> None:
        for key, value, headers in records:
            offset, at_ms = len(self.records), self._at // 1_000
            self.records.append(ArchivedRecord(offset, at_ms, key, value, list(headers)))
