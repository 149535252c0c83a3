"""What must hold of a ledger once its faults have stopped: read from the log alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ledger.domain.entries import Proven, command_of
from ledger.domain.events import (
    CommandDuplicated,
    CommandRejected,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
)
from ledger.log.connection import Connection
from ledger.log.entries_reader import EntriesReader
from ledger.log.topics import Topics

ENDS = (JobSucceeded, JobFailed, JobCancelled, JobExpired)


@dataclass
class History:
    """All effective entries, with what readers passed over."""

    entries: list[Proven]
    ignored: int

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


async def read_history(connection: Connection, topics: Topics, partitions: int) -> History:
    """Raises ChainBroken where an entry does not carry the hash of the history before it."""
    entries: list[Proven] = []
    ignored = 0
    for partition in range(partitions):
        async with EntriesReader(connection, topics, partition) as reader:
            async for items in reader.batches(await reader.end()):
                entries += [item for item in items if isinstance(item, Proven)]
            seen = reader.effective.ignored
            ignored += seen.foreign + seen.out_of_sequence + seen.torn
    return History(entries, ignored)
