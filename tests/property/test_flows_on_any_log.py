"""Totality for flows: whatever facts of steps stand in a log, nothing raises or never ends."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from ledger.domain.commands import Asked
from ledger.domain.decide import Decided, decide, due
from ledger.domain.digest import digest
from ledger.domain.entries import TIMER, Entry
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
    Event,
    JobCancelled,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    PassRestarted,
    RetryScheduled,
    SentBack,
    StepCancelled,
    StepCarried,
    StepDegraded,
    StepExpanded,
    StepFailed,
    StepQueued,
    StepSkipped,
    StepSucceeded,
    WaitStarted,
)
from ledger.domain.failures import Retry
from ledger.domain.flow_plan import Flow, OnFail, StepPlan
from ledger.domain.ids import CommandId, Fence, JobId, Micros, QueueName, RuntimeId, StepName
from ledger.domain.invariants import Invariants
from ledger.domain.job_view import job_json
from ledger.domain.partition import Partition
from ledger.domain.sizes import size_of
from tests.property.test_flows import words
from tests.support.examples import examples

QUEUE = QueueName("default")
JOBS = tuple(JobId(f"default.019ca945-0a00-7000-8000-00000000000{n}") for n in range(2))
NAMES = tuple(StepName(name) for name in "abc")

jobs = st.sampled_from(JOBS)
names = st.sampled_from([*NAMES, *NAMES, *(StepName(f"{n}[{i}]") for n in "ab" for i in (0, 1))])
fences = st.integers(0, 4).map(Fence)
instants = st.integers(-5, 200).map(lambda second: Micros(second * 1_000_000))
counts = st.integers(-1, 4)
texts = st.sampled_from(["", "BROKEN", "EACH_NOT_A_LIST"])
raws = st.sampled_from([b"[]", b"[1,2]", b'{"ok":true}', b"1", b"{"]).map(Raw)
flows = st.builds(
    Flow,
    st.lists(
        st.builds(
            StepPlan,
            st.sampled_from(NAMES),
            st.just("t"),
            st.lists(st.sampled_from([*NAMES, StepName("z")]), max_size=2).map(tuple),
            when=st.sampled_from([None, "steps.a.output.ok", "no condition"]),
            each=st.sampled_from([None, "/a", "/z", "/b/ok"]),
            retry=st.builds(Retry, max_attempts=counts, backoff_us=st.just(())),
            cancelable=st.booleans(),
            on_fail=st.none()
            | st.builds(
                OnFail,
                st.sampled_from([None, *NAMES, StepName("z")]),
                counts,
                st.sampled_from(["degrade", "fail"]),
            ),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.sampled_from(["all_steps_succeeded", "any_step_succeeded", "steps.a.output.ok", "none"]),
)
outputs = st.just(UNSET) | st.sampled_from([b"[]", b"[1,2]", b'{"ok":true}']).map(Raw)
extracts = st.just(UNSET) | st.sampled_from([b"{}", b'{"/ok":[1]}', b'{"":[1]}']).map(Raw)

requests = st.builds(
    JobRequested,
    job_id=jobs,
    queue=st.just(QUEUE),
    type=st.just("t"),
    payload=st.sampled_from([b"{}", b'{"x":1}']).map(Raw),
    ready_at=instants,
    order=counts,
    start_timeout_us=st.none() | st.integers(-1, 10**8),
    retry=st.builds(Retry, max_attempts=counts, backoff_us=st.sampled_from([(), (5,)])),
    flow=flows,
)
facts: st.SearchStrategy[Any] = st.one_of(
    requests,
    st.builds(LeaseGranted, jobs, names, st.just(RuntimeId("ada")), fences, counts, instants),
    st.builds(AttemptStarted, jobs, names, fences, instants),
    st.builds(JobProgressed, jobs, names, fences, st.sampled_from([None, 5.0, 1e308])),
    st.builds(LeaseReleased, jobs, names, fences, texts, st.booleans()),
    st.builds(WaitStarted, jobs, names, fences, instants),
    st.builds(AttemptFailed, jobs, names, fences, counts, texts, texts, st.booleans()),
    st.builds(AttemptExpired, jobs, names, fences, counts, texts, texts, st.booleans()),
    st.builds(RetryScheduled, jobs, names, instants, counts),
    st.builds(JobSucceeded, jobs, names, fences, counts, texts, raws),
    st.builds(JobFailed, jobs, texts),
    st.builds(CancelRequested, jobs, instants),
    st.builds(JobCancelled, jobs, st.sampled_from(["at_once", "grace_ended"])),
    st.builds(StepQueued, jobs, names, instants),
    st.builds(StepQueued, jobs, names, instants),
    st.builds(StepExpanded, jobs, names, raws),
    st.builds(StepSucceeded, jobs, names, fences, counts, texts, outputs, extract=extracts),
    st.builds(StepCarried, jobs, names, texts, outputs, extract=extracts),
    st.builds(StepSkipped, jobs, names, st.just("condition")),
    st.builds(StepFailed, jobs, names, texts, texts),
    st.builds(StepDegraded, jobs, names),
    st.builds(StepCancelled, jobs, names, st.sampled_from(["acknowledged", "grace_ended"])),
    st.builds(SentBack, jobs, names, names, counts),
    st.builds(PassRestarted, jobs, counts, instants, counts),
)
logs = st.tuples(
    requests,
    st.lists(st.tuples(instants, st.lists(facts, max_size=4).map(tuple)), max_size=25),
)
Log = tuple[Event, list[tuple[Micros, tuple[Event, ...]]]]


def entries_of(log: Log) -> list[Entry]:
    first, rest = log
    items = [(Micros(0), (first,)), *rest]
    return [Entry(n, at, n, n, events) for n, (at, events) in enumerate(items, 1)]


@settings(max_examples=examples(300), deadline=None)
@given(logs)
def test_any_log_of_flows_folds_and_its_faults_are_named(log: Log) -> None:
    invariants = Invariants(Partition(0))
    reader = Partition(0)
    for entry in entries_of(log):
        reader.apply(entry)
        found = invariants.check(entry)
        assert not [violation for violation in found if "raised" in violation.detail]
    invariants.settle()
    assert digest(reader) == digest(invariants.partition)
    assert reader.open_bytes == sum(map(size_of, reader.jobs.values()))
    for job in [*reader.jobs.values(), *reader.closed.values()]:
        assert job_json(job)


@settings(max_examples=examples(300), deadline=None)
@given(logs, st.lists(st.tuples(jobs, fences).flatmap(lambda at: words(*at)), max_size=6), instants)
def test_any_word_on_any_flow_is_decided(log: Log, said: list[Any], now: Micros) -> None:
    partition = Partition(0)
    for entry in entries_of(log):
        partition.apply(entry)
    at = Micros(max(now, partition.at))
    for job in partition.due(at, 100):
        if events := due(partition, job, at):
            partition.apply(Entry(partition.entry + 1, at, 0, 0, events, cause=TIMER))
    for number, command in enumerate(said):
        asked = Asked(command, CommandId(f"c{number}"), appended_at=at, offset=3)
        decision = decide(partition, asked, at)
        if isinstance(decision, Decided) and decision.events:
            cause = f"c:c{number}"
            partition.apply(Entry(partition.entry + 1, at, 0, 0, decision.events, cause=cause))
