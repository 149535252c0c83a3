"""Runtimes' sessions and the owner's real rules over a wire that loses, doubles and delays, with
owners that change and runtimes that freeze: on a virtual clock, by seed."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import Raw

from ledger.client.command_ids import new_session
from ledger.client.held import AskToStop, Begin, Ending, Held, Order, Stop, Why
from ledger.client.runtime_session import QueueSession
from ledger.domain.commands import (
    Asked,
    Beat,
    Command,
    ProgressSaid,
    Report,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    RequestJob,
    RetryAsk,
)
from ledger.domain.entries import TakeOver
from ledger.domain.events import AttemptExpired, JobSucceeded, LeaseGranted, RuntimeEnded
from ledger.domain.ids import SECOND, CommandId, Micros, QueueName, RuntimeId
from ledger.domain.job import Status
from ledger.domain.partition import Partition
from ledger.log.inbox import InboxRecord, inbox_from
from ledger.log.records import Outgoing
from ledger.log.topics import Topics
from processors.owner.credit import Offers
from processors.owner.release import Release
from processors.owner.seams import Seams
from processors.owner.turn import Turn

QUEUE = QueueName("q")
STEP = 0.01
JOBS = 25
SLOTS = 3
LEASE_SECONDS = 1.0
PERIOD_SECONDS = 0.3
FAULTY_SECONDS = 12.0
CALM_SECONDS = 60.0
TOPICS = Topics()


@dataclass
class Wire:
    """What may go wrong, by chance, until `calm`."""

    chance: Random
    calm: bool = False

    def hits(self, probability: float) -> bool:
        return not self.calm and self.chance.random() < probability

    def delay(self) -> float:
        return 0.0 if self.calm else self.chance.choice((0.0, 0.01, 0.05, 0.3))


class Owner:
    """One partition: whoever owns it now, and what its entries made of it."""

    def __init__(self, wire: Wire) -> None:
        self.partition = Partition(0)
        self.events: list[Any] = []
        self.away_until = 0.0
        self._wire = wire
        self._unread: list[Command] = []
        self._offset = 0
        self._terms = 0
        self.began(0.0)

    def began(self, now: float) -> list[tuple[str | None, InboxRecord]]:
        """A new owner: it knows what the log says, and of no free slot."""
        self._terms += 1
        self._offers = Offers()
        self._suppressed: Counter[tuple[str, ...]] = Counter()
        self.partition.take_over(TakeOver(f"n{self._terms}", micros(now), "ledger", 1))
        seams = SimpleNamespace(topics=TOPICS, source="owner", partitions=1)
        self._release = Release(cast(Seams, seams), self.partition, self._offers)
        self._release.inboxes.add(QUEUE)
        return self._mail(self._release.beat_again([QUEUE]))

    def append(self, command: Command) -> None:
        self._unread.append(command)

    def turn(self, now: float) -> list[tuple[str | None, InboxRecord]]:
        """What is released, to whom; None: to every runtime."""
        if now < self.away_until:
            return []
        at = micros(now)
        turn = Turn(
            self.partition,
            self._offers,
            at,
            fits=lambda _: True,
            suppressed=self._suppressed,
            bulk_todo={},
        )
        unread, self._unread = self._unread, []
        for command in unread:
            asked = Asked(
                command,
                command_id=CommandId(f"c{self._offset}"),
                appended_at=at,
                offset=self._offset,
            )
            self._offset += 1
            if isinstance(command, RequestJob):
                turn.read_request(asked)
            else:
                turn.read_command(asked)
        turn.timers(at, 1000)
        turn.silences()
        turn.assign()
        turn.finish()
        self.events += [event for entry in turn.entries for event in entry.events]
        if self._wire.hits(0.01):  # It dies between the append and its effects.
            self.away_until = now + self._wire.chance.uniform(0, 1.5)
            return self.began(now)
        return self._mail(self._release.records(turn.effects, at))

    def _mail(
        self, batches: dict[tuple[str, int], list[Outgoing]]
    ) -> list[tuple[str | None, InboxRecord]]:
        mail = []
        for (topic, partition), records in batches.items():
            for key, value, headers in records:
                read = SimpleNamespace(key=key, value=value, headers=headers)
                content = inbox_from(cast(Any, read))
                broadcast = key is None and partition > 0  # The same again for each partition.
                if topic == TOPICS.assigned(QUEUE) and content is not None and not broadcast:
                    mail.append((None if key is None else key.decode(), content))
        return mail


@dataclass
class Runtime:
    """A session and the handlers that it gives orders to."""

    name: str
    wire: Wire
    owner: Owner
    frozen_until: float = 0.0
    inbox: deque[tuple[float, InboxRecord]] = field(default_factory=deque)
    running: dict[Held, float] = field(default_factory=dict)
    """When each handler comes back."""

    def __post_init__(self) -> None:
        self.session = QueueSession(
            QUEUE,
            runtime_id=RuntimeId(self.name),
            session=new_session(),
            types=("work",),
            period_seconds=PERIOD_SECONDS,
            now=0.0,
        )
        self.session.open_inbox()

    def hear(self, content: InboxRecord, now: float) -> None:
        """In order; each may come twice."""
        at = max(now + self.wire.delay(), self.inbox[-1][0] if self.inbox else 0.0)
        self.inbox.extend([(at, content)] * (2 if self.wire.hits(0.1) else 1))

    def step(self, now: float) -> None:
        if now < self.frozen_until:
            return
        if self.wire.hits(0.002):
            self.frozen_until = now + self.wire.chance.uniform(0, 3 * LEASE_SECONDS)
            return
        self._obey(self.session.tick(now), now)
        while self.inbox and self.inbox[0][0] <= now:
            self._obey(self.session.take(self.inbox.popleft()[1], now), now)
        for held, ends_at in list(self.running.items()):
            if ends_at <= now:
                self._finish(held, self._word(held))
            elif self.wire.chance.random() < 0.02:
                self.session.progress(held, ProgressSaid(50.0), now)
        if self.session.due_at() <= now:
            self._speak(now)

    def _speak(self, now: float) -> None:
        said = self.session.speak(now, SLOTS - self.session.occupied)
        beat = said.beat if isinstance(said, Report) else said
        assert isinstance(beat, Beat)
        fails = self.wire.hits(0.1)
        if not fails or self.wire.hits(0.5):  # What fails may have landed.
            self.owner.append(said)
        if fails:
            self.session.unsaid(beat.beat)
        else:
            self.session.appended(beat.beat)

    def _obey(self, orders: list[Order], now: float) -> None:
        for order in orders:
            held = order.held
            match order:
                case Begin():
                    held.entered = True
                    seconds = self.wire.chance.choice((0.0, 0.0, 0.1, 0.5, 2.5))
                    self.running[held] = now + seconds
                case Stop(why=Why.LOST):
                    self._finish(held, None)
                case Stop():
                    self._finish(held, ReportedRelease(held.job_id, held.fence, "stopped"))
                case AskToStop():
                    self._finish(held, ReportedCancel(held.job_id, held.fence))

    def _finish(self, held: Held, word: Ending | None) -> None:
        if self.running.pop(held, None) is not None:
            self.session.finish(held, word)

    def _word(self, held: Held) -> Ending:
        match self.wire.chance.randrange(6):
            case 0:
                return ReportedFailure(held.job_id, held.fence, "NO")
            case 1:
                return ReportedRelease(held.job_id, held.fence)
            case _:
                return ReportedResult(held.job_id, held.fence, Raw(b"1"), None, "0" * 64)


class World:
    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.wire = Wire(Random(seed))
        self.owner = Owner(self.wire)
        self.runtimes = [Runtime(f"r{n}", self.wire, self.owner) for n in range(2)]
        retry = RetryAsk(max_attempts=1000, backoff_seconds=(0.0,))
        for _ in range(JOBS):
            self.owner.append(
                RequestJob(type="work", queue=QUEUE, lease_seconds=LEASE_SECONDS, retry=retry)
            )

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until and not (self.wire.calm and self.is_over):
            self.now += STEP
            for name, content in self.owner.turn(self.now):
                for runtime in self.runtimes:
                    if name in (None, runtime.name):
                        runtime.hear(content, self.now)
            for runtime in self.runtimes:
                runtime.step(self.now)
            self.check()

    @property
    def is_over(self) -> bool:
        done = [event for event in self.owner.events if isinstance(event, JobSucceeded)]
        return len(done) == JOBS and all(runtime.session.settled for runtime in self.runtimes)

    def check(self) -> None:
        """No job is worked on twice at once, but by a process that is frozen; no runtime is given
        more than it has slots for."""
        awake = [runtime for runtime in self.runtimes if runtime.frozen_until <= self.now]
        at_work = Counter(held.job_id for runtime in awake for held in runtime.running)
        assert max(at_work.values(), default=0) <= 1
        for runtime in self.runtimes:
            assert len(runtime.running) <= runtime.session.occupied <= SLOTS


def micros(seconds: float) -> Micros:
    return Micros(1_800_000_000 * SECOND + round(seconds * SECOND))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_every_job_is_done_once_whatever_the_wire_does(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 20):
        world = World(seed)
        world.run(FAULTY_SECONDS)
        world.wire.calm = True
        world.run(CALM_SECONDS)
        assert world.is_over, f"seed {seed}"
        jobs = [*world.owner.partition.jobs.values(), *world.owner.partition.closed.values()]
        assert [job.end for job in jobs] == [Status.SUCCEEDED] * JOBS, f"seed {seed}"
        assert all(runtime.session.occupied == 0 for runtime in world.runtimes), f"seed {seed}"
        seen.update(type(event).__name__ for event in world.owner.events)
    # A run that never reached the hard states would prove nothing.
    for hard in (AttemptExpired, LeaseGranted, RuntimeEnded):
        assert seen[hard.__name__] > 0
