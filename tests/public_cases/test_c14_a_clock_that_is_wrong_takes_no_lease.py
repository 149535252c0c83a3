"""johanhaleby/occurrent #659 and kagkarlsson/db-scheduler #364: whether a lease has run out is
judged by another clock than the one that wrote it. A node whose clock is fast takes live leases.

Here only the instants in the log count. An owner whose clock is 90 s off, either way, begins where
the history ends, gives every lease a full period from then, and then counts as time passes: a
runtime that beats keeps its lease through any hand-over, and one that is silent does not lose it
before its time, but for the tenth by which clocks are drawn together (I8, I24). It may lose it
later: where a fast clock has written, time stands still until the broker's has caught up.
"""

from __future__ import annotations

from random import Random

import pytest

from ledger.domain.events import AttemptExpired, CommandsConsumed, Event
from ledger.domain.ids import SECOND, Micros
from ledger.domain.job import held_lease
from ledger.domain.steps import Lease
from processors.owner.term_clock import SLEW, TermClock
from tests.support.builders import JOB, QUEUE, heartbeat, leased, requested, started
from tests.support.clock import NOON
from tests.support.given import Owner, given

LEASE_SECONDS = 10
BEAT_SECONDS = 3
OFF_SECONDS = (-90, 0, 90)
"""By how much the clocks of three owners are wrong."""
LATE_SECONDS_MAX = 2 * LEASE_SECONDS + max(OFF_SECONDS)


class HandedAround:
    """One partition, to and fro. Real time goes by in seconds; the broker's clock is right."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        job = requested(lease_us=LEASE_SECONDS * SECOND, timeout_us=86_400 * SECOND)
        self.owner: Owner = given(job, leased(lease=LEASE_SECONDS), started(timeout=86_400)).owner
        self.now = int(NOON)
        self.heard_at = self.now
        self.hand_over()

    @property
    def lease(self) -> Lease:
        held = held_lease(self.owner.partition.jobs[JOB].steps[0])
        assert held is not None
        return held

    def hand_over(self) -> None:
        off = self.random.choice(OFF_SECONDS) * SECOND
        self.owner.clock.now = Micros(max(self.now + off, self.owner.partition.at))
        self.owner.take_over()
        last = self.owner.partition.at
        self.taken_over_at = self.appended_at = self.now
        self.clock = TermClock(
            lambda: self.now + off, lambda: self.now, last=last, appended_at=Micros(self.now)
        )

    def goes_on(self) -> tuple[Event, ...]:
        """One second later: what the owner writes by itself."""
        self.now += SECOND
        self._tell_time()
        return self.owner.fire()

    def beats(self) -> None:
        self._tell_time()
        self.owner.hear(self.owner.asked(heartbeat()))
        self.heard_at = self.now

    def _tell_time(self) -> None:
        """After a silence only an append shows that the broker's clock has gone on, too."""
        if self.clock.outruns(Micros(self.appended_at)):
            self.owner.clock.now = self.clock.read(Micros(self.appended_at))
            self.owner.append(CommandsConsumed(QUEUE, 0))
            self.appended_at = self.now
        self.owner.clock.now = self.clock.read(Micros(self.appended_at))


@pytest.mark.parametrize("seed", range(25))
def test_a_lease_lives_as_long_as_its_runtime_beats_and_no_longer(seed: int) -> None:
    partition = HandedAround(seed)
    for second in range(100):
        if partition.random.random() < 0.1:
            partition.hand_over()
        at = partition.owner.partition.at
        assert partition.goes_on() == ()
        until = partition.lease.until
        if second % BEAT_SECONDS == 0:
            partition.beats()
        assert partition.lease.until >= until
        assert partition.owner.partition.at >= at

    heard_at = max(partition.heard_at, partition.taken_over_at)
    while not (said := partition.goes_on()):
        assert partition.now < heard_at + LATE_SECONDS_MAX * SECOND
    assert isinstance(said[0], AttemptExpired)
    assert partition.now - heard_at >= (LEASE_SECONDS - 1) * SECOND * (SLEW - 1) // SLEW
