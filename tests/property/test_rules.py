"""The rules under random interleavings: commands, time, timers, stale fences, copies, take-overs,
over a few jobs and runtimes. Every entry is checked against the invariants, and more is compared
after each step: with the sums that the fold derives step by step, and with a second fold."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from msgspec import UNSET, Raw
from msgspec.structs import replace

from ledger.domain import bulk, deadlines
from ledger.domain.cancel import cancel
from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    Beat,
    CancelJob,
    CancelPart,
    Claim,
    Command,
    FailAttempt,
    Heartbeat,
    HeldLease,
    LockJob,
    ProgressSaid,
    PutTemplate,
    ReleaseLease,
    Report,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedStart,
    ReportedWait,
    ReportProgress,
    RequestJob,
    RerunJob,
    RetryAsk,
    StartAttempt,
    SubmitResult,
    Template,
    WaitForCompletion,
    Where,
)
from ledger.domain.decide import Decided, Decision, decide
from ledger.domain.digest import digest, folded
from ledger.domain.entries import Entry
from ledger.domain.events import JOB_EVENTS, JobRequested, LeasesExtended
from ledger.domain.evolve import begin, evolve, extend
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId, Session
from ledger.domain.job import Job, status
from ledger.domain.job_view import job_json
from ledger.domain.partition import Bounds
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.sizes import size_of
from ledger.domain.step_changes import Misfit
from tests.support.examples import examples
from tests.support.given import Owner

QUEUES = (QueueName("default"), QueueName("other"))
TYPES = ("report", "quiz")
RUNTIMES = tuple(RuntimeId(name) for name in ("ada", "bob", "cyd"))
LEASE = 10
OUTPUTS = (Raw(b"1"), Raw(b"2"))
CODES = ("BROKEN", "FATAL", "JOB_TIMEOUT")

fences = st.integers(0, 3)
"""How far behind the current one: 0 is the current."""
texts = st.sampled_from([None, "", "a", "b"])
percents = st.sampled_from([None, 0.0, 10.0, 50.0, 100.0])
seconds = st.sampled_from([0.0, 0.001, 0.4, 1.0, 3.0, 9.0, 10.0, 31.0, 100.0])
retries = st.one_of(
    st.just(UNSET),
    st.builds(
        RetryAsk,
        max_attempts=st.integers(1, 3),
        backoff_seconds=st.sampled_from([(), (0.0,), (1.0, 5.0)]),
        jitter=st.sampled_from([0.0, 0.5]),
        position=st.sampled_from(["keep", "tail"]),
        fatal_codes=st.sampled_from([(), ("FATAL",), ("LEASE_EXPIRED",)]),
    ),
)
requests = st.builds(
    RequestJob,
    type=st.sampled_from(TYPES),
    queue=st.sampled_from(QUEUES),
    payload=st.sampled_from([UNSET, Raw(b"1"), Raw(b'{"a":[1]}')]),
    labels=st.sampled_from([UNSET, {"user": "1"}, {"user": "2"}]),
    priority=st.sampled_from([UNSET, 0, 9]),
    idempotency_key=st.sampled_from([None, "k1", "k2"]),
    delay_seconds=st.sampled_from([None, 2.0, 20.0]),
    start_timeout_seconds=st.sampled_from([UNSET, UNSET, 0.0, 15.0]),
    timeout_seconds=st.sampled_from([UNSET, 12.0]),
    lease_seconds=st.just(LEASE),
    retry=retries,
)
templates = st.builds(
    Template,
    enabled=st.booleans(),
    lease_seconds=st.just(float(LEASE)),
    start_timeout_seconds=st.sampled_from([None, 15.0]),
    idempotency_scope=st.sampled_from([("/queue", "/type"), ("/labels/user",), ()]),
    idempotency_seconds=st.sampled_from([0.0, 30.0, 604_800.0]),
    exhausted_as=st.sampled_from([None, "failed", "expired"]),
    overridable=st.just(
        (
            "labels",
            "priority",
            "delay_seconds",
            "start_timeout_seconds",
            "timeout_seconds",
            "lease_seconds",
            "retry",
        )
    ),
)


class Interleavings(RuleBasedStateMachine):
    """Timers may fire late, as where an owner has much to read."""

    late_seconds_max = 60.0

    def __init__(self) -> None:
        super().__init__()
        bounds = Bounds(closed_us=60_000_000, closed_max=20, commands_us=90_000_000)
        self.owner = Owner(bounds)
        self.owner.invariants._patience_us = round(self.late_seconds_max * 1_000_000)
        self.late = 0.0
        self.jobs: list[JobId] = []
        self.said: list[Asked] = []
        self.made: dict[str, JobId] = {}
        """The job of each request's command id."""
        self.numbers = 0

    # --- What happens ----------------------------------------------------------------------------
    @rule(asked=requests)
    def request(self, asked: RequestJob) -> None:
        self.say(asked)

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """A command comes twice, as it stood in the intake or sent anew."""
        asked = data.draw(st.sampled_from(self.said[-8:]))
        self.hear(replace(asked, appended_at=self.owner.clock.now))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), back=fences)
    def word(self, data: st.DataObject, back: int) -> None:
        job_id, fence = self.draw(data, back)
        self.say(data.draw(words(job_id, fence)))

    @rule(
        queue=st.sampled_from(QUEUES),
        code=st.sampled_from(CODES),
        runtime=st.sampled_from(RUNTIMES),
    )
    def fail_the_next(self, queue: QueueName, code: str, runtime: RuntimeId) -> None:
        """A whole attempt, so that limits are reached."""
        job = self.owner.partition.next_ready(queue, TYPES)
        if job is not None:
            self.say(LockJob(job.id, runtime))
            self.say(FailAttempt(job.id, Fence(job.fence + 1), code))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def keyed_word(self, data: st.DataObject) -> None:
        job_id, fence = self.draw(data, 0)
        name, content = data.draw(st.sampled_from("xyz")), data.draw(st.sampled_from("pq"))
        self.say(data.draw(words(job_id, fence)), f"ik.{name}.{content}")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), many=st.integers(1, 4))
    def report(self, data: st.DataObject, many: int) -> None:
        said = []
        for _ in range(many):
            job_id, fence = self.draw(data, data.draw(st.sampled_from([0, 0, 1])))
            said.append(data.draw(reported(job_id, fence)))
        self.say(Report(RUNTIMES[0], Session("s1"), QUEUES[0], tuple(said)))

    @rule(
        runtime=st.sampled_from(RUNTIMES),
        session=st.sampled_from(["s1", "s2"]),
        queue=st.sampled_from(QUEUES),
        types=st.sampled_from([TYPES, TYPES[:1]]),
        leaving=st.sampled_from([False, False, True]),
        percent=percents,
    )
    def beat(
        self,
        runtime: RuntimeId,
        session: str,
        queue: QueueName,
        types: tuple[str, ...],
        leaving: bool,
        percent: float | None,
    ) -> None:
        self.numbers += 1
        held = tuple(
            HeldLease(job.id, job.fence, ProgressSaid(percent))
            for job in self.owner.partition.jobs.values()
        )
        self.say(
            Beat(
                runtime, Session(session), queue, self.numbers, types, leases=held, leaving=leaving
            )
        )

    @rule(queue=st.sampled_from(QUEUES), many=st.integers(1, 3))
    def assign(self, queue: QueueName, many: int) -> None:
        known = self.owner.partition.queues.get(queue)
        for runtime, session in list(known.sessions.items()) if known else ():
            self.fire()
            self.owner.assign(runtime, session.session, many, queue)

    @rule(
        runtime=st.sampled_from(RUNTIMES),
        queues=st.sampled_from([QUEUES, QUEUES[:1], (QUEUES[0], QUEUES[0])]),
        limit=st.integers(1, 3),
    )
    def claim(self, runtime: RuntimeId, queues: tuple[QueueName, ...], limit: int) -> None:
        self.say(Claim(runtime, queues, TYPES, limit))

    @rule(queue=st.sampled_from(QUEUES), type=st.sampled_from(TYPES), template=templates)
    def put_template(self, queue: QueueName, type: str, template: Template) -> None:
        self.say(PutTemplate(queue, type, template))

    @rule(user=st.sampled_from(["1", "2"]), more=st.integers(0, 2), ends=st.booleans())
    def withdraw(self, user: str, more: int, ends: bool) -> None:
        """A bulk cancel, of requests too that are still to be read."""
        self.numbers += 1
        operation, partition = f"op_{self.numbers}", self.owner.partition
        where = Where(labels={"user": user})
        self.owner.append(
            *bulk.start_part(
                partition, CancelPart(operation, 0, where, "why"), partition.requests + more
            )
        )
        events: list[Any] = []
        for job_id in bulk.selected(partition, operation):
            said = cancel(partition.jobs[job_id], "why", "", self.owner.clock.now)
            assert not isinstance(said, Rejected)
            events += said
        if events:
            self.owner.append(*events, bulk.advanced(operation, len(events)))
        if ends:
            self.owner.append(*bulk.end_part(partition, operation))

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        """Timers are late by no more than they may be."""
        while passed > 0:
            if self.late >= self.late_seconds_max:
                self.fire()
            step = min(passed, max(self.late_seconds_max - self.late, 1.0))
            self.owner.clock.pass_seconds(step)
            self.late += step
            passed -= step
        if self.late >= self.late_seconds_max:
            self.fire()

    @rule()
    def fire(self) -> None:
        self.owner.fire()
        self.late = 0.0

    @rule()
    def take_over(self) -> None:
        self.owner.take_over()
        self.owner.partition.deferred.clear()  # It is not in the log.

    # --- How it is said --------------------------------------------------------------------------
    def draw(self, data: st.DataObject, back: int) -> tuple[JobId, Fence]:
        job_id = data.draw(st.sampled_from(self.jobs[-6:]))
        job = self.owner.partition.job(job_id)
        return job_id, Fence(max(0, job.fence - back) if job else back)

    def say(self, command: Command, command_id: str | None = None) -> None:
        asked = self.owner.asked(command, command_id)
        self.said.append(asked)
        self.hear(asked)

    def hear(self, asked: Asked) -> None:
        partition, now = self.owner.partition, self.owner.clock.now
        before = folded(partition)
        decision = decide(partition, asked, now)
        assert decide(partition, asked, now) == decision, "deciding moved something"
        assert folded(partition) == before, "deciding moved something"
        self.owner.record(asked, decision)
        self.check_answer(asked, decision)
        again = decide(partition, asked, now)
        if isinstance(again, Decided):
            assert again.events == () or isinstance(asked.command, Claim), "said twice, done twice"
        elif isinstance(decision, Decided):
            assert again.code in AFTER_SUCCESS, again

    def check_answer(self, asked: Asked, decision: Decision) -> None:
        """A request that comes twice has one job while its id is remembered."""
        if not isinstance(asked.command, RequestJob | RerunJob) or isinstance(decision, Rejected):
            return
        assert decision.job_id is not None
        for event in decision.events:
            if isinstance(event, JobRequested):
                self.jobs.append(event.job_id)
                assert asked.command_id not in self.made, "a copy made another job"
        if not asked.command_id.startswith("ik."):  # They are made up anew after their time.
            self.made[asked.command_id] = decision.job_id

    # --- What holds after each step --------------------------------------------------------------
    @invariant()
    def sums_are_what_they_sum_up(self) -> None:
        partition = self.owner.partition
        self.owner.settle()
        assert partition.open_bytes == sum(map(size_of, partition.jobs.values()))
        assert partition.closed.bytes == sum(map(size_of, partition.closed.values()))
        assert partition.misfits == 0

    @invariant()
    def who_can_be_leased_is_who_is_found(self) -> None:
        """After the timers have fallen, as in an owner's turn."""
        partition, now = self.owner.partition, self.owner.clock.now
        for queue in partition.queues.values():
            found = [job.id for job, _ in partition.best(queue.name, TYPES, 10_000, now)]
            ready = sorted(
                (job.request.priority, job.order, job.id)
                for job in partition.jobs.values()
                if job.request.queue == queue.name
                and status(job) == "pending"
                and job.id not in partition.delayed
                and job.steps[0].phase.ready_at <= now  # type: ignore[union-attr]
            )
            assert found == [job_id for _, _, job_id in ready]

    @invariant()
    def nothing_that_falls_due_is_forgotten(self) -> None:
        partition = self.owner.partition
        for job in partition.jobs.values():
            when = deadlines.due(job, partition.floor, partition.now)
            if job.id in partition.delayed:
                assert job.id in partition.timers
            if when is not None:
                assert partition.timers._armed[job.id] <= max(when, partition.now + 1_000_000)

    @invariant()
    def every_job_can_be_shown(self) -> None:
        for job in self.owner.partition.jobs.values():
            assert job_json(job)

    def teardown(self) -> None:
        """A reader that folds the same entries in one go knows the same, of each job too."""
        partition = self.owner.partition
        reader = self.owner.folded_anew()
        assert folded(reader) == folded(partition)
        assert digest(reader) == digest(partition)
        histories = self.folded_alone()
        for job_id, job in partition.jobs.items():
            assert histories[job_id] == job
        for job in partition.closed.values():
            assert histories[job.id] == job

    def folded_alone(self) -> dict[JobId, Job]:
        """Each job from its own history."""
        jobs: dict[JobId, Job] = {}
        for entry in self.owner.entries:
            if not isinstance(entry, Entry):
                continue
            for event in entry.events:
                if isinstance(event, JobRequested):
                    jobs[event.job_id] = begin(event, entry.at)
                elif isinstance(event, JOB_EVENTS):
                    after = evolve(jobs[event.job_id], event, entry.at)
                    assert not isinstance(after, Misfit)
                    jobs[event.job_id] = after
                elif isinstance(event, LeasesExtended):
                    for extension in event.leases:
                        moved = extend(jobs[extension.job_id], extension)
                        assert not isinstance(moved, Misfit)
                        jobs[extension.job_id] = moved
        return jobs


class PromptInterleavings(Interleavings):
    """Timers fire before anything else is decided: nothing may be late at all."""

    late_seconds_max = 0.0


AFTER_SUCCESS = {
    Rejection.JOB_CLOSED,
    Rejection.JOB_ALREADY_LOCKED,
    Rejection.LEASE_STALE,
}
"""What a command that was accepted may be told when it comes again."""


def words(job_id: JobId, fence: Fence) -> st.SearchStrategy[Command]:
    """All that can be said of one job."""
    job, at = st.just(job_id), st.just(fence)
    runtimes = st.sampled_from(RUNTIMES)
    return st.one_of(
        st.builds(LockJob, job, runtimes),
        st.builds(StartAttempt, job, at),
        st.builds(
            Heartbeat, job, at, st.one_of(st.none(), st.builds(ProgressSaid, percents, texts))
        ),
        st.builds(ReportProgress, job, at, percents, texts, texts),
        st.builds(SubmitResult, job, at, st.sampled_from(OUTPUTS)),
        st.builds(
            FailAttempt,
            job,
            at,
            st.sampled_from(CODES),
            retryable=st.sampled_from([None, True, False]),
            retry_after_seconds=st.sampled_from([None, 3.0]),
        ),
        st.builds(ReleaseLease, job, at),
        st.builds(WaitForCompletion, job, at, st.sampled_from([0.0, 20.0])),
        st.builds(CancelJob, job),
        st.builds(AcknowledgeCancel, job, at),
        st.builds(RerunJob, job),
    )


def reported(job_id: JobId, fence: Fence) -> st.SearchStrategy[Any]:
    job, at = st.just(job_id), st.just(fence)
    return st.one_of(
        st.builds(ReportedStart, job, at),
        st.builds(ReportedResult, job, at, st.sampled_from(OUTPUTS)),
        st.builds(ReportedFailure, job, at, st.sampled_from(CODES)),
        st.builds(ReportedRelease, job, at),
        st.builds(ReportedWait, job, at, st.just(20.0)),
        st.builds(ReportedCancel, job, at),
    )


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPromptInterleavings = PromptInterleavings.TestCase
TestPromptInterleavings.settings = TestInterleavings.settings
