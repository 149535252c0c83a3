"""What a runtime and the owner of one queue say to each other, without I/O and without a clock.

`take` what the inbox holds, `finish` what handlers did, `tick` when time has passed: each returns
the orders for the handlers. `speak` makes the record that says what is news.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import assert_never

from msgspec import UNSET

from ledger.client.command_ids import new_session
from ledger.client.held import (
    MARGIN_SECONDS_MAX,
    AskToStop,
    Begin,
    Ending,
    Held,
    Order,
    Stop,
    Why,
)
from ledger.domain.brief import Brief
from ledger.domain.commands import (
    Beat,
    HeldLease,
    ProgressSaid,
    Report,
    Reported,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedStart,
)
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId, Session
from ledger.domain.runtimes import SILENT_PERIODS
from ledger.log.inbox import (
    Assigned,
    AssignedItem,
    BeatAnswered,
    InboxRecord,
    OwnerChanged,
    ReportRefused,
)

SLOTS_MAX = HELD_MAX = 800
"""Leases that one beat lists, at most: with all else its record stays below 256 KiB."""
FACTS_MAX = 500
WORDS_BYTES_MAX = 160_000
"""Of one report: as many facts as fit one entry of the owner, and as many bytes as do with them."""
LEASES_MANY = 300
"""A beat of so many leases leaves less room for words."""
FACTS_MAX_BESIDE_MANY = 200
WORDS_BYTES_MAX_BESIDE_MANY = 64_000
PROGRESS_BYTES_MAX = 32_000
"""Of progress in one beat; what does not fit is said by the next."""
START_SECONDS = 0.05
"""A job that runs for so long is said to have started; a shorter one by its result alone."""
PROGRESS_SECONDS = 0.2
"""Progress is said at once, then at most so often."""
PERIOD_SECONDS_MIN = 0.1
BEATS_PER_LEASE = 3
UNANSWERED_SECONDS = 1.0
"""A beat that is not answered is repeated after this, then after twice this, up to the period."""
RESEND_PERIODS = 2
"""Words not acknowledged for so many periods are said again."""
RESEND_SECONDS_MAX = 60.0
GRACE_PART = 0.1
"""Of the time to stop by oneself: so long before its end a handler is stopped."""
QUIET_PERIODS = SILENT_PERIODS - 0.5
"""After so many periods without an appended beat the owner may count the session as ended."""
ACKNOWLEDGED = -1
"""In place of the number of a beat of an earlier session."""
ASKED_MAX = 2_000
"""Beats whose time of sending is remembered."""
INVALID_OUTPUT = "INVALID_OUTPUT"
REFUSED_FOR_GOOD = frozenset({"VALIDATION_FAILED", "ENTRY_TOO_LARGE", "PAYLOAD_TOO_LARGE"})
"""Refusals of a result that saying it again cannot change: the attempt failed."""


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


class QueueSession:
    """One queue's side of a runtime. Instants are seconds of one monotonic clock."""

    def __init__(
        self,
        queue: QueueName,
        *,
        runtime_id: RuntimeId,
        session: Session,
        types: tuple[str, ...],
        period_seconds: float,
        now: float,
    ) -> None:
        self.queue = queue
        self.runtime_id = runtime_id
        self.period = period_seconds
        self.occupied = 0
        """Handlers that were given a job and have not come back."""
        self.offered = 0
        """Slots that the last beat offered."""
        self.draining = False
        self._open_since: int | None = None
        """The last beat before the inbox was read; slots are offered after it."""
        self.rival: Session | None = None
        """A later session of the same runtime id, which gets the assignments from now on."""
        self.refusals: list[ReportRefused] = []
        """What the owner refused since somebody last looked."""
        self._types = types
        self._numbers = Numbers(session)
        self._before: Numbers | None = None
        """The session before this one, whose assignments may still be on their way."""
        self._answered = 0
        self._patience = UNANSWERED_SECONDS
        self._held: dict[tuple[JobId, Fence], Held] = {}
        self._words: deque[Held] = deque()
        """Whose word is still to be said."""
        self._said: deque[tuple[int, float, list[Held]]] = deque()
        """Words not acknowledged yet: the beat that came with them, when, and whose."""
        self._begun: deque[Held] = deque()
        """Whose start is still to be said, oldest first."""
        self._promised: deque[tuple[int, int]] = deque(maxlen=ASKED_MAX)
        """By beat not yet answered, and the last answered: the number up to which it offers."""
        self._urgent = True
        self._soon = inf
        self._spoke_at = -inf
        self._appended_at = now
        self._progressed_at = -inf
        self._resend_after = RESEND_PERIODS * period_seconds
        self._look_at = inf
        """The earliest instant at which a lease or a grace may end here."""

    # --- What stands ------------------------------------------------------------------------------
    @property
    def session(self) -> Session:
        return self._numbers.session

    @property
    def beat(self) -> int:
        return self._numbers.beat

    @property
    def answered(self) -> int:
        return self._answered

    @property
    def settled(self) -> bool:
        """Nothing is held, and nothing waits to be said or acknowledged."""
        return not self._held

    @property
    def is_served(self) -> bool:
        """An owner has answered since the inbox is read."""
        return self._open_since is not None and self._answered > self._open_since

    @property
    def outstanding(self) -> int:
        """Assignments that the owner may still make on what was offered to it."""
        most = max((number for _, number in self._promised), default=0)
        return max(0, most - self._numbers.received)

    @property
    def holdings(self) -> list[Held]:
        return list(self._held.values())

    def due_at(self) -> float:
        """When `speak` has something to say."""
        if self._urgent or self._words:
            return -inf
        pause = self.period if self._answered >= self.beat else min(self._patience, self.period)
        return min(self._soon, self._spoke_at + pause)

    def look_at(self) -> float:
        """When `tick` has something to look at."""
        if not self._said:
            return self._look_at
        return min(self._look_at, self._said[0][1] + self._resend_after)

    # --- From the inbox --------------------------------------------------------------------------
    def open_inbox(self) -> None:
        """It is read from its end on: from now on slots may be offered."""
        if self._open_since is None:
            self._open_since = self.beat
        self._urgent = True

    def hurry(self) -> None:
        """There is something to say that only the caller knows, such as a slot."""
        self._urgent = True

    def take(self, record: InboxRecord, now: float) -> list[Order]:
        match record:
            case Assigned():
                return self._assigned(record, now)
            case BeatAnswered():
                return self._beat_answered(record, now)
            case OwnerChanged():
                self._urgent = True
                return []
            case _:
                assert_never(record)

    def _assigned(self, record: Assigned, now: float) -> list[Order]:
        numbers = self._numbers
        if record.session != numbers.session:
            if self._before is None or record.session != self._before.session:
                self._note_rival(record.session)
                return []
            numbers = self._before
        orders: list[Order] = []
        for item in record.items:
            if item.number <= numbers.received:
                continue
            if item.number > numbers.received + 1:
                self._urgent = True  # The owner sends again what is missing, in order.
                break
            numbers.received = item.number
            self._soon = min(self._soon, now + START_SECONDS)
            job = item.job  # None of a void one.
            if job is not None and (item.job_id, item.fence) not in self._held:
                self._hold(item, job, numbers.asked_at.get(item.beat, -inf), now, orders)
        return orders

    def _hold(
        self, item: AssignedItem, job: Brief, asked_at: float, now: float, orders: list[Order]
    ) -> None:
        """Hot, with `_assigned`: 2.3 us a job, after 1.4 to decode it."""
        held = Held(self, item.job_id, item.fence, item, job)
        self._held[item.job_id, item.fence] = held
        self.occupied += 1
        held.stops_at = asked_at + item.lease_seconds - held.margin
        if job.lease_seconds < self.period * BEATS_PER_LEASE:
            self.period = max(PERIOD_SECONDS_MIN, job.lease_seconds / BEATS_PER_LEASE)
        if self.draining:
            self._give_back(held, Why.LEAVING.value)
        elif job.type not in self._types:
            self._give_back(held, f"this runtime has no handler for {job.type}"[:2048])
        elif held.stops_at > now:
            self._begin(held, now, orders)
        else:
            # What is left counts from a beat too long ago: the answer to a new one tells.
            self._urgent = True

    def _begin(self, held: Held, now: float, orders: list[Order]) -> None:
        held.began_at = now
        if held.stops_at < self._look_at:
            self._look_at = held.stops_at
        self._begun.append(held)
        orders.append(Begin(held))

    def _beat_answered(self, record: BeatAnswered, now: float) -> list[Order]:
        numbers = self._numbers
        if record.session != numbers.session or record.beat > numbers.beat:
            self._note_rival(record.session)
            return []
        beat = record.beat
        if beat > self._answered:
            self._answered = beat
            self._patience = UNANSWERED_SECONDS
        while len(self._promised) > 1 and self._promised[1][0] <= beat:
            self._promised.popleft()
        self.refusals += record.refused
        refused = self._refused_results(record)
        self._acknowledge(beat, refused)
        orders: list[Order] = []
        asked_at = numbers.asked_at.get(beat)
        held_now = self._held
        if asked_at is not None:
            for left in record.leases:
                held = held_now.get((left.job_id, left.fence))
                if held is not None:
                    self._extend(held, asked_at + left.expires_in_seconds, now, orders)
            for asked in record.cancel:
                held = held_now.get((asked.job_id, asked.fence))
                if held is not None and held.cancel_at is None:
                    # So that the word of it is there in time.
                    grace = asked.deadline_in_seconds
                    held.cancel_at = asked_at + grace - min(MARGIN_SECONDS_MAX, grace * GRACE_PART)
                    self._look_at = min(self._look_at, held.cancel_at)
                    if held.runs:
                        orders.append(AskToStop(held, asked.reason, held.cancel_at))
                    elif held.word is None:
                        self.finish(held, ReportedCancel(held.job_id, held.fence))
        for dropped in record.drop:
            held = held_now.pop((dropped.job_id, dropped.fence), None)
            if held is not None:
                self._lose(held, orders)
        return orders

    def _note_rival(self, session: Session) -> None:
        if session > self.session:
            self.rival = session

    def _extend(self, held: Held, ends_at: float, now: float, orders: list[Order]) -> None:
        held.stops_at = max(held.stops_at, ends_at - held.margin)
        if held.began_at is not None or held.word is not None:
            return
        if held.stops_at > now:
            self._begin(held, now, orders)
        else:
            self._give_back(held, "too little is left of the lease")

    def _lose(self, held: Held, orders: list[Order]) -> None:
        held.lost = True
        if held.word is not None:
            return
        if held.began_at is None:
            self.occupied -= 1
            self._urgent = True
        else:
            orders.append(Stop(held, Why.LOST))

    def _refused_results(self, record: BeatAnswered) -> dict[tuple[JobId, Fence], ReportRefused]:
        return {
            (one.job_id, one.fence): one for one in record.refused if one.code in REFUSED_FOR_GOOD
        }

    def _acknowledge(self, beat: int, refused: dict[tuple[JobId, Fence], ReportRefused]) -> None:
        said = self._said
        held_now = self._held
        while said and said[0][0] <= beat:
            for held in said.popleft()[2]:
                key = (held.job_id, held.fence)
                if refused and key in refused and isinstance(held.word, ReportedResult):
                    held.word = _failed_for(held, refused[key])
                    held.said_in = 0
                    self._words.append(held)
                else:
                    held_now.pop(key, None)
            self._resend_after = RESEND_PERIODS * self.period

    # --- From the handlers -----------------------------------------------------------------------
    def finish(self, held: Held, word: Ending | None) -> None:
        """The handler has come back. None: it has nothing to say."""
        self.occupied -= 1
        if held.lost or word is None:
            # Its slot is free again, and the lease is nobody's news.
            held.lost = True
            self._held.pop((held.job_id, held.fence), None)
            self._urgent = True
            return
        self._end(held, word)

    def _end(self, held: Held, word: Ending) -> None:
        if held.word is None:
            held.word = word
            self._words.append(held)

    def progress(self, held: Held, said: ProgressSaid, now: float) -> None:
        """The last word wins."""
        held.progress = said
        held.progress_in = 0
        self._soon = min(self._soon, max(now, self._progressed_at + PROGRESS_SECONDS))

    def abandon(self) -> None:
        """Give back what still runs: nobody waits for its handler any more."""
        for held in self._held.values():
            if not held.lost:
                self._end(held, ReportedRelease(held.job_id, held.fence, Why.LEAVING.value))

    def drain(self) -> None:
        """Take nothing more."""
        self.draining = True
        self._urgent = True
        for held in list(self._held.values()):
            if held.began_at is None and held.word is None:
                self._give_back(held, Why.LEAVING.value)

    def _give_back(self, held: Held, reason: str) -> None:
        """Of a lease whose handler was not told to begin."""
        self.finish(held, ReportedRelease(held.job_id, held.fence, reason))

    # --- From the clock --------------------------------------------------------------------------
    def tick(self, now: float) -> list[Order]:
        orders: list[Order] = []
        if now >= self._look_at:
            self._look_over(now, orders)
        if self._said and now >= self._said[0][1] + self._resend_after:
            self._resend_after = min(2 * self._resend_after, RESEND_SECONDS_MAX)
            self.unsaid(1)
        return orders

    def _look_over(self, now: float, orders: list[Order]) -> None:
        soonest = inf
        for held in self._held.values():
            if not held.runs or held.stopped:
                continue
            ends_at = held.stops_at if held.cancel_at is None else held.cancel_at
            ends_at = min(ends_at, held.stops_at)
            if now < ends_at:
                soonest = min(soonest, ends_at)
                continue
            held.stopped = True
            why = Why.RAN_OUT if now >= held.stops_at else Why.GRACE_ENDED
            orders.append(Stop(held, why))
        self._look_at = soonest

    # --- Speaking --------------------------------------------------------------------------------
    def speak(self, now: float, free: int) -> Report | Beat:
        """What is news, with the beat; more of it may be due at once. `free`: slots to offer.

        Call `appended` or `unsaid` once it is known what became of the record.
        """
        if now - self._appended_at > QUIET_PERIODS * self.period:
            self._renew(now)
        if self._answered < self.beat and now >= self._spoke_at + self._patience:
            self._patience = min(2 * self._patience, max(self.period, UNANSWERED_SECONDS))
        number = self._numbers.ask(now)
        self._urgent = False
        self._spoke_at = now
        words = self._words_to_say(number, now)
        beat = self._beat_to_say(number, now, free, leaving=False)
        if not words:
            return beat
        return Report(self.runtime_id, self.session, self.queue, tuple(words), beat)

    def last_beat(self, now: float) -> Beat:
        """The last word of the session."""
        return self._beat_to_say(self._numbers.ask(now), now, 0, leaving=True)

    def appended(self, beat: int) -> None:
        """The records of this beat are acknowledged by the brokers."""
        self._appended_at = max(self._appended_at, self._numbers.asked_at.get(beat, -inf))

    def unsaid(self, since: int) -> None:
        """The records from this beat on may be lost: say it all again."""
        since = max(since, self._answered + 1)
        while self._said and self._said[-1][0] >= since:
            for held in reversed(self._said.pop()[2]):
                held.said_in = 0
                self._words.appendleft(held)
        starts = []
        for held in self._held.values():
            if held.started_in >= since:
                held.started_in = 0
                starts.append(held)
            if held.progress_in >= since:
                held.progress_in = 0
        self._begun.extendleft(reversed(starts))
        self._urgent = True

    def _words_to_say(self, number: int, now: float) -> list[Reported]:
        many = len(self._held) - len(self._words) >= LEASES_MANY
        room = FACTS_MAX_BESIDE_MANY if many else FACTS_MAX
        bytes_left = WORDS_BYTES_MAX_BESIDE_MANY if many else WORDS_BYTES_MAX
        words: list[Reported] = []
        whose: list[Held] = []
        waiting = self._words
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
                held.said_in = number
                words.append(word)
                whose.append(held)
        if whose:
            self._said.append((number, now, whose))
        return words + self._starts_to_say(number, now, room)

    def _starts_to_say(self, number: int, now: float, room: int) -> list[Reported]:
        starts: list[Reported] = []
        begun = self._begun
        late = now - 0.9 * START_SECONDS
        while begun and len(starts) < room:
            held = begun[0]
            if held.runs and not held.started_in:
                if not held.entered or held.began_at is None or held.began_at > late:
                    break
                held.started_in = number
                starts.append(ReportedStart(held.job_id, held.fence))
            begun.popleft()
        self._soon = inf
        if begun:
            began_at = begun[0].began_at or now
            # A handler that still waits for a busy loop is looked at with a later beat.
            if begun[0].entered or began_at > late:
                self._soon = began_at + START_SECONDS
        return starts

    def _beat_to_say(self, number: int, now: float, free: int, *, leaving: bool) -> Beat:
        numbers = self._numbers
        leases = []
        room = PROGRESS_BYTES_MAX
        for held in self._held.values():
            if held.said_in == number:
                continue  # The report that carries this beat says what became of it.
            progress = held.progress
            if progress is not None:
                if held.progress_in and held.progress_in <= self._answered:
                    progress = held.progress = None
                else:
                    room -= 6 * len(progress.phase or "") + 6 * len(progress.message or "") + 50
                    if room < 0:
                        progress = None
                        self._soon = min(self._soon, now + PROGRESS_SECONDS)
                    elif not held.progress_in:
                        held.progress_in = number
                        self._progressed_at = now
            leases.append(HeldLease(held.job_id, held.fence, progress))
        room_for_more = max(0, HELD_MAX - len(self._held))
        slots = max(0, min(free, room_for_more, SLOTS_MAX))
        if self.draining or self._open_since is None:
            slots = 0
        self.offered = slots
        self._promised.append((number, numbers.received + slots))
        return Beat(
            runtime_id=self.runtime_id,
            session=numbers.session,
            queue=self.queue,
            beat=number,
            types=self._types,
            slots=slots,
            received=numbers.received,
            leases=tuple(leases),
            period_seconds=self.period,
            leaving=leaving,
        )

    def _renew(self, now: float) -> None:
        """The owner may have ended this session as silent. What is held is held by its fence."""
        self._before = self._numbers
        self._numbers = Numbers(new_session(after=self.session))
        self.unsaid(1)
        for held in self._held.values():
            held.progress_in = 0
            if held.started_in:
                held.started_in = ACKNOWLEDGED
        self._answered = 0
        self._open_since = self._open_since and 0
        self._patience = UNANSWERED_SECONDS
        self._promised.clear()
        self._appended_at = now


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
