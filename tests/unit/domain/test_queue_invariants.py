"""The invariants of queues say so when they are broken: by logs that no rule of ours writes."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.entries import Entry
from ledger.domain.events import (
    JobCollected,
    JobErased,
    QueuePaused,
    QueuePut,
    QueueResumed,
    ResultWithdrawn,
    ScheduleDisabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
)
from ledger.domain.ids import CommandId, Micros
from ledger.domain.invariants import Invariants
from ledger.domain.partition import Partition
from tests.support.builders import (
    JOB,
    QUEUE,
    Fact,
    cancel_asked,
    cancelled,
    failed,
    instant,
    job_failed,
    job_id,
    leased,
    requested,
    runtime_started,
    succeeded,
    template_put,
)
from tests.support.clock import NOON, after
from tests.unit.domain.test_invariants import Log, Step

OTHER = job_id("other")
SAME = "ab" * 16
ONE_AT_A_TIME = QueuePut(QUEUE, Raw(b'{"limits":[{"key":[],"max":1}]}'))
PER_USER = template_put(b'{"limits":[{"key":["/labels/user"],"max":1}]}')
HOURLY = Raw(b'{"cron":"0 * * * *","type":"report"}')


def policy(name: str) -> Fact:
    return template_put(b'{"concurrency_policy":"%s"}' % name.encode())


def equal(job: str = JOB, **more: object) -> Fact:
    return requested(job, dedupe_digest=SAME, **more)  # type: ignore[arg-type]


def put(next_at: Micros | None) -> Fact:
    return SchedulePut(QUEUE, "s", HOURLY, CommandId("c"), next_at)


def fired(at: Micros, then: Micros | None, job: object = None) -> Fact:
    return ScheduleFired(QUEUE, "s", at, job, next_at=then)  # type: ignore[arg-type]


T1, T2, T3 = instant(10), instant(20), instant(30)
DONE: tuple[Step, ...] = (requested(result_ttl_us=10_000_000), leased(), succeeded())
LOST: tuple[Step, ...] = (
    requested(failed_ttl_us=10_000_000),
    leased(),
    (failed(retryable=False), job_failed()),
)

BROKEN: dict[str, tuple[str, tuple[Step, ...]]] = {
    "two under a queue's limit": (
        "I14",
        (ONE_AT_A_TIME, requested(), after(1), requested(OTHER), leased(), leased(job=OTHER)),
    ),
    "two of one user": (
        "I14",
        (
            PER_USER,
            requested(labels={"user": "1"}),
            after(1),
            requested(OTHER, labels={"user": "1"}),
            (leased(), leased(job=OTHER)),
        ),
    ),
    "a lowered limit that is not obeyed": (
        "I14",
        (requested(), after(1), requested(OTHER), leased(), ONE_AT_A_TIME, leased(job=OTHER)),
    ),
    "an equal that was to be refused": (
        "I15",
        (policy("reject_same_scope"), equal(), after(1), equal(OTHER)),
    ),
    "an equal that was to be shared": (
        "I15",
        (policy("share_in_flight"), equal(), after(1), equal(OTHER)),
    ),
    "an equal that was to be replaced": (
        "I15",
        (policy("replace_existing"), equal(), after(1), equal(OTHER)),
    ),
    "done a second time": (
        "I15",
        (
            policy("allow_parallel"),
            equal(once=True),
            leased(),
            succeeded(),
            equal(OTHER, once=True),
        ),
    ),
    "leased while paused": ("I16", (requested(), QueuePaused(QUEUE), leased())),
    "a time that comes twice": (
        "I17",
        (put(T1), after(10), fired(T1, T2), fired(T1, T2)),
    ),
    "a time that was not next": ("I17", (put(T1), after(20), fired(T2, T3))),
    "a time that comes early": ("I17", (put(T1), fired(T1, T2))),
    "a time to come again": ("I17", (put(T1), after(10), fired(T1, T1))),
    "a time of a disabled one": (
        "I17",
        (put(T1), ScheduleDisabled(QUEUE, "s"), after(10), fired(T1, T2)),
    ),
    "a time of no schedule": ("I17", (after(10), fired(T1, T2))),
    "passed over and fired": (
        "I17",
        (
            put(T1),
            after(20),
            ScheduleSkipped(QUEUE, "s", 2, T1, instant(21), T3),
            fired(T2, T3),
        ),
    ),
    "a job of an occurrence that no one tells of": (
        "I17",
        (put(T1), after(10), requested(schedule="s")),
    ),
    "collected twice": (
        "I19",
        (*DONE, JobCollected(JOB, instant(10)), JobCollected(JOB, instant(10))),
    ),
    "kept longer than it says": ("I19", (*DONE, JobCollected(JOB, instant(11)))),
    "collected without a result": ("I19", (*LOST, JobCollected(JOB))),
    "withdrawn too soon": (
        "I19",
        (*DONE, JobCollected(JOB, instant(10)), after(9), ResultWithdrawn(JOB, "expired")),
    ),
    "withdrawn and never collected": ("I19", (*DONE, after(99), ResultWithdrawn(JOB, "expired"))),
    "erased too soon": ("I19", (*LOST, after(9), JobErased(JOB))),
    "erased where nobody asked for it": ("I19", (*DONE, after(99), JobErased(JOB))),
    "withdrawn while open": ("I19", (requested(), ResultWithdrawn(JOB, "owner_removed"))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    expected, steps = BROKEN[name]
    log = Log().write(*steps)
    assert expected in log.rules, log.violations


SOUND: dict[str, tuple[Step, ...]] = {
    "one after the other": (
        ONE_AT_A_TIME,
        requested(),
        after(1),
        requested(OTHER),
        leased(),
        succeeded(),
        leased(job=OTHER),
    ),
    "users beside each other": (
        PER_USER,
        requested(labels={"user": "1"}),
        after(1),
        requested(OTHER, labels={"user": "2"}),
        leased(),
        leased(job=OTHER),
    ),
    "a better one is passed over that a limit holds back": (
        PER_USER,
        runtime_started(),
        requested(labels={"user": "1"}),
        after(1),
        requested(job_id("third"), labels={"user": "1"}),
        after(1),
        requested(OTHER),
        leased(session="s1", number=1),
        after(1),
        leased(job=OTHER, session="s1", number=2),
    ),
    "replaced in the same entry": (
        policy("replace_existing"),
        equal(),
        after(1),
        (equal(OTHER), cancelled("at_once")),
    ),
    "replaced by one that waits beside it": (
        policy("replace_existing"),
        equal(),
        leased(),
        after(1),
        (equal(OTHER), cancel_asked()),
    ),
    "after the end of its equal": (
        policy("reject_same_scope"),
        equal(),
        cancelled("at_once"),
        after(1),
        equal(OTHER),
    ),
    "paused and resumed": (requested(), QueuePaused(QUEUE), QueueResumed(QUEUE), leased()),
    "times in their order": (
        put(T1),
        after(10),
        (requested(schedule="s"), fired(T1, T2, JOB)),
        after(20),
        ScheduleSkipped(QUEUE, "s", 1, T2, T3, T3),
        fired(T3, None),
    ),
    "kept and withdrawn in time": (
        *DONE,
        JobCollected(JOB, instant(10)),
        after(10),
        ResultWithdrawn(JOB, "expired"),
    ),
    "withdrawn of whatever ended": (
        requested(),
        cancelled("at_once"),
        ResultWithdrawn(JOB, "owner_removed"),
    ),
    "erased in time": (*LOST, after(10), JobErased(JOB)),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_is_not_named(name: str) -> None:
    log = Log().write(*SOUND[name])
    assert log.rules == set(), log.violations


def test_an_event_lies_in_the_partition_of_its_queue() -> None:
    invariants = Invariants(Partition(1), home=lambda queue: {"default": 0, "mine": 1}[queue])
    mine = requested(job_id("j", "mine"))(NOON)  # type: ignore[arg-type, operator]
    theirs = requested()(NOON)  # type: ignore[operator]
    assert invariants.check(Entry(1, NOON, 0, 0, (mine,))) == []
    found = invariants.check(Entry(2, NOON, 0, 0, (theirs, template_put())))
    assert [violation.rule for violation in found if violation.rule == "I3"] == ["I3", "I3"]
