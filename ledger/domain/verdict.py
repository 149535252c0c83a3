"""Whether a partition's entries are right: the one place that says so. The tests of every tier ask
it, and `ledger verify` on a log in production.

    verdict = judged(items)
    assert not verdict.violations
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from ledger.domain.entries import Entry, Proven, TakeOver, command_of
from ledger.domain.events import (
    CommandDuplicated,
    CommandRejected,
    Event,
    InputQuarantined,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRequested,
    JobSucceeded,
    Unknown,
    type_of,
)
from ledger.domain.invariants import PATIENCE_US, Invariants, Violation
from ledger.domain.partition import Bounds, Partition

VIOLATIONS_MAX = 1_000
"""Kept of one partition; all are counted."""
Item = Entry | Proven | TakeOver
Home = Callable[[str], int]
"""The number of the partition in which a queue lies."""


class Verdict(Struct):
    entries: int = 0
    events: int = 0
    take_overs: int = 0
    types: dict[str, int] = {}
    """Events, by type."""
    jobs: dict[str, int] = {}
    """How many were requested, are open, and ended how."""
    commands: dict[str, int] = {}
    """What became of those that left an entry. `rejected` counts words of reports, too."""
    violations: list[Violation] = []
    """The first ones."""
    violation_count: int = 0


class Judge:
    """Of one partition; whoever reads it hands in what counts, in order."""

    def __init__(
        self,
        number: int = 0,
        *,
        bounds: Bounds | None = None,
        patience_us: int = PATIENCE_US,
        home: Home | None = None,
    ) -> None:
        self.partition = Partition(number, bounds or Bounds())
        self._invariants = Invariants(self.partition, patience_us=patience_us, home=home)
        self._entries = self._take_overs = self._answers = 0
        self._types: Counter[type[Event]] = Counter()
        self._unknown: Counter[str] = Counter()
        self._violations: list[Violation] = []
        self._violation_count = 0

    def hear(self, item: Item, offset: int = -1, *, silently: bool = False) -> None:
        """`silently`: it is folded, and neither counted nor told of."""
        if isinstance(item, Proven):
            offset, item = item.first_offset, item.entry
        if isinstance(item, Entry):
            found = self._invariants.check(item, offset)
        else:
            found = self._invariants.take_over(item)
        if silently:
            return
        self.note(found)
        if isinstance(item, Entry):
            self._count(item)
        else:
            self._take_overs += 1

    def note(self, found: Iterable[Violation]) -> None:
        """What else is wrong with it."""
        for violation in found:
            self._violation_count += 1
            if len(self._violations) < VIOLATIONS_MAX:
                self._violations.append(violation)

    def verdict(self) -> Verdict:
        """Once all is heard."""
        self.note(self._invariants.settle())
        types = self._types
        ends = {kind: types[kind] for kind in (JobSucceeded, JobFailed, JobExpired, JobCancelled)}
        return Verdict(
            entries=self._entries,
            events=types.total(),
            take_overs=self._take_overs,
            types=self._by_name(),
            jobs={
                "requested": types[JobRequested],
                **{kind.TYPE.split(".")[2]: many for kind, many in ends.items()},
                "open": len(self.partition.jobs),
            },
            commands={
                "accepted": self._answers,
                "duplicate": types[CommandDuplicated],
                "rejected": types[CommandRejected],
                "quarantined": types[InputQuarantined],
            },
            violations=self._violations,
            violation_count=self._violation_count,
        )

    def _count(self, entry: Entry) -> None:
        self._entries += 1
        types = self._types
        for event in entry.events:
            types[type(event)] += 1
        if command_of(entry.cause) is not None and type(entry.events[0]) not in _NO_ANSWERS:
            self._answers += 1
        if Unknown in types and any(type(event) is Unknown for event in entry.events):
            self._unknown.update(type_of(e) for e in entry.events if type(e) is Unknown)

    def _by_name(self) -> dict[str, int]:
        known = {k.TYPE: many for k, many in self._types.items() if k is not Unknown}  # type: ignore[union-attr]
        return dict(sorted((known | self._unknown).items()))


_NO_ANSWERS = frozenset({CommandDuplicated, CommandRejected, InputQuarantined})


def judged(
    items: Iterable[Item],
    number: int = 0,
    *,
    bounds: Bounds | None = None,
    patience_us: int = PATIENCE_US,
    home: Home | None = None,
) -> Verdict:
    """Of all that counts in a partition, from its beginning on."""
    judge = Judge(number, bounds=bounds, patience_us=patience_us, home=home)
    for item in items:
        judge.hear(item)
    return judge.verdict()
