"""What a runtime and the owner of one queue say to each other, without I/O and without a clock.

`take` what the inbox holds, `finish` what handlers did, `tick` when time has passed: each returns
the orders for the handlers. `speak` makes the record that says what is news.
"""

from __future__ import annotations

from math import inf
from typing import assert_never

from ledger.client.beats import Beats
from ledger.client.held import AskToStop, Begin, Ending, Held, Order, Stop, Why, last_instant
from ledger.client.words import START_SECONDS, Words
from ledger.domain.brief import Brief
from ledger.domain.commands import Beat, ProgressSaid, Report, ReportedCancel, ReportedRelease
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId, Session
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
PERIOD_SECONDS_MIN = 0.1
BEATS_PER_LEASE = 3
LISTED_SECONDS = 1.0
"""Leases are listed by every beat, yet at most so often: a busy runtime reports, and so beats, many
times a second, and listing what it holds would cost it and the owner more than the jobs do."""


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
        self._beats = Beats(session, now)
        self._words = Words(period_seconds)
        self._held: dict[tuple[JobId, Fence], Held] = {}
        self._urgent = True
        self._listed_at = -inf
        """When a beat last listed all that is held."""
        self._look_at = inf
        """The earliest instant at which a lease or a grace may end here."""

    # --- What stands ------------------------------------------------------------------------------
    @property
    def session(self) -> Session:
        return self._beats.numbers.session

    @property
    def beat(self) -> int:
        return self._beats.numbers.beat

    @property
    def answered(self) -> int:
        return self._beats.answered

    @property
    def settled(self) -> bool:
        """Nothing is held, and nothing waits to be said or acknowledged."""
        return not self._held

    @property
    def is_served(self) -> bool:
        """An owner has answered since the inbox is read."""
        return self._open_since is not None and self.answered > self._open_since

    @property
    def outstanding(self) -> int:
        """Assignments that the owner may still make on what was offered to it."""
        return self._beats.outstanding

    @property
    def holdings(self) -> list[Held]:
        return list(self._held.values())

    @property
    def is_idle(self) -> bool:
        """It holds nothing, has nothing to say but that it lives, and its owner knows that."""
        return not (self._held or self._urgent) and self.answered >= self.beat

    def due_at(self) -> float:
        """When `speak` has something to say."""
        if self._urgent:
            return -inf
        return min(self._words.due_at, self._beats.due_at(self.period))

    def look_at(self) -> float:
        """When `tick` has something to look at."""
        return min(self._look_at, self._words.resend_at)

    # --- From the inbox --------------------------------------------------------------------------
    def open_inbox(self) -> None:
        """It is read from its end on: from now on slots may be offered."""
        if self._open_since is None:
            self._open_since = self.beat
        self._urgent = True

    def hurry(self) -> None:
        """There is something to say that only the caller knows, such as a slot."""
        self._urgent = True

    def offer(self, types: tuple[str, ...]) -> None:
        """Of these types from now on; a job of another that comes all the same is given back."""
        if types != self._types:
            self._types = types
            self._urgent = True

    def take(self, record: InboxRecord, now: float) -> list[Order]:
        match record:
            case Assigned():
                return self._assigned(record, now)
            case BeatAnswered():
                return self._beat_answered(record, now)
            case OwnerChanged():
                self._urgent = True
                self._listed_at = -inf
                return []
            case _:
                assert_never(record)

    def _assigned(self, record: Assigned, now: float) -> list[Order]:
        numbers = self._beats.of(record.session)
        if numbers is None:
            self._note_rival(record.session)
            return []
        orders: list[Order] = []
        for item in record.items:
            if item.number <= numbers.received:
                continue
            if item.number > numbers.received + 1:
                self._urgent = True  # The owner sends again what is missing, in order.
                break
            numbers.received = item.number
            self._words.due_by(now + START_SECONDS)
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
        elif held.worker_type not in self._types:
            self._give_back(held, f"this runtime has no handler for {held.worker_type}"[:2048])
        elif held.stops_at > now:
            self._begin(held, now, orders)
        else:
            # What is left counts from a beat too long ago: the answer to a new one tells.
            self._urgent = True

    def _begin(self, held: Held, now: float, orders: list[Order]) -> None:
        held.began_at = now
        if held.stops_at < self._look_at:
            self._look_at = held.stops_at
        self._words.begin(held)
        orders.append(Begin(held))

    def _beat_answered(self, record: BeatAnswered, now: float) -> list[Order]:
        numbers = self._beats.numbers
        if record.session != numbers.session or record.beat > numbers.beat:
            self._note_rival(record.session)
            return []
        self._beats.heard(record.beat)
        self.refusals += record.refused
        for done in self._words.acknowledged(record, self.period):
            self._held.pop((done.job_id, done.fence), None)
        orders: list[Order] = []
        asked_at = numbers.asked_at.get(record.beat)
        held_now = self._held
        if asked_at is not None:
            for left in record.leases:
                held = held_now.get((left.job_id, left.fence))
                if held is not None:
                    self._extend(held, asked_at + left.expires_in_seconds, now, orders)
            for asked in record.cancel:
                held = held_now.get((asked.job_id, asked.fence))
                if held is not None and held.cancel_at is None:
                    held.cancel_at = last_instant(asked_at, asked.deadline_in_seconds)
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
        self._words.end(held, word)

    def progress(self, held: Held, said: ProgressSaid, now: float) -> None:
        self._words.progress(held, said, now)

    def abandon(self) -> None:
        """Give back what still runs: nobody waits for its handler any more."""
        for held in self._held.values():
            if not held.lost:
                self._words.end(held, ReportedRelease(held.job_id, held.fence, Why.LEAVING.value))

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
        if self._words.resend(now):
            self.unsaid(1)
        return orders

    def _look_over(self, now: float, orders: list[Order]) -> None:
        soonest = inf
        for held in self._held.values():
            if not held.runs or held.stopped:
                continue
            if now < held.ends_at:
                soonest = min(soonest, held.ends_at)
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
        if self._beats.is_quiet(now, self.period):
            self._renew(now)
        number = self._beats.ask(now, self.period)
        self._urgent = False
        words = self._words.to_say(number, now, len(self._held))
        beat = self._beat_to_say(number, now, free, leaving=False)
        if not words:
            return beat
        return Report(self.runtime_id, self.session, self.queue, tuple(words), beat)

    def last_beat(self, now: float) -> Beat:
        """The last word of the session."""
        return self._beat_to_say(self._beats.ask(now, self.period), now, 0, leaving=True)

    def appended(self, beat: int) -> None:
        """The records of this beat are acknowledged by the brokers."""
        self._beats.appended(beat)

    def unsaid(self, since: int) -> None:
        """The records from this beat on may be lost: say it all again."""
        since = max(since, self.answered + 1)
        self._words.unsaid(since, self._held.values())
        self._urgent = True
        self._listed_at = -inf

    def _beat_to_say(self, number: int, now: float, free: int, *, leaving: bool) -> Beat:
        numbers = self._beats.numbers
        is_full = now >= self._listed_at + min(LISTED_SECONDS, self.period / 2)
        if is_full:
            self._listed_at = now
        held = self._held.values()
        leases = self._words.leases_to_say(number, now, held, self.answered, is_full=is_full)
        room_for_more = max(0, HELD_MAX - len(self._held))
        slots = max(0, min(free, room_for_more, SLOTS_MAX))
        if self.draining or self._open_since is None:
            slots = 0
        self.offered = slots
        self._beats.promise(number, slots)
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
        self.unsaid(1)
        self._words.renew(self._held.values())
        self._open_since = self._open_since and 0
        self._beats.renew(now)
