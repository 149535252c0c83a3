"""The beats of a runtime's session: their numbers, what they offered, which of them are answered.
Instants are seconds of one monotonic clock."""

from __future__ import annotations

from collections import deque
from math import inf

from ledger.client.command_ids import new_session
from ledger.domain.ids import SECOND, Micros, Session
from ledger.domain.runtimes import SILENT_PERIODS

UNANSWERED_SECONDS = 1.0
"""A beat that is not answered is repeated after this, then after twice this, up to the period."""
QUIET_PERIODS = SILENT_PERIODS - 0.5
"""After so many periods without an appended beat the owner may count the session as ended."""
ASKED_MAX = 2_000
"""Beats whose time of sending is remembered."""
TIDY_PERIOD_SECONDS = 2.0
"""From this on an idle session beats when others of its period do."""


def with_others(instant: float, now: float, wall: Micros, period: float) -> float:
    """The nearest instant at which idle runtimes of this period beat: twice in a period, by the
    wall clock.

    Their owner hears half of them together, in one turn, which costs it as much as fifty beats;
    its answers are one batch an inbox.
    """
    steps = (wall / SECOND + instant - now) * 2 / period
    return instant + (round(steps) - steps) * period / 2


class Numbers:
    """Of one session: the last assignment taken, the last beat sent, and when each was."""

    __slots__ = ("asked_at", "beat", "received", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.received = 0
        self.beat = 0
        self.asked_at: dict[int, float] = {}

    def ask(self, now: float) -> int:
        self.beat += 1
        self.asked_at[self.beat] = now
        if len(self.asked_at) > ASKED_MAX:
            del self.asked_at[next(iter(self.asked_at))]
        return self.beat


class Beats:
    """`ask` before each beat, `appended` once the brokers have it, `heard` with each answer."""

    def __init__(self, session: Session, now: float) -> None:
        self.numbers = Numbers(session)
        self.answered = 0
        """The last beat that was."""
        self._before: Numbers | None = None
        """The session before this one, whose assignments may still be on their way."""
        self._patience = UNANSWERED_SECONDS
        self._promised: deque[tuple[int, int]] = deque(maxlen=ASKED_MAX)
        """By beat not yet answered, and the last answered: the number up to which it offers."""
        self._asked_at = -inf
        self._appended_at = now

    def of(self, session: Session) -> Numbers | None:
        """Those that an assignment counts by; None if it is nobody's here."""
        if session == self.numbers.session:
            return self.numbers
        before = self._before
        return before if before is not None and session == before.session else None

    @property
    def outstanding(self) -> int:
        """Assignments that the owner may still make on what was offered to it."""
        most = max((number for _, number in self._promised), default=0)
        return max(0, most - self.numbers.received)

    def due_at(self, period: float) -> float:
        """When the last one is to be repeated."""
        if self.answered >= self.numbers.beat:
            return self._asked_at + period
        return self._asked_at + min(self._patience, period)

    def is_quiet(self, now: float, period: float) -> bool:
        """The owner may have ended this session as silent."""
        return now - self._appended_at > QUIET_PERIODS * period

    def ask(self, now: float, period: float) -> int:
        """The number of the next one."""
        if self.answered < self.numbers.beat and now >= self._asked_at + self._patience:
            self._patience = min(2 * self._patience, max(period, UNANSWERED_SECONDS))
        self._asked_at = now
        return self.numbers.ask(now)

    def promise(self, beat: int, slots: int) -> None:
        """It offers so many slots beyond what was received."""
        self._promised.append((beat, self.numbers.received + slots))

    def appended(self, beat: int) -> None:
        self._appended_at = max(self._appended_at, self.numbers.asked_at.get(beat, -inf))

    def heard(self, beat: int) -> None:
        """Its answer has come."""
        if beat > self.answered:
            self.answered = beat
            self._patience = UNANSWERED_SECONDS
        while len(self._promised) > 1 and self._promised[1][0] <= beat:
            self._promised.popleft()

    def renew(self, now: float) -> None:
        """A session behind this one."""
        self._before = self.numbers
        self.numbers = Numbers(new_session(after=self.numbers.session))
        self.answered = 0
        self._patience = UNANSWERED_SECONDS
        self._promised.clear()
        self._appended_at = now
