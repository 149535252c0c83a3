"""One partition's log, from its records to a report. No I/O: whoever reads hands records in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from ledger.audit.checked_entries import CheckedEntries
from ledger.domain.entries import Proven
from ledger.domain.invariants import PATIENCE_US, Violation
from ledger.domain.partition import Bounds
from ledger.domain.verdict import Judge, Verdict
from ledger.log.effective import Effective, TakenOver
from ledger.log.errors import LogBroken
from ledger.log.partitions import partition_of
from ledger.log.records import LogRecord


class Noted(Struct, frozen=True):
    """What somebody saw before: that entry, and the chain's hash up to it (hex)."""

    partition: int
    entry: int
    hash: str
    by: str
    """Who: in words."""


class Report(Struct):
    """Of one partition."""

    topic: str
    partition: int
    end: int
    """The offset behind what was read."""
    verdict: Verdict
    entry: int
    """The last that counts."""
    hash: str
    """The chain's up to it: whoever notes both can tell later that nothing before was changed."""
    ignored: dict[str, int]
    """Records that count for no reader, by reason."""
    broken: str = ""
    """Where the log is not what it was, and how; empty: nowhere."""
    broken_at: int | None = None
    """That offset. Nothing that lies behind it is checked."""

    @property
    def is_sound(self) -> bool:
        return not self.broken and not self.verdict.violation_count


class Beyond(Protocol):
    """What spans the whole log."""

    def hear(self, proven: Proven) -> None: ...
    def violations(self) -> Iterable[Violation]:
        """Once all is heard."""
        ...


class LogCheck:
    """Begins at the log's beginning, always: what is right depends on all that went before. With
    `told_from` only what lies behind that offset is counted, and said to be wrong."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        bounds: Bounds | None = None,
        patience_us: int = PATIENCE_US,
        told_from: int = 0,
        noted: Iterable[Noted] = (),
        beyond: Beyond | None = None,
    ) -> None:
        self._entries = CheckedEntries(topic, partition)
        self._judge = Judge(
            partition, bounds=bounds, patience_us=patience_us, home=self._partition_of
        )
        self._told_from = told_from
        self._noted = sorted(noted, key=lambda one: -one.entry)
        self._beyond = beyond
        self._broken: LogBroken | None = None

    def read(self, records: Iterable[LogRecord]) -> None:
        """Raises `LogBroken`."""
        for record in records:
            item = self._entries.feed(record)
            if item is not None:
                self._hear(item)

    def broke(self, error: LogBroken) -> None:
        """The reading ended with it."""
        self._broken = error

    def report(self, end: int, *, is_end: bool = True) -> Report:
        """`end`: the offset behind what was read; `is_end`: that is all that there is."""
        entries = self._entries
        if self._beyond is not None and self._broken is None:
            self._judge.note(self._beyond.violations())
        broken = self._broken or self._missing(end, is_end=is_end)
        cursor, ignored = entries.cursor, entries.ignored
        counts = {name: getattr(ignored, name) for name in ignored.__struct_fields__}
        return Report(
            topic=entries.topic,
            partition=entries.partition,
            end=end,
            verdict=self._judge.verdict(),
            entry=cursor.entry,
            hash=cursor.hash.hex(),
            ignored={name: count for name, count in counts.items() if count},
            broken="" if broken is None else str(broken),
            broken_at=None if broken is None else broken.offset,
        )

    def _hear(self, item: Effective) -> None:
        if isinstance(item, TakenOver):
            silently = item.offset < self._told_from
            return self._judge.hear(item.take_over, silently=silently)
        self._judge.hear(item, silently=item.first_offset < self._told_from)
        if self._beyond is not None:
            self._beyond.hear(item)
        if self._entries.misplaced:
            self._judge.note(
                Violation("I3", None, one.entry, one.what, one.offset)
                for one in self._entries.misplaced
                if one.offset >= self._told_from
            )
            self._entries.misplaced.clear()
        while self._noted and self._noted[-1].entry == item.entry.number:
            noted = self._noted.pop()
            if noted.hash != item.hash.hex():
                what = f"entry {noted.entry} is not the one that {noted.by} saw: another history"
                raise self._at(item.first_offset, what)

    def _missing(self, end: int, *, is_end: bool) -> LogBroken | None:
        try:
            self._entries.check_whole(is_end=is_end)
        except LogBroken as error:
            return error
        if is_end and self._noted:
            noted, last = self._noted[0], self._entries.cursor.entry
            what = f"the log ends with entry {last}, and {noted.by} saw {noted.entry}: cut off"
            return self._at(end, f"{what}, or rolled back")
        return None

    def _at(self, offset: int, what: str) -> LogBroken:
        return LogBroken(self._entries.topic, self._entries.partition, offset, what)

    def _partition_of(self, queue: str) -> int:
        """As the ledger's take-overs say."""
        return partition_of(queue, self._judge.partition.partitions)
