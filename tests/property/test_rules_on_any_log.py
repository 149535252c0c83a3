"""Totality: whatever facts stand in a log, in whatever order, doubled, misplaced or of another
version, nothing raises: not the fold, not the invariants, not a decision, not the clock."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from ledger.domain.commands import (
    Asked,
    Beat,
    CancelJobs,
    CancelPart,
    Claim,
    CollectJob,
    Command,
    ConfirmDeleted,
    ConfirmPart,
    DeclareInputLost,
    DisableSchedule,
    EnableSchedule,
    GatewayBeat,
    HeldLease,
    Limit,
    Model,
    ProgressSaid,
    PutModel,
    PutQueue,
    PutSchedule,
    PutTemplate,
    QueueSettings,
    Report,
    RequestJob,
    RunSchedule,
    Schedule,
    Template,
    Where,
    WithdrawResult,
)
from ledger.domain.decide import Decided, decide, due
from ledger.domain.digest import digest, folded
from ledger.domain.entries import GRANT, TIMER, Entry, TakeOver
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
    CancelRequested,
    CommandDuplicated,
    CommandRejected,
    CommandsConsumed,
    Event,
    Extension,
    InputLost,
    InputQuarantined,
    JobCancelled,
    JobCollected,
    JobErased,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    LeasesExtended,
    ModelDeleted,
    ModelPut,
    ObjectsDeleted,
    QueuePaused,
    QueuePut,
    QueueResumed,
    RequestForwarded,
    ResultWithdrawn,
    RetryScheduled,
    RuntimeEnded,
    RuntimeStarted,
    ScheduleDeleted,
    ScheduleDisabled,
    ScheduleEnabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
    TemplatePut,
    Unknown,
    WaitStarted,
)
from ledger.domain.failures import Retry
from ledger.domain.ids import (
    MAIN,
    CommandId,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
    StepName,
)
from ledger.domain.invariants import Invariants
from ledger.domain.job_view import job_json
from ledger.domain.partition import Bounds, Partition
from ledger.domain.schedules import fire
from tests.property.test_rules import reported, words

JOBS = tuple(JobId(f"default.019ca945-0a00-7000-8000-00000000000{n}") for n in range(3))
QUEUES = (QueueName("default"), QueueName("other"))
OPERATIONS = ("op_1", "op_2")

jobs = st.sampled_from(JOBS)
queues = st.sampled_from(QUEUES)
fences = st.integers(-1, 4).map(Fence)
steps = st.sampled_from([MAIN, MAIN, MAIN, StepName("polish")])
instants = st.integers(-5, 200).map(lambda second: Micros(second * 1_000_000))
counts = st.integers(-1, 5)
texts = st.sampled_from(["", "a", "LEASE_EXPIRED"])
raws = st.sampled_from([b"{}", b"1", b"{", b'{"labels":{"u":"1"}}', b'{"title":"x"}']).map(Raw)
hexes = st.sampled_from([None, "", "00" * 16, "11" * 16, "no hex"])
runtimes = st.sampled_from([RuntimeId("ada"), RuntimeId("bob")])
sessions = st.sampled_from([Session(""), Session("s1"), Session("s2")])
operations = st.sampled_from(OPERATIONS)

job_events: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        JobRequested,
        job_id=jobs,
        queue=queues,
        type=st.sampled_from(["t", "u"]),
        payload=raws,
        ready_at=instants,
        order=counts,
        priority=st.integers(-1, 11),
        labels=st.sampled_from([{}, {"u": "1"}]),
        key_digest=hexes,
        content_digest=hexes,
        key_until=st.none() | instants,
        template_version=st.none() | counts,
        timeout_us=st.integers(0, 10**8),
        lease_us=st.integers(0, 10**8),
        start_timeout_us=st.none() | st.integers(-1, 10**8),
        retry=st.builds(Retry, max_attempts=counts, backoff_us=st.sampled_from([(), (5,)])),
        cancel_supported=st.booleans(),
        exhausted_as=st.sampled_from([None, "failed", "expired"]),
        retried_from=st.none() | jobs,
        dedupe_digest=st.sampled_from([None, "00" * 16]),
        once=st.booleans(),
        schedule=st.sampled_from([None, "s"]),
        result_ttl_us=st.none() | st.integers(-1, 10**8),
        failed_ttl_us=st.none() | st.integers(-1, 10**8),
    ),
    st.builds(LeaseGranted, jobs, steps, runtimes, fences, counts, instants, sessions, counts),
    st.builds(AttemptStarted, jobs, steps, fences, instants),
    st.builds(JobProgressed, jobs, steps, fences, st.sampled_from([None, 5.0, 1e308])),
    st.builds(LeaseReleased, jobs, steps, fences, texts, st.booleans()),
    st.builds(WaitStarted, jobs, steps, fences, instants),
    st.builds(AttemptFailed, jobs, steps, fences, counts, texts, texts, st.booleans()),
    st.builds(AttemptExpired, jobs, steps, fences, counts, texts, texts, st.booleans()),
    st.builds(RetryScheduled, jobs, steps, instants, counts),
    st.builds(JobSucceeded, jobs, steps, fences, counts, texts, raws),
    st.builds(JobFailed, jobs, texts),
    st.builds(JobExpired, jobs, texts),
    st.builds(CancelRequested, jobs, instants),
    st.builds(JobCancelled, jobs, st.sampled_from(["at_once", "grace_ended"])),
    st.builds(JobCollected, jobs, st.none() | instants),
    st.builds(ResultWithdrawn, jobs, st.sampled_from(["expired", "owner_removed"])),
    st.builds(JobErased, jobs),
    st.builds(ObjectsDeleted, jobs, st.just(("k",))),
)
names = st.sampled_from(["s", "t"])
settings_said = st.sampled_from(
    [
        b'{"limits":[{"key":[],"max":1}]}',
        b'{"limits":[{"key":["/labels/u","/payload/x"],"max":0}],"depth_max":1}',
        b'{"concurrency_policy":"replace_existing","repeatable":false}',
        b'{"cron":"* * * * *","type":"t"}',
        b'{"cron":"never","type":"t"}',
        b'{"base_url":"https://m"}',
        b"{",
    ]
).map(Raw)
operators_events: st.SearchStrategy[Any] = st.one_of(
    st.builds(TemplatePut, queues, st.sampled_from(["t", "u"]), counts, settings_said),
    st.builds(QueuePut, queues, settings_said),
    st.builds(QueuePaused, queues),
    st.builds(QueueResumed, queues),
    st.builds(SchedulePut, queues, names, settings_said, st.just(CommandId("c")), instants),
    st.builds(ScheduleDeleted, queues, names),
    st.builds(ScheduleEnabled, queues, names, st.none() | instants),
    st.builds(ScheduleDisabled, queues, names),
    st.builds(ScheduleFired, queues, names, instants, st.none() | jobs, next_at=instants),
    st.builds(ScheduleSkipped, queues, names, counts, instants, instants, st.none() | instants),
    st.builds(ScheduleStopped, queues, names, texts),
    st.builds(ModelPut, queues, names, settings_said),
    st.builds(ModelDeleted, queues, names),
)
other_events: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        LeasesExtended,
        queues,
        runtimes,
        st.lists(st.builds(Extension, jobs, steps, fences, instants), max_size=2).map(tuple),
    ),
    st.builds(RuntimeStarted, queues, runtimes, sessions, st.just(("t",)), counts),
    st.builds(RuntimeEnded, queues, runtimes, sessions, st.just("left")),
    st.builds(TemplatePut, queues, st.sampled_from(["t", "u"]), counts, raws),
    st.builds(RequestForwarded, queues, st.just(CommandId("c")), counts),
    st.builds(CommandRejected, queues, st.just(CommandId("c")), texts, texts, job_id=jobs),
    st.builds(
        CommandDuplicated,
        *(queues, st.just(CommandId("c")), texts, st.none() | jobs),
        *(hexes, hexes, st.none() | instants),
    ),
    st.builds(CommandsConsumed, queues, counts),
    st.builds(InputQuarantined, queues, texts, counts, texts, texts),
    st.builds(InputLost, queues, texts, counts, counts),
    st.builds(BulkStarted, queues, operations, st.just("cancel"), raws, counts),
    st.builds(BulkPartStarted, queues, operations, raws, counts),
    st.builds(BulkPartAdvanced, queues, operations, counts),
    st.builds(BulkPartEnded, queues, operations, counts),
    st.builds(BulkPartConfirmed, queues, operations, counts, counts),
    st.builds(BulkEnded, queues, operations, counts),
    st.builds(Unknown, texts, jobs, st.just(b"")),
)
causes = st.sampled_from([TIMER, GRANT, "", "c:one", "a:two", "c:ik.k.a", "a:ik.k.b", "c:ik."])
logs = st.lists(
    st.one_of(
        st.tuples(
            instants,
            st.lists(
                st.one_of(job_events, job_events, other_events, operators_events), max_size=4
            ).map(tuple),
            causes,
        ),
        instants,
    ),
    max_size=25,
)
Log = list[Micros | tuple[Micros, tuple[Event, ...], str]]

commands: st.SearchStrategy[Command] = st.one_of(
    st.tuples(jobs, fences.map(lambda fence: Fence(max(0, fence)))).flatmap(
        lambda pair: words(*pair)
    ),
    st.builds(
        RequestJob,
        type=st.sampled_from(["t", "u"]),
        queue=queues,
        labels=st.just({"u": "1"}),
        idempotency_key=st.sampled_from([None, "k"]),
        template_version=st.sampled_from([None, 1, 2]),
    ),
    st.builds(
        Report,
        st.just(RuntimeId("ada")),
        st.just(Session("s1")),
        queues,
        st.lists(
            st.tuples(jobs, st.integers(0, 3).map(Fence)).flatmap(lambda pair: reported(*pair)),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        Beat,
        runtimes,
        st.sampled_from([Session("s1"), Session("s2")]),
        queues,
        st.just(1),
        st.just(("t",)),
        leases=st.lists(st.builds(HeldLease, jobs, fences, st.just(ProgressSaid(5)))).map(tuple),
        leaving=st.booleans(),
    ),
    st.builds(Claim, runtimes, st.just(QUEUES), st.just(("t", "u")), st.just(5)),
    st.builds(GatewayBeat, st.just(0), st.just((CommandId("one"),))),
    st.builds(PutTemplate, queues, st.just("t"), st.builds(Template)),
    st.builds(CancelJobs, st.builds(Where, scope=st.just("s"))),
    st.builds(CancelPart, operations, st.just(0), st.builds(Where)),
    st.builds(ConfirmPart, operations, counts, counts),
    st.builds(DeclareInputLost, st.just(0), st.just("commands"), counts, counts),
    st.builds(PutQueue, queues, st.just(QueueSettings(limits=(Limit((), 1),)))),
    st.builds(PutSchedule, queues, names, st.just(Schedule("* * * * *", "t"))),
    st.builds(DisableSchedule, queues, names),
    st.builds(EnableSchedule, queues, names),
    st.builds(RunSchedule, queues, names),
    st.builds(PutModel, names, st.just(Model("https://m"))),
    st.builds(CollectJob, jobs),
    st.builds(WithdrawResult, jobs),
    st.builds(ConfirmDeleted, jobs, st.just(("k",))),
)
command_ids = st.sampled_from(["one", "two", "ik.k.a", "ik.k.b", "ik.", "new"])
BOUNDS = Bounds(closed_max=2, commands_max=3, refusals_max=2, closed_us=50_000_000)


def entries_of(log: Log) -> list[Entry | TakeOver]:
    entries: list[Entry | TakeOver] = []
    for number, item in enumerate(log, 1):
        if isinstance(item, int):
            entries.append(TakeOver(f"n{number}", item, "l", 1))
        else:
            at, events, cause = item
            entries.append(Entry(number, at, number, number, events, cause=cause))
    return entries


def fold(partition: Partition, entries: list[Entry | TakeOver]) -> None:
    for entry in entries:
        if isinstance(entry, TakeOver):
            partition.take_over(entry)
        else:
            partition.apply(entry)


@settings(max_examples=300, deadline=None)
@given(logs)
def test_any_log_folds_and_to_the_same_for_all_readers(log: Log) -> None:
    entries = entries_of(log)
    one, other = Partition(0, BOUNDS), Partition(0, BOUNDS)
    fold(one, entries)
    half = len(entries) // 2
    fold(other, entries[:half])
    other.due(Micros(10**9), 100)
    other.next_ready(QUEUES[0], ("t", "u"))
    fold(other, entries[half:])
    assert folded(one) == folded(other)
    assert digest(one) == digest(other)
    for job in [*one.jobs.values(), *one.closed.values()]:
        assert job_json(job)


@settings(max_examples=200, deadline=None)
@given(logs)
def test_the_invariants_say_what_is_wrong_with_any_log(log: Log) -> None:
    invariants = Invariants(Partition(0, BOUNDS))
    for entry in entries_of(log):
        if isinstance(entry, TakeOver):
            found = invariants.take_over(entry)
        else:
            found = invariants.check(entry)
        assert not [violation for violation in found if "raised" in violation.detail]
    invariants.settle()


@settings(max_examples=300, deadline=None)
@given(logs, st.lists(st.tuples(commands, command_ids), max_size=6), instants)
def test_any_command_is_decided_on_any_state(
    log: Log, asks: list[tuple[Command, str]], now: Micros
) -> None:
    partition = Partition(0, BOUNDS)
    fold(partition, entries_of(log))
    at = Micros(max(now, partition.at))
    for job in partition.due(at, 100):
        events = due(partition, job, at)
        if events:
            partition.apply(Entry(partition.entry + 1, at, 0, 0, events, cause=TIMER))
        else:
            partition.rearm(job, at)
    for queue, name in partition.schedule_timers.pop(at, 100):
        if events := fire(partition, queue, name, at, at):
            partition.apply(Entry(partition.entry + 1, at, 0, 0, events, cause=TIMER))
    for command, command_id in asks:
        asked = Asked(command, CommandId(command_id), appended_at=at, offset=3)
        decision = decide(partition, asked, at)
        if isinstance(decision, Decided) and decision.events:
            partition.apply(
                Entry(partition.entry + 1, at, 0, 0, decision.events, cause=f"c:{command_id}")
            )
            again = decide(partition, asked, at)
            if isinstance(again, Decided) and not isinstance(command, Claim | ConfirmDeleted):
                assert again.events == ()
