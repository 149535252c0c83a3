"""The clock of a term: the only one that a partition's history sees."""

from __future__ import annotations

from collections.abc import Callable

from ledger.domain.ids import SECOND, Micros

SLEW = 10
"""The clock follows the wall clock by at most 1/SLEW of the time that passed."""
AHEAD_MAX = 5 * SECOND
"""It never runs further than this past the newest append time that the broker acknowledged."""


class TermClock:
    """Moves with the monotonic clock from max(wall clock, last instant of the history): it never
    jumps, never goes back. `wall` and `monotonic` give microseconds."""

    __slots__ = ("_at", "_measured", "_monotonic", "_said", "_wall")

    def __init__(
        self, wall: Callable[[], int], monotonic: Callable[[], int], *, last: Micros
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._measured = monotonic()
        self._at = max(wall(), last)
        """Runs on by itself, also while what is said has to wait for the broker."""
        self._said = int(last)

    def read(self, appended_at: Micros) -> Micros:
        """Now, given the broker's clock at the newest append. Call it once a turn."""
        measured = self._monotonic()
        passed = max(0, measured - self._measured)
        self._measured = measured
        away = self._wall() - (self._at + passed)
        moved = passed + max(-passed // SLEW, min(passed // SLEW, away))
        self._at += max(moved, 1)
        self._said = max(self._said, min(self._at, appended_at + AHEAD_MAX))
        return Micros(self._said)

    def running(self) -> Micros:
        """What it would say if the broker had confirmed it: to know when to ask for that."""
        return Micros(self._at + max(0, self._monotonic() - self._measured))

    def outruns(self, appended_at: Micros) -> bool:
        """Whether the broker has not confirmed the time for so long that the clock has to wait: an
        append, of whatever, sets it free."""
        return self.running() > appended_at + AHEAD_MAX
