"""What other readers pass over in silence, and a verifier may not: that something is missing.

A reader ignores what does not continue the sequence, since an append that was lost may leave such a
hole. Then its owner takes over again: it read the log with the hole in it, and goes on behind the
last entry that counts. A hole that nobody has gone on from so was not there when the owner read:
records were taken away, or moved.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ledger.domain.entries import Proven
from ledger.domain.events import JOB_EVENTS, key_of, type_of
from ledger.log.effective import EffectiveEntries, TakenOver
from ledger.log.errors import LogBroken
from ledger.log.records import LogRecord

_KEYS = slice(3, None, 11)
"""Of the records in what is hashed."""


class Hole(Struct, frozen=True):
    offset: int
    """Of the first record that does not follow on what is there."""
    what: str


class Misplaced(Struct, frozen=True):
    """A record under another key than its event's (I3)."""

    entry: int
    offset: int
    """Of the entry's first record."""
    what: str


class CheckedEntries(EffectiveEntries):
    """Raises `ChainBroken` as its base does."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition)
        self.misplaced: list[Misplaced] = []
        """Since whoever reads this emptied it."""
        self._hole: Hole | None = None
        self._taken_with: Hole | None = None
        """A hole that was there when the owner in force took over."""
        self._certain: Hole | None = None
        """One that no owner could have left."""

    def check_whole(self, *, is_end: bool = True) -> None:
        """Raises `LogBroken` at the first hole that nobody went on from. `is_end`: nothing follows
        on what was read."""
        found = [hole for hole in (self._certain, self._hole) if hole is not None]
        if not found and is_end and self._seen:
            what = f"entry {self._entry + 1} is cut off after {self._seen} of {self._count} records"
            found = [Hole(self._first_offset, what)]
        if found:
            first = min(found, key=lambda hole: hole.offset)
            raise LogBroken(self.topic, self.partition, first.offset, first.what)

    def _begin(self, ledger: bytes, time: bytes, offset: int) -> bytes | None:
        ignored = self.ignored
        foreign, torn, gaps = ignored.foreign, ignored.torn, ignored.out_of_sequence
        bare = super()._begin(ledger, time, offset)
        following = self._entry + 1
        if ignored.torn != torn:
            self._found(offset, f"a record of entry {following} is not where it belongs")
        elif ignored.out_of_sequence != gaps and (number := _number(ledger)) > following:
            self._found(
                offset, f"entry {number} follows on {self._entry}: what lay between is gone"
            )
        elif ignored.foreign != foreign and _number(ledger) == following:
            nonce = ledger.split(b";")[2].decode(errors="replace")
            if nonce not in self._nonces and self._certain is None:
                what = f"entry {following} is of a writer whose take-over is gone"
                self._certain = Hole(offset, what)
        return bare

    def _found(self, offset: int, what: str) -> None:
        """An owner that took the log over with a hole, and leaves one itself, saw another log."""
        self._hole = self._hole or self._taken_with or Hole(offset, what)

    def _complete(self, offset: int, said: bytes) -> Proven:
        keys = self._fields[_KEYS]
        proven = super()._complete(offset, said)
        self._taken_with = None
        event: Any
        for key, event in zip(keys, proven.entry.events, strict=True):
            about = event.job_id if type(event) in _JOB_KINDS else key_of(event)
            if key != about.encode():
                what = f"{type_of(event)} under the key {key.decode(errors='replace')!r}"
                self.misplaced.append(Misplaced(proven.entry.number, proven.first_offset, what))
        return proven

    def _taken_over(self, record: LogRecord) -> TakenOver | None:
        found = super()._taken_over(record)
        if found is not None:
            self._taken_with, self._hole = self._hole or self._taken_with, None
        return found


def _number(ledger: bytes) -> int:
    digits = ledger.partition(b";")[0]
    return int(digits) if digits.isdigit() else 0


_JOB_KINDS = frozenset(JOB_EVENTS)
