"""The clock of a term: the only one that a partition's history sees."""

from __future__ import annotations

from collections.abc import Callable

from ledger.domain.ids import SECOND, Micros

SLEW = 10
"""The clock follows the wall clock by at most 1/SLEW of the time that passed."""
AHEAD_MAX = 5 * SECOND
"""It never runs further than this past the newest append time that the brokers acknowledged."""
FOLLOWED_MAX = 2 * SECOND
"""It follows no wall clock further than this past the brokers': the rest is for the time since the
newest append, or each turn would have to ask for another."""


class TermClock:
    """Moves with the monotonic clock from the later of wall clock and last instant of the history:
    it never jumps, never stands still, never goes back. `wall` and `monotonic` give microseconds.

    A history that is further ahead of the brokers than any wall clock may lead (an owner before had
    an hour too much) keeps its lead, and loses it slowly.
    """

    __slots__ = (
        "_at",
        "_confirmed",
        "_confirmed_at",
        "_lead",
        "_measured",
        "_monotonic",
        "_said",
        "_wall",
    )

    def __init__(
        self,
        wall: Callable[[], int],
        monotonic: Callable[[], int],
        *,
        last: Micros,
        appended_at: Micros,
    ) -> None:
        """`appended_at`: the brokers' clock at the take-over."""
        self._wall = wall
        self._monotonic = monotonic
        self._measured = self._confirmed_at = monotonic()
        self._confirmed = int(appended_at)
        self._lead = max(0, last - appended_at - FOLLOWED_MAX) + AHEAD_MAX
        self._at = max(min(wall(), appended_at + FOLLOWED_MAX), last)
        """Runs on by itself, also while what is said has to wait for the broker."""
        self._said = int(last)

    def read(self, appended_at: Micros) -> Micros:
        """Now, given the broker's clock at the newest append. Call it once a turn."""
        self.confirm(appended_at)
        measured = self._monotonic()
        passed = max(0, measured - self._measured)
        self._measured = measured
        followed = min(self._wall(), self._brokers(measured) + FOLLOWED_MAX)
        away = followed - (self._at + passed)
        moved = passed + max(-passed // SLEW, min(passed // SLEW, away))
        self._at += max(moved, 1)
        self._said = max(self._said, min(self._at, self._confirmed + self._lead))
        return Micros(self._said)

    def confirm(self, appended_at: Micros) -> None:
        """The brokers' clock says so now: of an append that was just acknowledged. Told later, it
        would make that clock seem to lag."""
        if appended_at > self._confirmed:
            self._confirmed, self._confirmed_at = int(appended_at), self._monotonic()

    def running(self) -> Micros:
        """What it would say if the broker had confirmed it: to know when to ask for that."""
        return Micros(self._at + max(0, self._monotonic() - self._measured))

    def outruns(self, appended_at: Micros) -> bool:
        """Whether the broker has not confirmed the time for so long that the clock has to wait: an
        append, of whatever, sets it free."""
        return self.running() > max(appended_at, self._confirmed) + self._lead

    @property
    def ahead(self) -> int:
        """Microseconds from the brokers' clock to this one, negative where this one is behind: what
        they stamp is an instant of theirs."""
        return self._at - self._brokers(self._measured)

    def _brokers(self, measured: int) -> int:
        return self._confirmed + max(0, measured - self._confirmed_at)
