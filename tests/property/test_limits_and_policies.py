"""Queues under random interleavings: limits and policies that change, pauses, schedules, lapses,
cancels, take-overs, over few keys. Every entry is checked against the invariants, which count from
events alone. After each step, who is next is compared with the plainest search there is, and the
state with that of a reader who folds the same entries in one go."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import UNSET
from msgspec.structs import replace

from ledger.domain.commands import (
    Asked,
    CancelJob,
    CancelPolicy,
    Claim,
    CollectJob,
    Command,
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    FailAttempt,
    Limit,
    LockJob,
    PauseQueue,
    PutQueue,
    PutSchedule,
    PutTemplate,
    QueueSettings,
    ReleaseLease,
    RequestJob,
    RerunJob,
    ResumeQueue,
    RetryAsk,
    RunSchedule,
    Schedule,
    StartAttempt,
    StepAsk,
    SubmitResult,
    Template,
    WaitForCompletion,
    WithdrawResult,
)
from ledger.domain.decide import Decided, decide
from ledger.domain.digest import folded
from ledger.domain.events import JobRequested, ScheduleFired
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId, StepName
from ledger.domain.job import Job, status, worker_type_of
from ledger.domain.limits import value_of
from ledger.domain.partition import Bounds, Partition
from ledger.domain.queues import Queue
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.steps import Pending, current_lease, held_lease
from tests.support.builders import OK
from tests.support.examples import examples
from tests.support.given import Owner

QUEUES = (QueueName("default"), QueueName("other"))
TYPES = ("report", "quiz")
WORKERS = (*TYPES, "left", "right")
SEARCHES = [(WORKERS, 1), (WORKERS, 100), (("report",), 2), (("right", "quiz"), 2)]
RUNTIME = RuntimeId("ada")
Place = tuple[int, int, JobId, str]

pointers = st.sampled_from([(), ("/labels/tenant",), ("/labels/model",), ("/type",), ("/scope",)])
limits = st.lists(st.builds(Limit, pointers, st.integers(0, 3)), max_size=2, unique=True).map(tuple)
templates = st.builds(
    Template,
    enabled=st.sampled_from([True, True, True, False]),
    repeatable=st.sampled_from([True, True, False]),
    concurrency_policy=st.sampled_from(
        ["allow_parallel", "reject_same_scope", "replace_existing", "share_in_flight"]
    ),
    dedupe_keys=st.sampled_from([("/scope",), ("/labels/tenant",), ("/payload/x",), ()]),
    limits=limits,
    schedulable=st.sampled_from([True, True, False]),
    lease_seconds=st.just(20.0),
    result_ttl_seconds=st.sampled_from([None, 30.0]),
    failed_ttl_seconds=st.sampled_from([None, 30.0]),
    cancel=st.builds(CancelPolicy, st.sampled_from([True, True, False]), st.just(10.0)),
    retry=st.builds(
        RetryAsk,
        max_attempts=st.integers(1, 2),
        backoff_seconds=st.sampled_from([(), (5.0,)]),
        position=st.sampled_from(["keep", "tail"]),
    ),
    steps=st.sampled_from(
        [
            (),
            (),
            (StepAsk(StepName("one"), worker_type="left"),),
            (
                StepAsk(StepName("a"), "left", needs=()),
                StepAsk(StepName("b"), "right", needs=()),
                StepAsk(StepName("c")),
            ),
        ]
    ),
)
requests = st.builds(
    RequestJob,
    type=st.sampled_from(TYPES),
    queue=st.sampled_from(QUEUES),
    labels=st.sampled_from(
        [UNSET, {"tenant": "1"}, {"tenant": "2", "model": "m"}, {"tenant": "1", "model": "m"}]
    ),
    scope=st.sampled_from([UNSET, "s", "t"]),
    priority=st.sampled_from([UNSET, 0, 9]),
    idempotency_key=st.sampled_from([None, None, "k"]),
    delay_seconds=st.sampled_from([None, None, 15.0]),
)
schedules = st.builds(
    Schedule,
    cron=st.sampled_from(["* * * * *", "*/3 * * * *", "30 12 * * *"]),
    type=st.sampled_from(TYPES),
    enabled=st.sampled_from([True, True, False]),
    scope=st.sampled_from(["s", "t"]),
    catch_up=st.sampled_from(["none", "last", "all"]),
)
seconds = st.sampled_from([0.0, 1.0, 6.0, 21.0, 61.0, 200.0, 1_000.0])
queues = st.sampled_from(QUEUES)


class Queues(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        bounds = Bounds(closed_us=300_000_000, closed_max=10, commands_us=90_000_000)
        self.owner = Owner(bounds)
        self.owner.invariants._patience_us = 2_000_000_000
        self.jobs: list[JobId] = []
        self.said: list[Asked] = []
        self.made: dict[str, JobId | None] = {}

    @initialize(reports=templates, quizzes=templates, its=limits)
    def begin(self, reports: Template, quizzes: Template, its: tuple[Limit, ...]) -> None:
        self.say(PutTemplate(QUEUES[0], "report", reports))
        self.say(PutTemplate(QUEUES[0], "quiz", quizzes))
        self.say(PutQueue(QUEUES[0], QueueSettings(None, its)))

    # --- What is said ----------------------------------------------------------------------------
    @rule(asked=requests)
    def request(self, asked: RequestJob) -> None:
        self.say(asked)

    @rule(asked=requests, many=st.integers(2, 6))
    def requests(self, asked: RequestJob, many: int) -> None:
        for _ in range(many):
            self.say(asked)

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.said[-6:]))
        decided = self.hear(replace(asked, appended_at=self.owner.clock.now))
        if isinstance(decided, Decided):
            made = [e.job_id for e in decided.events if isinstance(e, JobRequested)]
            assert not made or self.made.get(asked.command_id) is None, "one command, two jobs"

    @rule(queue=queues, kind=st.sampled_from(TYPES), template=templates)
    def put_template(self, queue: QueueName, kind: str, template: Template) -> None:
        self.say(PutTemplate(queue, kind, template))

    @rule(queue=queues, its=limits, depth=st.sampled_from([None, None, 3]))
    def put_queue(self, queue: QueueName, its: tuple[Limit, ...], depth: int | None) -> None:
        self.say(PutQueue(queue, QueueSettings(depth, its)))

    @rule(queue=queues, pauses=st.booleans())
    def pause(self, queue: QueueName, pauses: bool) -> None:
        self.say(PauseQueue(queue) if pauses else ResumeQueue(queue))

    @rule(asked=st.sampled_from([QUEUES, QUEUES[:1], QUEUES[1:]]), many=st.integers(1, 4))
    def claim(self, asked: tuple[QueueName, ...], many: int) -> None:
        decided = self.say(Claim(RUNTIME, asked, WORKERS, many))
        known = [self.owner.partition.queues.get(name) for name in asked]
        all_paused = all(queue is not None and queue.paused for queue in known)
        assert isinstance(decided, Rejected) is all_paused

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def word(self, data: st.DataObject) -> None:
        """Of a job that is open, as a rule, and under its current fence."""
        partition = self.owner.partition
        open_jobs = [job_id for job_id in self.jobs if job_id in partition.jobs]
        job_id = data.draw(st.sampled_from((open_jobs or self.jobs)[-8:]))
        job = partition.job(job_id)
        held = [lease.fence for s in job.steps if (lease := current_lease(s))] if job else []
        fence = data.draw(st.sampled_from(held)) if held else Fence(1)
        self.say(data.draw(st.sampled_from(words(job_id, fence))))

    @rule(queue=queues, name=st.sampled_from("xy"), schedule=schedules)
    def put_schedule(self, queue: QueueName, name: str, schedule: Schedule) -> None:
        self.say(PutSchedule(queue, name, schedule))

    @rule(
        kind=st.sampled_from([DeleteSchedule, DisableSchedule, EnableSchedule, RunSchedule]),
        queue=queues,
        name=st.sampled_from("xy"),
    )
    def schedule(self, kind: Any, queue: QueueName, name: str) -> None:
        decided = self.say(kind(queue, name))
        if kind is RunSchedule and isinstance(decided, Decided) and not decided.replayed:
            its = self.owner.partition.queues[queue].schedules.get(name)
            assert its is not None
            assert (its.last_job_id, its.last_run_at) == (decided.job_id, self.owner.clock.now)

    @rule(passed=seconds, promptly=st.booleans())
    def time_passes(self, passed: float, promptly: bool) -> None:
        self.owner.clock.pass_seconds(passed)
        if promptly:
            self.fire()

    @rule()
    def fire(self) -> None:
        self.owner.fire()
        self.note(self.owner.fire_schedules())

    @rule()
    def take_over(self) -> None:
        self.owner.take_over()

    # --- How it is said --------------------------------------------------------------------------
    def say(self, command: Command) -> Decided | Rejected:
        asked = self.owner.asked(command)
        self.said.append(asked)
        return self.hear(asked)

    def hear(self, asked: Asked) -> Decided | Rejected:
        partition, now = self.owner.partition, self.owner.clock.now
        self.note(self.owner.before(asked))
        before = folded(partition)
        decision = decide(partition, asked, now)
        assert decide(partition, asked, now) == decision, "deciding moved something"
        assert folded(partition) == before, "deciding moved something"
        self.owner.record(asked, decision)
        if isinstance(decision, Decided):
            self.made.setdefault(asked.command_id, decision.job_id)
            self.note(decision.events)
        elif decision.code in (Rejection.DUPLICATE_ACTIVE, Rejection.NOT_REPEATABLE):
            assert decision.job_id in self.made.values() or decision.job_id in self.jobs
        return decision

    def note(self, events: tuple[Any, ...]) -> None:
        self.jobs += [event.job_id for event in events if isinstance(event, JobRequested)]
        for event in events:
            if isinstance(event, ScheduleFired) and not event.manual and event.job_id:
                job = self.owner.partition.job(event.job_id)
                assert job is None or job.request.schedule in (event.name, None) or event.code

    # --- What holds after each step --------------------------------------------------------------
    @invariant()
    def nobody_starves_and_the_best_comes_first(self) -> None:
        """Asked twice, as the first time may park some; a reader has parked none."""
        now, reader = self.owner.clock.now, self.owner.folded_anew()
        reader.due(now, 1_000)
        for partition in (self.owner.partition, self.owner.partition, reader):
            for queue in list(partition.queues.values()):
                for types, many in SEARCHES:
                    found = [
                        (job.request.priority, job.order, job.id, step.name)
                        for job, step in partition.best(queue.name, types, many, now)
                    ]
                    assert found == plainly(partition, queue, types, many)

    @invariant()
    def a_reader_of_the_same_entries_knows_the_same(self) -> None:
        assert folded(self.owner.folded_anew()) == folded(self.owner.partition)

    @invariant()
    def what_is_pending_is_counted(self) -> None:
        partition = self.owner.partition
        waiting = Counter(
            job.request.queue for job in partition.jobs.values() if status(job) == "pending"
        )
        for queue in partition.queues.values():
            assert queue.pending == waiting[queue.name]

    @invariant()
    def holders_are_the_leases_on_record(self) -> None:
        for queue in self.owner.partition.queues.values():
            assert held(self.owner.partition, queue) == {
                key: len(its) for key, its in queue.limits.holders.items()
            }

    @invariant()
    def nothing_is_kept_of_what_has_ended(self) -> None:
        partition = self.owner.partition
        for queue in partition.queues.values():
            assert queue.limits._keys.keys() <= partition.jobs.keys()
        kept = {job_id for _, its in partition.dedupe.items() for job_id in its}
        assert kept <= partition.jobs.keys()


def words(job_id: JobId, fence: Fence) -> list[Command]:
    return [
        LockJob(job_id, RUNTIME),
        StartAttempt(job_id, fence),
        SubmitResult(job_id, fence, OK),
        SubmitResult(job_id, fence, OK),
        FailAttempt(job_id, fence, "BROKEN"),
        ReleaseLease(job_id, fence),
        WaitForCompletion(job_id, fence, 20.0),
        CancelJob(job_id),
        RerunJob(job_id),
        RerunJob(job_id, labels={"tenant": "1"}),
        CollectJob(job_id),
        WithdrawResult(job_id),
    ]


# --- The plainest search -------------------------------------------------------------------------
def limits_of(queue: Queue, job: Job) -> list[tuple[Any, int]]:
    newest = queue.template(job.request.type)
    its = () if newest is None else newest.template.limits
    found = []
    for name, declared in (("", queue.settings.limits), (job.request.type, its)):
        for number, limit in enumerate(declared):
            value = value_of(job.request, limit.key)
            if value is not None:
                found.append(((name, number, value), limit.max))
    return found


def held(partition: Partition, queue: Queue) -> Counter[Any]:
    count: Counter[Any] = Counter()
    for job in partition.jobs.values():
        if job.request.queue == queue.name:
            leases = sum(held_lease(step) is not None for step in job.steps)
            count.update({key: leases for key, _ in limits_of(queue, job) if leases})
    return count


def plainly(partition: Partition, queue: Queue, types: tuple[str, ...], many: int) -> list[Place]:
    if queue.paused is not None:
        return []
    ready = sorted(
        (job.request.priority, job.order, job.id, step.name)
        for job in partition.jobs.values()
        if job.request.queue == queue.name and job.cancel is None
        for step in job.steps
        if isinstance(step.phase, Pending)
        and worker_type_of(job, step) in types
        and step.phase.ready_at <= partition.now
        and job.id not in partition.delayed
    )
    count = held(partition, queue)
    found: list[Place] = []
    for place in ready:
        its = limits_of(queue, partition.jobs[place[2]])
        if len(found) < many and all(count[key] < most for key, most in its):
            count.update(key for key, _ in its)
            found.append(place)
    return found


# --- Who waits for which limit -------------------------------------------------------------------
wants = st.tuples(
    st.sampled_from(TYPES),
    st.sampled_from("123456"),
    st.sampled_from("mno"),
    st.sampled_from([0, 5]),
)
acts = st.one_of(
    wants.map(lambda want: ("request", *want)),
    wants.map(lambda want: ("request", *want)),
    st.tuples(st.just("claim"), st.sampled_from([TYPES, TYPES[:1], TYPES[1:]]), st.integers(1, 3)),
    st.tuples(st.sampled_from(["cancel", "lock", "end", "end", "release"]), st.integers(0, 30)),
)


@settings(max_examples=150, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 2)),
    st.lists(acts, min_size=40, max_size=80),
)
def test_whoever_waits_for_a_limit_gets_its_turn(
    most: tuple[int, int, int], said: list[tuple[Any, ...]]
) -> None:
    """Under limits of all, of a tenant, and of a model for one type. Nothing is asked of who is
    next but by the acts themselves, so that what a search leaves behind is seen by the next."""
    owner = Owner()
    total, tenant, model = most
    its = (Limit((), total), Limit(("/labels/tenant",), tenant))
    owner.hear(owner.asked(PutQueue(QUEUES[0], QueueSettings(None, its))))
    template = Template(limits=(Limit(("/labels/model",), model),))
    owner.hear(owner.asked(PutTemplate(QUEUES[0], "quiz", template)))
    partition = owner.partition
    queue = partition.queues[QUEUES[0]]
    for act in said:
        if act[0] == "claim":
            expected = [place[2] for place in plainly(partition, queue, act[1], act[2])]
            decided = owner.hear(owner.asked(Claim(RUNTIME, (queue.name,), act[1], act[2])))
            assert isinstance(decided, Decided)
            assert [grant.job_id for grant in decided.grants] == expected
        elif act[0] == "request":
            _, kind, tenant_label, model_label, priority = act
            labels = {"tenant": tenant_label, "model": model_label}
            owner.hear(owner.asked(RequestJob(kind, labels=labels, priority=priority)))
        else:
            leased = act[0] in ("end", "release")
            jobs = [j for j in partition.jobs.values() if (j.steps[0].attempt > 0) is leased]
            if jobs:
                owner.hear(owner.asked(word_of(act[0], jobs[act[1] % len(jobs)])))
    expected = [place[2] for place in plainly(partition, queue, TYPES, 100)]
    assert [
        job.id for job, _ in partition.best(queue.name, TYPES, 100, owner.clock.now)
    ] == expected


def word_of(kind: str, job: Job) -> Command:
    match kind:
        case "cancel":
            return CancelJob(job.id)
        case "lock":
            return LockJob(job.id, RUNTIME)
        case "end":
            return SubmitResult(job.id, job.fence, OK)
        case _:
            return ReleaseLease(job.id, job.fence)


TestQueues = Queues.TestCase
TestQueues.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
