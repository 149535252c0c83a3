"""What runtimes and claims would take now. In the owner's memory only: a new owner asks for it."""

from __future__ import annotations

from itertools import islice

from msgspec import Struct

from ledger.domain.commands import GATEWAY_BEAT_SECONDS, Asked, Beat, Claim, GatewayBeat
from ledger.domain.events import LeaseGranted
from ledger.domain.ids import CommandId, JobId, Micros, QueueName, RuntimeId, Session, micros
from ledger.domain.job import Job, Lease, Step, held_lease
from ledger.domain.runtimes import SILENT_PERIODS, silent_at

CLAIMS_MAX = 10_000
"""Claims that one partition parks, at most; a claim beyond it is answered empty at once. As many
may be granted and not confirmed; of those beyond it the lease alone decides."""
GATEWAYS_MAX = 10_000
"""Addresses that are known to beat: the latest so many."""
LISTED_US = SILENT_PERIODS * micros(GATEWAY_BEAT_SECONDS)
"""How long a gateway's word on a claim holds."""
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
        return silent_at(self.heard_at, self.period_us)


def leased_under(job: Job, credit: Credit, number: int) -> tuple[Step, Lease] | None:
    """What the session was given under this number, where it is still leased to it."""
    for step in job.steps:
        lease = held_lease(step)
        if lease and lease.session == credit.session and lease.number == number:
            return step, lease
    return None


class Parked(Struct):
    """A claim that found nothing yet."""

    asked: Asked
    claim: Claim
    until: Micros
    listed_until: Micros
    """Its gateway said that it waits: by sending it, and by its beats."""


class Unconfirmed(Struct, frozen=True):
    """What a claim was granted, while its gateway has not said that it was handed over."""

    grants: tuple[LeaseGranted, ...]
    until: Micros


class Offers:
    """All credit and all claims of one partition that wait, or wait to be confirmed."""

    def __init__(self) -> None:
        self._credits: dict[QueueName, dict[RuntimeId, Credit]] = {}
        self.parked: dict[str, Parked] = {}
        self._unconfirmed: dict[str, Unconfirmed] = {}
        """In the order of their ends."""
        self._gateways: dict[str, None] = {}
        """Reply addresses that were heard to beat, the latest last: only theirs is silence."""

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

    def doubt(self, queue: QueueName, runtime_id: RuntimeId, session: Session) -> None:
        """It has no credit until its next beat."""
        known = self._credits.get(queue, {}).get(runtime_id)
        if known is not None and known.session == session:
            known.slots = 0

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
    def park(self, asked: Asked, claim: Claim, at: Micros, heard_at: Micros) -> bool:
        if len(self.parked) >= CLAIMS_MAX and asked.command_id not in self.parked:
            return False
        until = Micros(at + micros(claim.wait_seconds))
        listed_until = Micros(heard_at + LISTED_US)
        self.parked[asked.command_id] = Parked(asked, claim, until, listed_until)
        return True

    def waiting(self, queue: QueueName, at: Micros) -> list[Parked]:
        """Claims on that queue whose callers still wait, as far as anybody knows."""
        return [
            parked
            for parked in self.parked.values()
            if queue in parked.claim.queues
            and (at < parked.listed_until or parked.asked.reply_to not in self._gateways)
        ]

    def over(self, at: Micros) -> list[Parked]:
        """Claims whose wait has ended; they are parked no more."""
        ended = [parked for parked in self.parked.values() if parked.until <= at]
        for parked in ended:
            del self.parked[parked.asked.command_id]
        return ended

    def hear_gateway(self, beat: GatewayBeat, gateway: str, at: Micros, heard_at: Micros) -> None:
        """`gateway` is its reply address."""
        self._gateways.pop(gateway, None)
        self._gateways[gateway] = None
        if len(self._gateways) > GATEWAYS_MAX:
            del self._gateways[next(iter(self._gateways))]
        for command_id in beat.handed_over:
            self._unconfirmed.pop(command_id, None)
        for command_id in beat.given_up:
            parked = self.parked.get(command_id)
            # A keyed claim that was repeated elsewhere waits for another gateway now.
            if parked is not None and parked.asked.reply_to == gateway:
                del self.parked[command_id]
        for command_id in beat.waiting:
            if parked := self.parked.get(command_id):
                parked.listed_until = Micros(heard_at + LISTED_US)
            self._prolong(command_id, at)

    def granted(self, asked: Asked, grants: tuple[LeaseGranted, ...], at: Micros) -> None:
        """A claim was answered. `grants` are new: without any, it got nothing, or what it had."""
        if not grants:
            self._prolong(asked.command_id, at)
        elif asked.reply_to in self._gateways and len(self._unconfirmed) < CLAIMS_MAX:
            self._unconfirmed[asked.command_id] = Unconfirmed(grants, Micros(at + LISTED_US))

    def _prolong(self, command_id: CommandId, at: Micros) -> None:
        known = self._unconfirmed.pop(command_id, None)
        if known is not None:
            self._unconfirmed[command_id] = Unconfirmed(known.grants, Micros(at + LISTED_US))

    def unconfirmed_over(self, at: Micros, many: int) -> list[LeaseGranted]:
        """What up to `many` claims were granted and nobody confirmed in time: asked for once."""
        over: list[LeaseGranted] = []
        for command_id, unconfirmed in list(islice(self._unconfirmed.items(), many)):
            if unconfirmed.until > at:
                break
            del self._unconfirmed[command_id]
            over += unconfirmed.grants
        return over

    def next_unconfirmed(self) -> Micros | None:
        first = next(iter(self._unconfirmed.values()), None)
        return None if first is None else first.until

    def next_end(self) -> Micros | None:
        return min((parked.until for parked in self.parked.values()), default=None)
