"""Rules read as sentences: `given(requested(), leased()).when(start()).then(started())`; and asked
again, nothing new. Every step is checked against the invariants.

`Owner` is the smallest thing that decides and applies, in place of the real one's intakes, log and
clock.
"""

from __future__ import annotations

from msgspec import Struct

from ledger.domain import runtimes
from ledger.domain.commands import Asked, Command, RequestJob
from ledger.domain.decide import Decided, Decision, decide, defer, due
from ledger.domain.entries import GRANT, TIMER, Entry, TakeOver, cause_of
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    CommandDuplicated,
    CommandRejected,
    Event,
    LeaseGranted,
)
from ledger.domain.ids import CommandId, JobId, Micros, QueueName, RuntimeId, Session
from ledger.domain.invariants import Invariants
from ledger.domain.job import Job
from ledger.domain.partition import Bounds, Partition
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.schedules import Edit, fire
from tests.support.builders import JOB, QUEUE, Fact
from tests.support.clock import Clock, Pause

TIMERS_MAX = 1000


class Owner:
    def __init__(self, bounds: Bounds | None = None) -> None:
        self.partition = Partition(0, bounds or Bounds())
        self.invariants = Invariants(self.partition, patience_us=0)
        self.clock = Clock()
        self.entries: list[Entry | TakeOver] = []
        """All that it appended, for whoever folds it once more."""
        self._asked = 0

    # --- Its log ---------------------------------------------------------------------------------
    def append(self, *events: Event, cause: str = TIMER, actor: str = "", request: int = 0) -> None:
        """Raises AssertionError where the entry breaks an invariant."""
        if not events:
            return
        partition = self.partition
        entry = Entry(
            number=partition.entry + 1,
            at=self.clock.now,
            commands=partition.commands,
            requests=max(partition.requests, request),
            events=events,
            actor=actor,
            cause=cause,
        )
        self.entries.append(entry)
        violations = self.invariants.check(entry)
        assert not violations, violations

    def take_over(self) -> None:
        record = TakeOver(f"n{len(self.entries)}", self.clock.now, "test", 1)
        self.entries.append(record)
        violations = self.invariants.take_over(record)
        assert not violations, violations

    def settle(self) -> None:
        violations = self.invariants.settle()
        assert not violations, violations

    def folded_anew(self) -> Partition:
        """What a reader knows that folds the same entries in one go."""
        reader = Partition(self.partition.number, self.partition.bounds)
        for entry in self.entries:
            if isinstance(entry, TakeOver):
                reader.take_over(entry)
            else:
                reader.apply(entry)
        return reader

    # --- What it is asked ------------------------------------------------------------------------
    def asked(self, command: Command, command_id: str | None = None) -> Asked:
        self._asked += 1
        return Asked(
            command,
            CommandId(command_id or f"cmd-{self._asked}"),
            actor="tester",
            sent_at=self.clock.now,
            appended_at=self.clock.now,
            offset=self.partition.requests,
        )

    def hear(self, asked: Asked) -> Decision:
        """Decide, and record the outcome as the owner does: facts, a duplicate, or a refusal."""
        self.before(asked)
        decision = decide(self.partition, asked, self.clock.now)
        self.record(asked, decision)
        return decision

    def record(self, asked: Asked, decision: Decision) -> None:
        cause = cause_of(asked.command_id, awaited=True)
        is_request = isinstance(asked.command, RequestJob)
        request = asked.offset + 1 if is_request else 0
        if isinstance(decision, Rejected):
            events: tuple[Event, ...] = (refusal(asked, decision),)
        else:
            refused = tuple(refusal(asked, one) for one in decision.refused)
            events = decision.events + refused
            if not events and (decision.replayed or is_request):
                kind = asked.command.TYPE
                events = (CommandDuplicated(QUEUE, asked.command_id, kind, decision.job_id),)
        self.append(*events, cause=cause, actor=asked.actor, request=request)
        if isinstance(decision, Decided):
            defer(self.partition, asked.command, self.clock.now)

    # --- What it does by itself ------------------------------------------------------------------
    def fire(self) -> tuple[Event, ...]:
        """All that has fallen due."""
        partition, now = self.partition, self.clock.now
        said: list[Event] = []
        for job in partition.due(now, TIMERS_MAX):
            events = due(partition, job, now)
            self.append(*events)
            said += events
            if not events:
                partition.rearm(job, now)
        return tuple(said)

    def fire_schedules(self) -> tuple[Event, ...]:
        """All occurrences that have fallen due."""
        partition, now = self.partition, self.clock.now
        said: list[Event] = []
        while (due := partition.schedule_timers.next_due()) is not None and due <= now:
            for queue, name in partition.schedule_timers.pop(now, TIMERS_MAX):
                said += self._fire_schedule(queue, name, now)
        return tuple(said)

    def before(self, asked: Asked) -> tuple[Event, ...]:
        """What is to be recorded before a command is decided: the occurrences up to an edit."""
        command = asked.command
        if not isinstance(command, Edit):
            return ()
        return self._fire_schedule(command.queue, command.name, asked.appended_at)

    def _fire_schedule(self, queue: QueueName, name: str, until: Micros) -> tuple[Event, ...]:
        said: list[Event] = []
        while events := fire(self.partition, queue, name, until, self.clock.now):
            self.append(*events)
            said += events
        return tuple(said)

    def assign(
        self,
        runtime: RuntimeId,
        session: str,
        many: int,
        queue: QueueName = QUEUE,
    ) -> list[LeaseGranted]:
        """To a session that has begun."""
        known = self.partition.queue(queue).sessions[runtime]
        assert known.session == session
        grants = runtimes.grants(
            self.partition,
            queue,
            known.types,
            runtime,
            many,
            self.clock.now,
            session=Session(session),
            after=known.number,
        )
        self.append(*grants, cause=GRANT)
        return grants


def refusal(asked: Asked, refused: Rejected) -> CommandRejected:
    return CommandRejected(
        queue=QUEUE,
        command_id=asked.command_id,
        command_type=asked.command.TYPE,
        code=refused.code,
        detail=refused.detail,
        job_id=refused.job_id,
        runtime_id=getattr(asked.command, "runtime_id", None),
        job_status=refused.job_status,
        pointer=refused.pointer,
    )


class Given:
    """What stands in the log now."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner

    def when(self, said: Command | Pause, command_id: str | None = None) -> When:
        """A command is said now, or time goes by."""
        if isinstance(said, Pause):
            self.owner.clock.pass_seconds(said)
            return When(self.owner, None)
        return When(self.owner, self.owner.asked(said, command_id))

    def also(self, *facts: Fact | Pause) -> Given:
        """These stand there, too."""
        owner = self.owner
        held: list[Event] = []
        for fact in facts:
            if isinstance(fact, Pause):
                owner.clock.pass_seconds(fact)
                continue
            held.append(at_its_time(fact, owner.clock.now))
            if not isinstance(held[-1], AttemptFailed | AttemptExpired):
                owner.append(*held)
                held = []
        owner.append(*held)
        return self

    @property
    def job(self) -> Job:
        return self.known(JOB)

    def known(self, job_id: JobId) -> Job:
        job = self.owner.partition.job(job_id)
        assert job is not None
        return job

    @property
    def now(self) -> Micros:
        return self.owner.clock.now


def given(*facts: Fact | Pause, bounds: Bounds | None = None) -> Given:
    """These facts stand in the log, each in an entry of its own; but what follows from an attempt
    that went wrong is recorded with it. `after(…)` lets time go by."""
    return Given(Owner(bounds)).also(*facts)


def at_its_time(fact: Fact, now: Micros) -> Event:
    return fact if isinstance(fact, Struct) else fact(now)


class When:
    def __init__(self, owner: Owner, asked: Asked | None) -> None:
        self.owner = owner
        self.asked = asked

    def then(self, *expected: Fact | Rejection, again: Rejection | None = None) -> Then:
        """These facts, or this refusal, come of it. Applied and asked again under the same id,
        nothing new comes, or the refusal `again`."""
        owner = self.owner
        if self.asked is None:
            assert owner.fire() == _facts(expected, owner.clock.now)
            assert owner.fire() == ()
            return Then(owner, None)
        decision = owner.hear(self.asked)
        if isinstance(decision, Rejected):
            assert (decision.code,) == expected, decision
            second = decide(owner.partition, self.asked, owner.clock.now)
            assert isinstance(second, Rejected)
            assert second.code == (again or decision.code)
            return Then(owner, decision)
        assert decision.events == _facts(expected, owner.clock.now)
        second = decide(owner.partition, self.asked, owner.clock.now)
        if isinstance(second, Rejected):
            assert second.code == again, second
        else:
            assert again is None
            assert second.events == ()
        return Then(owner, decision)

    def decided(self) -> Decided:
        """What was decided, recorded too: for sentences about more than its facts."""
        assert self.asked is not None
        decision = self.owner.hear(self.asked)
        assert isinstance(decision, Decided), decision
        return decision

    def refused(self) -> Rejected:
        assert self.asked is not None
        decision = self.owner.hear(self.asked)
        assert isinstance(decision, Rejected), decision
        return decision


class Then(Given):
    """What stands in the log now; `decision` is what was said of the command."""

    def __init__(self, owner: Owner, decision: Decision | None) -> None:
        super().__init__(owner)
        self.decision = decision

    @property
    def refusal(self) -> Rejected:
        assert isinstance(self.decision, Rejected)
        return self.decision


def _facts(expected: tuple[Fact | Rejection, ...], now: Micros) -> tuple[Event, ...]:
    facts = []
    for fact in expected:
        assert not isinstance(fact, Rejection), f"{fact} was expected, and it was accepted"
        facts.append(at_its_time(fact, now))
    return tuple(facts)
