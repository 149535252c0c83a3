"""What runtimes and claims would take now. In the owner's memory only: a new owner asks for it."""

from __future__ import annotations

from msgspec import Struct

from ledger.domain.commands import Asked, Beat, Claim
from ledger.domain.ids import JobId, Micros, QueueName, RuntimeId, Session, micros
from ledger.domain.runtimes import SILENT_PERIODS

CLAIMS_MAX = 10_000
"""Claims that one partition parks, at most; a claim beyond it is answered empty at once."""
RESEND_US = 1_000_000
"""An assignment that its runtime does not confirm is sent again after this."""


class Credit(Struct):
    """One runtime's last word on one queue."""

    runtime_id: RuntimeId
    session: Session
    types: tuple[str, ...]
    beat: int
    slots: int
    received: int
    heard_at: Micros
    period_us: int
    given: int
    """Number of the last assignment given to the session."""
    sent_at: Micros = Micros(0)
    """When assignments were last sent to it."""
    outstanding: dict[int, JobId] = {}
    """Assignments it has not confirmed, by number."""

    @property
    def free(self) -> int:
        """What it takes beyond the assignments that are on their way."""
        return self.slots - (self.given - self.received)

    def lapses_at(self) -> Micros:
        return Micros(self.heard_at + SILENT_PERIODS * self.period_us)


class Parked(Struct):
    """A claim that found nothing yet."""

    asked: Asked
    claim: Claim
    until: Micros


class Offers:
    """All credit and all parked claims of one partition."""

    def __init__(self) -> None:
        self._credits: dict[QueueName, dict[RuntimeId, Credit]] = {}
        self.parked: dict[str, Parked] = {}

    def hear(self, beat: Beat, at: Micros, given: int) -> Credit | None:
        """Take a beat in; None if a later one was heard before it. `given` is on record."""
        runtimes = self._credits.setdefault(beat.queue, {})
        known = runtimes.get(beat.runtime_id)
        if known is not None and known.session == beat.session:
            if beat.beat <= known.beat:
                return None
            known.types = beat.types
            known.beat, known.slots, known.received = beat.beat, beat.slots, beat.received
            known.heard_at, known.period_us = at, micros(beat.period_seconds)
            known.given = max(known.given, given)
            for number in [n for n in known.outstanding if n <= beat.received]:
                del known.outstanding[number]
            return known
        credit = Credit(
            beat.runtime_id,
            beat.session,
            beat.types,
            beat.beat,
            beat.slots,
            beat.received,
            at,
            micros(beat.period_seconds),
            given,
            outstanding={},
        )
        runtimes[beat.runtime_id] = credit
        return credit

    def drop(self, queue: QueueName, runtime_id: RuntimeId) -> None:
        self._credits.get(queue, {}).pop(runtime_id, None)

    def takers(self, queue: QueueName, at: Micros) -> list[Credit]:
        """Runtimes with a free slot, the emptiest first; lapsed credit is none."""
        runtimes = self._credits.get(queue)
        if not runtimes:
            return []
        takers = [c for c in runtimes.values() if c.free > 0 and at < c.lapses_at()]
        takers.sort(key=lambda credit: -credit.free)
        return takers

    def heard(self, queue: QueueName, runtime_id: RuntimeId) -> Credit | None:
        return self._credits.get(queue, {}).get(runtime_id)

    # --- Claims ----------------------------------------------------------------------------------
    def park(self, asked: Asked, claim: Claim, at: Micros) -> bool:
        if len(self.parked) >= CLAIMS_MAX and asked.command_id not in self.parked:
            return False
        until = Micros(at + micros(claim.wait_seconds))
        self.parked[asked.command_id] = Parked(asked, claim, until)
        return True

    def waiting(self, queue: QueueName) -> list[Parked]:
        return [parked for parked in self.parked.values() if queue in parked.claim.queues]

    def over(self, at: Micros) -> list[Parked]:
        """Claims whose wait has ended; they are parked no more."""
        ended = [parked for parked in self.parked.values() if parked.until <= at]
        for parked in ended:
            del self.parked[parked.asked.command_id]
        return ended

    def next_end(self) -> Micros | None:
        return min((parked.until for parked in self.parked.values()), default=None)
