"""What must hold of a ledger once its faults have stopped: read from the log, and compared with its
read models."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from ledger.client.producer import Accepted
from ledger.domain.entries import Proven, command_of
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    CommandDuplicated,
    CommandRejected,
    Event,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    LeasesExtended,
)
from ledger.domain.ids import JobId, Micros
from ledger.domain.invariants import Invariants, Violation
from ledger.domain.partition import Partition
from ledger.log.connection import Connection
from ledger.log.entries_reader import EntriesReader
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics
from projections.batches import end_of
from projections.log_source import log_source
from projections.rebuild import status, verify
from tests.support.processes import Cluster

E = TypeVar("E")
ENDS = (JobSucceeded, JobFailed, JobCancelled, JobExpired)


@dataclass
class History:
    """All effective entries, with what readers passed over."""

    entries: list[Proven]
    ignored: int
    violations: list[Violation]
    ends: dict[int, int]
    """The last offset that counts, of each partition that has one."""

    def events(self, job_id: str | None = None) -> Iterator[Event]:
        """All of them, or one job's, each partition's in order."""
        for proven in self.entries:
            for event in proven.entry.events:
                if job_id is None or getattr(event, "job_id", None) == job_id:
                    yield event

    def all(self, kind: type[E], job_id: str | None = None) -> list[E]:
        return [event for event in self.events(job_id) if isinstance(event, kind)]

    def output(self, job_id: str) -> Any:
        """Of its one success."""
        [done] = self.all(JobSucceeded, job_id)
        assert isinstance(done.output, msgspec.Raw)
        return msgspec.json.decode(done.output)

    def until(self, job_id: str, fence: int) -> Micros:
        """The last recorded end of a lease."""
        granted = [e.until for e in self.all(LeaseGranted, job_id) if e.fence == fence]
        extended = [
            lease.until
            for event in self.all(LeasesExtended)
            for lease in event.leases
            if (lease.job_id, lease.fence) == (job_id, fence)
        ]
        return max(granted + extended)

    def at(self, kind: type[Event], job_id: str) -> list[Micros]:
        """When each of them was recorded."""
        return [
            proven.entry.at
            for proven in self.entries
            for event in proven.entry.events
            if isinstance(event, kind) and getattr(event, "job_id", None) == job_id
        ]

    def jobs(self) -> set[str]:
        return {
            event.job_id
            for proven in self.entries
            for event in proven.entry.events
            if isinstance(event, JobRequested)
        }

    def endings(self) -> Counter[str]:
        return Counter(
            event.job_id
            for proven in self.entries
            for event in proven.entry.events
            if isinstance(event, ENDS)
        )

    def leases(self) -> int:
        return sum(isinstance(e, LeaseGranted) for p in self.entries for e in p.entry.events)

    def outcomes(self) -> Counter[str]:
        """Of requests: how often each command id was accepted, refused or found a duplicate."""
        return Counter(
            command_id
            for proven in self.entries
            if (command_id := command_of(proven.entry.cause)) is not None
            and any(
                isinstance(e, JobRequested | CommandRejected)
                and not isinstance(e, CommandDuplicated)
                for e in proven.entry.events
            )
        )


def accepted_ids(outcomes: Iterable[object]) -> list[JobId]:
    """Of a producer's answers, all of which must say that there is a job."""
    found = list(outcomes)
    accepted = [one for one in found if isinstance(one, Accepted)]
    assert len(accepted) == len(found), [one for one in found if not isinstance(one, Accepted)]
    return [one.job_id for one in accepted]


def most_at_once(history: History, key: Callable[[JobId], str | None]) -> Counter[str]:
    """How many leases stood at one position of the log, at most, of all jobs of one key; those
    without are passed over. At the end none may be left."""
    live: defaultdict[str, set[str]] = defaultdict(set)
    most: Counter[str] = Counter()
    for event in history.events():
        match event:
            case LeaseGranted() if (found := key(event.job_id)) is not None:
                live[found].add(event.job_id)
                most[found] = max(most[found], len(live[found]))
            case (
                AttemptExpired()
                | AttemptFailed()
                | JobSucceeded()
                | LeaseReleased()
                | JobCancelled()
            ) if (found := key(event.job_id)) is not None:
                live[found].discard(event.job_id)
            case _:
                pass
    assert not any(live.values())
    return most


async def read_history(connection: Connection, topics: Topics, partitions: int) -> History:
    """Raises ChainBroken where an entry does not carry the hash of the history before it."""
    entries: list[Proven] = []
    violations: list[Violation] = []
    ends: dict[int, int] = {}
    ignored = 0
    for partition in range(partitions):
        home = partial(partition_of, count=partitions)
        invariants = Invariants(Partition(partition), home=home)
        async with EntriesReader(connection, topics, partition) as reader:
            async for items in reader.batches(await reader.end()):
                for item in items:
                    ends[partition] = end_of(item) - 1
                    if isinstance(item, Proven):
                        entries.append(item)
                        violations += invariants.check(item.entry)
                    else:
                        violations += invariants.take_over(item.take_over)
            seen = reader.effective.ignored
            ignored += seen.foreign + seen.out_of_sequence + seen.torn
        violations += invariants.settle()
    return History(entries, ignored, violations, ends)


async def sound_history(cluster: Cluster) -> History:
    """The history, once it is found to keep every rule, and the views to be the fold of it."""
    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    assert not history.violations, history.violations[:10]
    assert set(history.outcomes().values()) <= {1}
    assert set(history.endings().values()) <= {1}
    if cluster.dsn:
        await _until_views_stand_at(cluster, history)
        source = log_source(cluster.connection, cluster.topics)
        assert await verify(cluster.dsn, topic=cluster.topics.events, source=source) == []
    return history


async def _until_views_stand_at(cluster: Cluster, history: History) -> None:
    def stand() -> bool:
        stored = {one.partition: one.offset for one in status(cluster.dsn, {})}
        return all(stored.get(partition, 0) > end for partition, end in history.ends.items())

    await cluster.until(stand, seconds=60, what=f"the views stand at {history.ends}")
