"""What must hold of a ledger once its faults have stopped: read from the log alone, and checked as
`ledger verify` checks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.audit.log_check import LogCheck
from ledger.audit.sources import BrokerSource
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
from ledger.domain.invariants import Violation
from ledger.log.connection import Connection
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


class Kept:
    """All entries of a partition, as a check came by them."""

    def __init__(self) -> None:
        self.entries: list[Proven] = []

    def hear(self, proven: Proven) -> None:
        self.entries.append(proven)

    def violations(self) -> Iterable[Violation]:
        return ()


async def read_history(connection: Connection, topics: Topics, partitions: int) -> History:
    """Raises AssertionError where the log is not whole, or does not keep the rules."""
    entries: list[Proven] = []
    ignored = 0
    for partition in range(partitions):
        source = BrokerSource(lambda: connection, topics, partition)
        kept = Kept()
        report = await source.read(LogCheck(topics.events, partition, beyond=kept))
        assert report.is_sound, (report.broken, report.verdict.violations)
        entries += kept.entries
        seen = report.ignored
        ignored += sum(seen.get(name, 0) for name in ("foreign", "out_of_sequence", "torn"))
    return History(entries, ignored)
