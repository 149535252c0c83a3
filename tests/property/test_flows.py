"""Flows under random interleavings: random steps, conditions, ways back and lists, and whatever is
said of them in whatever order, copied, stale and late. Every entry is checked against the
invariants; after each step what is derived is compared with what it is derived from."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import UNSET, Raw
from msgspec.structs import replace

from ledger.domain import deadlines
from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    Beat,
    CancelJob,
    Claim,
    Command,
    FailAttempt,
    Heartbeat,
    HeldLease,
    Limit,
    LockJob,
    OnFailAsk,
    ProgressSaid,
    PutTemplate,
    ReleaseLease,
    Report,
    ReportProgress,
    RequestJob,
    RerunJob,
    RetryAsk,
    StartAttempt,
    StepAsk,
    SubmitResult,
    Template,
    WaitForCompletion,
)
from ledger.domain.decide import Decided, Decision, decide
from ledger.domain.digest import digest, folded
from ledger.domain.events import JobRequested
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId, Session, StepName
from ledger.domain.job import quoted_step, status, worker_type_of
from ledger.domain.job_view import job_json
from ledger.domain.partition import Bounds
from ledger.domain.sizes import size_of
from ledger.domain.steps import Pending, held_lease
from tests.property.test_rules import AFTER_SUCCESS, reported
from tests.support.examples import examples
from tests.support.given import Owner

QUEUE = QueueName("default")
TYPE = "flow"
WORKERS = ("flow", "draw", "read")
RUNTIMES = tuple(RuntimeId(name) for name in ("ada", "bob"))
NAMES = tuple(StepName(name) for name in "abcdef")
OUTPUTS = tuple(Raw(text) for text in (b"[]", b"[1,2]", b'{"ok":true}', b'{"ok":false}'))
CODES = ("BROKEN", "FATAL", "WORSE")
LEASE = 10.0

seconds = st.sampled_from([0.001, 0.5, 1.0, 3.0, 5.0, 10.0, 31.0])
retries = st.builds(
    RetryAsk,
    max_attempts=st.sampled_from([UNSET, 1, 2]),
    backoff_seconds=st.sampled_from([(), (0.0,), (1.0, 5.0)]),
    position=st.sampled_from(["keep", "tail"]),
    fatal_codes=st.sampled_from([(), ("FATAL",)]),
)


@st.composite
def steps(draw: st.DrawFn) -> tuple[StepAsk, ...]:
    """Each needs some of those before it, and may look at, walk over or go back to any of them."""
    made: list[StepAsk] = []
    before: dict[StepName, set[StepName]] = {}
    for name in NAMES[: draw(st.sampled_from([2, 3, 4, 5, 6, 1]))]:
        needs = draw(st.lists(st.sampled_from(sorted(before)), unique=True)) if before else []
        behind = set(needs).union(*(before[one] for one in needs))
        before[name] = behind
        seen = draw(st.sampled_from(sorted(behind))) if behind else None
        goto = draw(st.sampled_from([None, name, *sorted(behind)]))
        when = [None, None, None, "payload.x == 1"]
        if seen is not None:
            when += [None, f"steps.{seen}.output.ok", f"steps.{seen}.status == 'succeeded'"]
        made.append(
            StepAsk(
                name,
                worker_type=draw(st.sampled_from([None, "draw", "read"])),
                needs=tuple(needs),
                when=draw(st.sampled_from(when)),
                each=draw(st.sampled_from([None, f"/{seen}"])) if seen else None,
                timeout_seconds=draw(st.sampled_from([None, 12.0])),
                retry=draw(retries),
                cancelable=draw(st.sampled_from([True, True, False])),
                on_fail=draw(st.none() | on_fails(goto)),
            )
        )
    return tuple(made)


def on_fails(goto: StepName | None) -> st.SearchStrategy[OnFailAsk]:
    return st.builds(
        OnFailAsk,
        st.just(goto),
        st.integers(0, 2),
        st.sampled_from(["degrade", "fail"]),
        st.sampled_from([None, ("BROKEN", "EACH_NOT_A_LIST")]),
    )


def templates() -> st.SearchStrategy[Template]:
    return st.builds(
        Template,
        steps=steps(),
        lease_seconds=st.just(LEASE),
        start_timeout_seconds=st.sampled_from([None, None, 15.0]),
        retry=retries,
        exhausted_as=st.sampled_from([None, "expired"]),
        success_when=st.sampled_from(
            ["all_steps_succeeded"] * 3 + ["any_step_succeeded", "steps.a.output.ok"]
        ),
    )


class Flows(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        bounds = Bounds(closed_us=60_000_000, closed_max=20, commands_us=90_000_000)
        self.owner = Owner(bounds)
        self.owner.invariants._patience_us = 1_000_000
        self.jobs: list[JobId] = []
        self.said: list[Asked] = []
        self.numbers = 0

    @initialize(
        template=templates(),
        limits=st.sampled_from([(), (Limit(("/labels/user",), 1),), (Limit(("/type",), 2),)]),
    )
    def begin(self, template: Template, limits: tuple[Limit, ...]) -> None:
        template = replace(template, limits=limits)
        decision = self.say(PutTemplate(QUEUE, TYPE, template))
        assert isinstance(decision, Decided), decision
        self.request({}, 1)

    # --- What happens ----------------------------------------------------------------------------
    @precondition(lambda self: len(self.owner.partition.jobs) < 3)
    @rule(labels=st.sampled_from([{}, {"user": "1"}]), x=st.sampled_from([1, 2]))
    def request(self, labels: dict[str, str], x: int) -> None:
        payload = Raw(b'{"x":%d}' % x)
        self.say(RequestJob(TYPE, QUEUE, payload=payload, labels=labels))

    @rule(
        runtime=st.sampled_from(RUNTIMES),
        types=st.sampled_from([WORKERS, WORKERS, ("draw",)]),
        limit=st.integers(1, 4),
    )
    def claim(self, runtime: RuntimeId, types: tuple[str, ...], limit: int) -> None:
        self.say(Claim(runtime, (QUEUE,), types, limit))

    @rule(outputs=st.lists(st.sampled_from(OUTPUTS), min_size=1, max_size=6))
    def get_on(self, outputs: list[Raw]) -> None:
        """Whole attempts, so that flows come to their ends."""
        for output in outputs:
            found = self.owner.partition.best(QUEUE, WORKERS, 1, self.owner.clock.now)
            for job, step in found:
                self.say(LockJob(job.id, RUNTIMES[0], step.name))
                self.say(SubmitResult(job.id, Fence(job.fence + 1), output))

    @precondition(lambda self: self.held())
    @rule(data=st.data(), output=st.sampled_from(OUTPUTS))
    def finish(self, data: st.DataObject, output: Raw) -> None:
        job_id, fence = data.draw(st.sampled_from(self.held()))
        assert isinstance(self.say(SubmitResult(job_id, fence, output)), Decided)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), code=st.sampled_from(CODES), flag=st.sampled_from([None, None, False]))
    def fail(self, data: st.DataObject, code: str, flag: bool | None) -> None:
        job_id, fence = data.draw(st.sampled_from(self.held()))
        assert isinstance(self.say(FailAttempt(job_id, fence, code, retryable=flag)), Decided)

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def word(self, data: st.DataObject) -> None:
        job_id, fence = data.draw(st.sampled_from(self.held()))
        self.say(data.draw(words(job_id, fence)))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), back=st.integers(0, 4))
    def stale_word(self, data: st.DataObject, back: int) -> None:
        """Also of jobs that have ended, and under fences that are no more."""
        job_id = data.draw(st.sampled_from(self.jobs[-4:]))
        self.say(data.draw(words(job_id, self.fence(job_id, back))))

    @precondition(lambda self: self.held())
    @rule(data=st.data(), stops=st.booleans())
    def cancel(self, data: st.DataObject, stops: bool) -> None:
        job_id, fence = data.draw(st.sampled_from(self.held()))
        self.say(CancelJob(job_id))
        if stops:
            self.say(AcknowledgeCancel(job_id, fence))

    @precondition(lambda self: len(self.jobs) > len(self.owner.partition.jobs))
    @rule(data=st.data(), from_failed=st.booleans())
    def run_again(self, data: st.DataObject, from_failed: bool) -> None:
        ended = [job_id for job_id in self.jobs if job_id not in self.owner.partition.jobs]
        self.say(RerunJob(data.draw(st.sampled_from(ended[-3:])), from_failed=from_failed))

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.said[-8:]))
        self.hear(replace(asked, appended_at=self.owner.clock.now))

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """The same words under another id."""
        self.say(data.draw(st.sampled_from(self.said[-8:])).command)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), many=st.integers(1, 4), with_beat=st.booleans())
    def report(self, data: st.DataObject, many: int, with_beat: bool) -> None:
        said = []
        for _ in range(many):
            job_id = data.draw(st.sampled_from(self.jobs[-4:]))
            fence = self.fence(job_id, data.draw(st.integers(0, 2)))
            said.append(data.draw(reported(job_id, fence)))
        beat = self.beat_of(RUNTIMES[0], 50.0) if with_beat else None
        self.say(Report(RUNTIMES[0], Session("s1"), QUEUE, tuple(said), beat))

    @rule(runtime=st.sampled_from(RUNTIMES), percent=st.sampled_from([None, 10.0, 90.0]))
    def beat(self, runtime: RuntimeId, percent: float | None) -> None:
        self.say(self.beat_of(runtime, percent))

    @rule(many=st.integers(1, 3))
    def assign(self, many: int) -> None:
        for runtime, session in list(self.owner.partition.queue(QUEUE).sessions.items()):
            self.owner.assign(runtime, session.session, many, QUEUE)

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        """Timers are late by a second at most."""
        while passed > 0:
            step = min(passed, 1.0)
            self.owner.clock.pass_seconds(step)
            passed -= step
            self.fire()

    @rule()
    def take_over(self) -> None:
        self.owner.take_over()
        self.owner.partition.deferred.clear()  # It is not in the log.

    # --- How it is said --------------------------------------------------------------------------
    def fire(self) -> None:
        for _ in range(1_000):
            if not self.owner.fire():
                return
        raise AssertionError("the clock has always something to say")

    def held(self) -> list[tuple[JobId, Fence]]:
        return [
            (job.id, lease.fence)
            for job in self.owner.partition.jobs.values()
            for step in job.steps
            if (lease := held_lease(step)) is not None
        ]

    def fence(self, job_id: JobId, back: int) -> Fence:
        job = self.owner.partition.job(job_id)
        return Fence(max(0, job.fence - back) if job else back)

    def beat_of(self, runtime: RuntimeId, percent: float | None) -> Beat:
        """It says that it holds all that anybody holds."""
        self.numbers += 1
        held = tuple(HeldLease(job, fence, ProgressSaid(percent)) for job, fence in self.held())
        return Beat(runtime, Session("s1"), QUEUE, self.numbers, WORKERS, leases=held)

    def say(self, command: Command) -> Decision:
        asked = self.owner.asked(command)
        self.said.append(asked)
        return self.hear(asked)

    def hear(self, asked: Asked) -> Decision:
        partition, now = self.owner.partition, self.owner.clock.now
        before = folded(partition)
        decision = decide(partition, asked, now)
        assert decide(partition, asked, now) == decision, "deciding moved something"
        assert folded(partition) == before, "deciding moved something"
        self.owner.record(asked, decision)
        if isinstance(decision, Decided):
            self.jobs += [e.job_id for e in decision.events if isinstance(e, JobRequested)]
        again = decide(partition, asked, now)
        if isinstance(again, Decided):
            assert again.events == () or isinstance(asked.command, Claim), "said twice, done twice"
        elif isinstance(decision, Decided):
            assert again.code in AFTER_SUCCESS, again
        return decision

    # --- What holds after each step --------------------------------------------------------------
    @invariant()
    def sums_are_what_they_sum_up(self) -> None:
        partition = self.owner.partition
        self.owner.settle()
        assert partition.open_bytes == sum(map(size_of, partition.jobs.values()))
        assert partition.closed.bytes == sum(map(size_of, partition.closed.values()))
        assert partition.misfits == 0
        waiting = [job for job in partition.jobs.values() if status(job) == "pending"]
        assert partition.queue(QUEUE).pending == len(waiting)

    @invariant()
    def who_can_be_leased_is_who_is_found(self) -> None:
        partition, now = self.owner.partition, self.owner.clock.now
        limits = partition.queue(QUEUE).limits
        found = {
            (job.id, step.name)
            for worker in WORKERS
            for job, step in partition.best(QUEUE, (worker,), 10_000, now)
            if worker_type_of(job, step) == worker
        }
        ready = {
            (job.id, step.name)
            for job in partition.jobs.values()
            for step in job.steps
            if isinstance(step.phase, Pending) and step.phase.ready_at <= now
            if job.cancel is None
        }
        assert found <= ready
        assert limits or found == ready

    @invariant()
    def who_is_under_no_full_limit_is_not_kept_waiting(self) -> None:
        """As in an owner's turn: asked for one at a time."""
        partition, now = self.owner.partition, self.owner.clock.now
        free = {
            worker_type_of(job, step)
            for job in partition.jobs.values()
            if job.cancel is None and not partition.queue(QUEUE).limits.full(job)
            for step in job.steps
            if isinstance(step.phase, Pending) and step.phase.ready_at <= now
        }
        for worker in free:
            assert partition.best(QUEUE, (worker,), 1, now), f"nothing for {worker}"

    @invariant()
    def who_holds_a_limit_is_who_holds_a_lease(self) -> None:
        partition = self.owner.partition
        limits = partition.queue(QUEUE).limits
        for key, holders in limits.holders.items():
            assert holders == {
                (0, job.id, step.name)
                for job in partition.jobs.values()
                for step in job.steps
                if key in limits.keys(job) and held_lease(step) is not None
            }
            assert len(holders) <= limits.max_of(key)

    @invariant()
    def nothing_that_falls_due_is_forgotten(self) -> None:
        partition = self.owner.partition
        for job in partition.jobs.values():
            when = deadlines.due(job, partition.floor, partition.now)
            if when is not None:
                assert partition.timers._armed[job.id] <= max(when, partition.now + 1_000_000)
            for fence in partition.deferred.get(job.id, {}):
                assert quoted_step(job, fence) is not None
                assert partition.timers._armed[job.id] <= partition.now + 1_000_000

    @invariant()
    def every_job_can_be_shown(self) -> None:
        for job in self.owner.partition.jobs.values():
            assert job_json(job)
            assert job.percent is None or 0 <= job.percent <= 100

    def teardown(self) -> None:
        """A reader that folds the same entries in one go knows the same."""
        reader = self.owner.folded_anew()
        assert folded(reader) == folded(self.owner.partition)
        assert digest(reader) == digest(self.owner.partition)


def words(job_id: JobId, fence: Fence) -> st.SearchStrategy[Any]:
    job, at = st.just(job_id), st.just(fence)
    runtimes = st.sampled_from(RUNTIMES)
    percents = st.sampled_from([None, 0.0, 50.0, 100.0])
    return st.one_of(
        st.builds(LockJob, job, runtimes, st.sampled_from([None, *NAMES])),
        st.builds(StartAttempt, job, at),
        st.builds(Heartbeat, job, at, st.none() | st.builds(ProgressSaid, percents)),
        st.builds(ReportProgress, job, at, percents, st.sampled_from([None, "half"])),
        st.builds(SubmitResult, job, at, st.sampled_from(OUTPUTS)),
        st.builds(FailAttempt, job, at, st.sampled_from(CODES)),
        st.builds(ReleaseLease, job, at),
        st.builds(WaitForCompletion, job, at, st.sampled_from([0.0, 20.0])),
        st.builds(CancelJob, job),
        st.builds(AcknowledgeCancel, job, at),
        st.builds(RerunJob, job, from_failed=st.booleans()),
    )


TestFlows = Flows.TestCase
TestFlows.settings = settings(
    max_examples=examples(80),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
