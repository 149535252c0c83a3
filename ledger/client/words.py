"""What a runtime has to say of its jobs, until it is acknowledged: starts, progress, and the words
that end attempts. Instants are seconds of one monotonic clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from msgspec import UNSET

from ledger.client.held import Ending, Held
from ledger.domain.commands import (
    HeldLease,
    ProgressSaid,
    Reported,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedStart,
)
from ledger.log.inbox import BeatAnswered, ReportRefused

FACTS_MAX = 500
WORDS_BYTES_MAX = 160_000
"""Of one report: as many facts as fit one entry of the owner, and as many bytes as do with them."""
LEASES_MANY = 300
"""A beat of so many leases leaves less room for words."""
FACTS_MAX_BESIDE_MANY = 200
WORDS_BYTES_MAX_BESIDE_MANY = 64_000
START_SECONDS = 0.05
"""A job that runs for so long is said to have started; a shorter one by its result alone."""
PROGRESS_BYTES_MAX = 32_000
"""Of progress in one beat; what does not fit is said by the next."""
PROGRESS_SECONDS = 0.2
"""Progress is said at once, then at most so often."""
RESEND_PERIODS = 2
"""Words not acknowledged for so many periods are said again."""
RESEND_SECONDS_MAX = 60.0
ACKNOWLEDGED = -1
"""In place of the number of a beat of an earlier session."""
INVALID_OUTPUT = "INVALID_OUTPUT"
REFUSED_FOR_GOOD = frozenset({"VALIDATION_FAILED", "ENTRY_TOO_LARGE", "PAYLOAD_TOO_LARGE"})
"""Refusals of a result that saying it again cannot change: the attempt failed."""


class Words:
    """`to_say` with each beat, `acknowledged` with each answer, `unsaid` for what may be lost."""

    def __init__(self, period: float) -> None:
        self._waiting: deque[Held] = deque()
        """Whose word is still to be said."""
        self._said: deque[tuple[int, float, list[Held]]] = deque()
        """Words not acknowledged yet: the beat that came with them, when, and whose."""
        self._begun: deque[Held] = deque()
        """Whose start is still to be said, oldest first."""
        self._soon = inf
        """When a start or progress is to be said."""
        self._progressed_at = -inf
        self._resend_after = RESEND_PERIODS * period

    @property
    def due_at(self) -> float:
        return -inf if self._waiting else self._soon

    @property
    def resend_at(self) -> float:
        """When what was said is not heard any more."""
        return self._said[0][1] + self._resend_after if self._said else inf

    def due_by(self, at: float) -> None:
        """Something is to be said then at the latest."""
        self._soon = min(self._soon, at)

    def begin(self, held: Held) -> None:
        self._begun.append(held)

    def progress(self, held: Held, said: ProgressSaid, now: float) -> None:
        """The last word wins."""
        held.progress = said
        held.progress_in = 0
        self.due_by(max(now, self._progressed_at + PROGRESS_SECONDS))

    def end(self, held: Held, word: Ending) -> None:
        """The first word stands."""
        if held.word is None:
            held.word = word
            self._waiting.append(held)

    # --- Saying ----------------------------------------------------------------------------------
    def to_say(self, beat: int, now: float, leases: int) -> list[Reported]:
        """With this beat, of a runtime that holds so many leases."""
        many = leases - len(self._waiting) >= LEASES_MANY
        room = FACTS_MAX_BESIDE_MANY if many else FACTS_MAX
        bytes_left = WORDS_BYTES_MAX_BESIDE_MANY if many else WORDS_BYTES_MAX
        words: list[Reported] = []
        whose: list[Held] = []
        waiting = self._waiting
        while waiting:
            held = waiting[0]
            word = held.word
            assert word is not None
            facts, size = _weight_of(word)
            room -= facts
            bytes_left -= size
            if (bytes_left < 0 or room < 0) and words:
                break
            waiting.popleft()
            if not held.lost:
                held.said_in = beat
                words.append(word)
                whose.append(held)
        if whose:
            self._said.append((beat, now, whose))
        return words + self._starts_to_say(beat, now, room)

    def _starts_to_say(self, beat: int, now: float, room: int) -> list[Reported]:
        starts: list[Reported] = []
        begun = self._begun
        late = now - 0.9 * START_SECONDS
        while begun and len(starts) < room:
            held = begun[0]
            if held.runs and not held.started_in:
                if not held.entered or held.began_at is None or held.began_at > late:
                    break
                held.started_in = beat
                starts.append(ReportedStart(held.job_id, held.fence))
            begun.popleft()
        self._soon = inf
        if begun:
            began_at = begun[0].began_at or now
            # A handler that still waits for a busy loop is looked at with a later beat.
            if begun[0].entered or began_at > late:
                self._soon = began_at + START_SECONDS
        return starts

    def leases_to_say(
        self, beat: int, now: float, everyone: Iterable[Held], answered: int, *, is_full: bool
    ) -> list[HeldLease]:
        """All but those of whom the report that carries this beat says what became of them. Not
        `is_full`: of them those with progress to say, and those that cannot begin before an answer.
        """
        leases = []
        room = PROGRESS_BYTES_MAX
        for held in everyone:
            if held.said_in == beat:
                continue
            progress = held.progress
            if progress is not None:
                if held.progress_in and held.progress_in <= answered:
                    progress = held.progress = None
                else:
                    room -= 6 * len(progress.phase or "") + 6 * len(progress.message or "") + 50
                    if room < 0:
                        progress = None
                        self.due_by(now + PROGRESS_SECONDS)
                    elif not held.progress_in:
                        held.progress_in = beat
                        self._progressed_at = now
            if is_full or progress is not None or held.awaits_answer:
                leases.append(HeldLease(held.job_id, held.fence, progress))
        return leases

    # --- What became of it -----------------------------------------------------------------------
    def acknowledged(self, answer: BeatAnswered, period: float) -> list[Held]:
        """Those who are done with. An attempt whose result was refused for good failed: it has
        another word."""
        done: list[Held] = []
        refused = {
            (one.job_id, one.fence): one for one in answer.refused if one.code in REFUSED_FOR_GOOD
        }
        said = self._said
        while said and said[0][0] <= answer.beat:
            for held in said.popleft()[2]:
                no = refused.get((held.job_id, held.fence)) if refused else None
                if no is not None and isinstance(held.word, ReportedResult):
                    held.word = _failed_for(held, no)
                    held.said_in = 0
                    self._waiting.append(held)
                else:
                    done.append(held)
            self._resend_after = RESEND_PERIODS * period
        return done

    def resend(self, now: float) -> bool:
        """It is time to say it all again, each time a little later."""
        if now < self.resend_at:
            return False
        self._resend_after = min(2 * self._resend_after, RESEND_SECONDS_MAX)
        return True

    def unsaid(self, since: int, everyone: Iterable[Held]) -> None:
        """What was said with this beat and later ones is to be said again."""
        while self._said and self._said[-1][0] >= since:
            for held in reversed(self._said.pop()[2]):
                held.said_in = 0
                self._waiting.appendleft(held)
        starts = []
        for held in everyone:
            if held.started_in >= since:
                held.started_in = 0
                starts.append(held)
            if held.progress_in >= since:
                held.progress_in = 0
        self._begun.extendleft(reversed(starts))

    def renew(self, everyone: Iterable[Held]) -> None:
        """Beats are counted anew: what was answered stays so."""
        for held in everyone:
            held.progress_in = 0
            if held.started_in:
                held.started_in = ACKNOWLEDGED


def _weight_of(word: Reported) -> tuple[int, int]:
    """At most: facts that the owner records of it, and its bytes as JSON."""
    match word:
        case ReportedResult():
            return 2, 400 + (0 if word.output is UNSET else len(memoryview(word.output)))
        case ReportedFailure():
            details = 0 if word.details is UNSET else len(memoryview(word.details))
            return 3, 400 + 6 * len(word.message) + details
        case ReportedRelease():
            return 2, 300 + 6 * len(word.reason)
        case _:
            return 2, 250


def _failed_for(held: Held, refused: ReportRefused) -> ReportedFailure:
    return ReportedFailure(
        held.job_id,
        held.fence,
        INVALID_OUTPUT,
        f"the result was refused: {refused.code}: {refused.detail}"[:2048],
        retryable=False,
    )
