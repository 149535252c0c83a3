"""Reads the log itself: whole histories, what was true when, and whether anything was changed.

    async with Auditor("127.0.0.1:9092") as auditor:
        for event in await auditor.history(job_id): ...
        verdicts = await auditor.verify_chain()

Nothing here asks a read model. Each answer reads a partition from its start on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from ledger.audit.checked_entries import CheckedEntries
from ledger.client.layout import connection_to, partitions_of
from ledger.domain.entries import Entry, Proven, command_of
from ledger.domain.events import (
    JOB_EVENTS,
    Event,
    Extension,
    JobEvent,
    JobRequested,
    LeasesExtended,
    Unknown,
    type_of,
)
from ledger.domain.evolve import begin, evolve, extend
from ledger.domain.ids import JobId, Micros, micros_of, parse_rfc3339, queue_of, rfc3339_micros
from ledger.domain.job import Job
from ledger.domain.job_view import job_json
from ledger.domain.step_changes import Misfit
from ledger.log.connection import Connection
from ledger.log.effective import Effective, Ignored, TakenOver
from ledger.log.entries_reader import EntriesReader
from ledger.log.errors import LogBroken, LogUnavailable
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics

Instant = datetime | str
"""Aware of its zone, or RFC 3339."""
Progress = Callable[[int, int, int], None]
"""Told partition, offset read so far, and offset to read up to."""


class HistoryEvent(Struct, frozen=True, gc=False):
    """One fact of a job, with its place in the log."""

    seq: int
    """1, 2, 3 … within the job: its version after this."""
    type: str
    at: str
    actor: str
    cause: str
    """A command's id, `timer` or `grant`."""
    data: dict[str, Any]
    position: str
    """`partition:offset`."""
    entry: int
    hash: str
    """Of the partition's chain up to and including the event's entry, as hex."""


class Verdict(Struct, frozen=True, gc=False):
    """What a partition's log holds, and where it is broken."""

    partition: int
    end: int
    """All below is sound."""
    entries: int
    events: int
    take_overs: int
    hash: str
    """The chain's last: whoever noted it can tell later that nothing before it was changed."""
    ignored: dict[str, int]
    """Records that count for no reader, by reason."""
    broken: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.broken


class Auditor:
    """`async with`. Raises `LogUnavailable`, and `LogBroken` where the log is not what it was."""

    def __init__(
        self,
        bootstrap: str | Connection,
        *,
        partitions: int | None = None,
        prefix: str = "",
    ) -> None:
        self._connection = connection_to(bootstrap)
        self._topics = Topics(prefix)
        self._partitions = partitions

    async def __aenter__(self) -> Self:
        if self._partitions is None:
            self._partitions = await partitions_of(self._connection, self._topics)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Readers live no longer than their answer."""

    async def history(self, job_id: str) -> list[HistoryEvent]:
        """Oldest first; empty for a job that the log does not hold."""
        partition = self._partition_of(job_id)
        history: list[HistoryEvent] = []
        async with aclosing(self.replay(partition)) as items:
            async for item in items:
                if isinstance(item, TakenOver):
                    continue
                for place, fact in _facts_of(item.entry, JobId(job_id)):
                    history.append(_history_event(item, place, fact, len(history) + 1, partition))
        return history

    async def job(
        self, job_id: str, *, as_of: Instant | int | None = None
    ) -> dict[str, Any] | None:
        """The job as it stood at an instant, or at a version; as it stands now without either."""
        version = as_of if isinstance(as_of, int) else None
        instant = None if as_of is None or isinstance(as_of, int) else _micros(as_of)
        job: Job | None = None
        async with aclosing(self.replay(self._partition_of(job_id))) as items:
            async for item in items:
                if isinstance(item, TakenOver):
                    continue
                if instant is not None and item.entry.at > instant:
                    break
                for _, fact in _facts_of(item.entry, JobId(job_id)):
                    if version is not None and job is not None and job.version >= version:
                        break
                    job = _after(job, fact, item.entry.at)
        return None if job is None else msgspec.json.decode(job_json(job))

    async def replay(
        self, partition: int, *, until: int | None = None
    ) -> AsyncGenerator[Effective, None]:
        """Entries and take-overs that count, in order, up to an offset or the end as of now."""
        async with EntriesReader(self._connection, self._topics, partition) as reader:
            end = await reader.end() if until is None else until
            async for items in reader.batches(end):
                for item in items:
                    yield item

    async def jobs(self, partition: int, *, until: int | None = None) -> dict[JobId, Job]:
        """Every job of a partition, folded: as they stood at an offset, or stand now."""
        jobs: dict[JobId, Job] = {}
        async with aclosing(self.replay(partition, until=until)) as items:
            async for item in items:
                if isinstance(item, Proven):
                    _fold(jobs, item.entry)
        return jobs

    async def verify_chain(
        self, partitions: Iterable[int] | None = None, *, progress: Progress | None = None
    ) -> list[Verdict]:
        """One partition after the other; all of them if none is named. Of the rules `ledger verify`
        says more."""
        wanted = range(self._count()) if partitions is None else partitions
        return [await self._verify(partition, progress) for partition in wanted]

    async def _verify(self, partition: int, progress: Progress | None) -> Verdict:
        entries = CheckedEntries(self._topics.events, partition)
        events = 0
        broken = ""
        async with EntriesReader(self._connection, self._topics, partition) as reader:
            end = await reader.end()
            try:
                async for records in reader.records(end):
                    for record in records:
                        item = entries.feed(record)
                        if isinstance(item, Proven):
                            events += len(item.entry.events)
                    if progress is not None:
                        progress(partition, reader.position, end)
                entries.check_whole()
            except LogBroken as error:
                broken = str(error)
            cursor = entries.cursor
            return Verdict(
                partition=partition,
                end=cursor.offset if broken else reader.position,
                entries=cursor.entry,
                events=events,
                take_overs=len(cursor.nonces),
                hash=cursor.hash.hex(),
                ignored=_counts(entries.ignored),
                broken=broken,
            )

    def _count(self) -> int:
        if self._partitions is None:
            raise LogUnavailable("use it as `async with Auditor(…) as auditor`")
        return self._partitions

    def _partition_of(self, job_id: str) -> int:
        queue = queue_of(job_id)
        if queue is None:
            raise ValueError(f"{job_id!r} is no job id")
        return partition_of(queue, self._count())


Fact = JobEvent | Extension | Unknown
"""What moves one job."""


def _facts_of(entry: Entry, job_id: JobId) -> Iterator[tuple[int, Fact]]:
    """The facts of one job in an entry, each with its record's place in it."""
    for place, event in enumerate(entry.events):
        for moved, fact in _moved_by(event):
            if moved == job_id:
                yield place, fact


def _after(job: Job | None, fact: Fact, at: Micros) -> Job | None:
    if job is None:
        return begin(fact, at) if isinstance(fact, JobRequested) else None
    if isinstance(fact, Unknown):
        return msgspec.structs.replace(job, opaque=job.opaque + 1, version=job.version + 1)
    after = extend(job, fact) if isinstance(fact, Extension) else evolve(job, fact, at)
    return job if isinstance(after, Misfit) else after


def _fold(jobs: dict[JobId, Job], entry: Entry) -> None:
    for event in entry.events:
        for job_id, fact in _moved_by(event):
            job = _after(jobs.get(job_id), fact, entry.at)
            if job is not None:
                jobs[job_id] = job


def _moved_by(event: Event) -> Iterator[tuple[JobId, Fact]]:
    if isinstance(event, LeasesExtended):
        for extension in event.leases:
            yield extension.job_id, extension
    elif isinstance(event, JOB_EVENTS):
        yield event.job_id, event
    elif isinstance(event, Unknown):
        yield JobId(event.key), event


def _history_event(
    proven: Proven, place: int, fact: Fact, seq: int, partition: int
) -> HistoryEvent:
    entry = proven.entry
    if isinstance(fact, Extension):
        kind = LeasesExtended.TYPE
        data = {name: getattr(fact, name) for name in Extension.__struct_fields__}
    elif isinstance(fact, Unknown):
        kind, data = fact.type, {"data": fact.data.decode(errors="replace")}
    else:
        kind, data = type_of(fact), msgspec.json.decode(msgspec.json.encode(fact))
    return HistoryEvent(
        seq=seq,
        type=kind,
        at=rfc3339_micros(entry.at),
        actor=entry.actor,
        cause=command_of(entry.cause) or entry.cause,
        data=data,
        position=f"{partition}:{proven.first_offset + place}",
        entry=entry.number,
        hash=proven.hash.hex(),
    )


def _counts(ignored: Ignored) -> dict[str, int]:
    return {name: count for name in Ignored.__struct_fields__ if (count := getattr(ignored, name))}


def _micros(instant: Instant) -> Micros:
    return parse_rfc3339(instant) if isinstance(instant, str) else micros_of(instant)
