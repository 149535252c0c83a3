"""What is remembered of what is over: bounded, oldest first out, and added up rightly."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from ledger.domain import remembered
from ledger.domain.commands import Claim, LockJob
from ledger.domain.entries import Entry
from ledger.domain.events import CommandRejected
from ledger.domain.ids import SECOND, CommandId, JobId, Micros, QueueName, RuntimeId
from ledger.domain.partition import FORGET_EVERY, Bounds, Partition, identity_of, refusal_key
from ledger.domain.ready import PLACES_MIN
from ledger.domain.rejections import Rejection
from ledger.domain.sizes import size_of
from ledger.domain.timers import STALE_MAX, Timers
from tests.support.builders import (
    JOB,
    QUEUE,
    cancelled,
    fail,
    failed,
    job_id,
    keyed,
    leased,
    lock,
    progressed,
    request,
    requested,
    retried,
    started,
    succeeded,
)
from tests.support.clock import NOON, after
from tests.support.given import Given, at_its_time, given


def run(told: Given, many: int, first: int = 0) -> list[JobId]:
    """So many jobs come and go, one a second."""
    jobs = []
    for number in range(first, first + many):
        jobs.append(job_id(str(number)))
        told.also(after(1), requested(jobs[-1]), cancelled("at_once", job=jobs[-1]))
    return jobs


# --- Closed jobs ---------------------------------------------------------------------------------
def test_a_closed_job_is_remembered_for_an_hour() -> None:
    told = given(requested(), cancelled("at_once"))
    told.when(after(3_599)).then()
    run(told, FORGET_EVERY)
    assert told.owner.partition.job(JOB) is None
    given(requested(), cancelled("at_once")).when(lock()).then(Rejection.JOB_CLOSED)


def test_no_more_closed_jobs_than_the_bound() -> None:
    told = given(bounds=Bounds(closed_max=5))
    jobs = run(told, 40)
    partition = told.owner.partition
    assert len(partition.closed) <= 5 + FORGET_EVERY
    assert partition.job(jobs[-1]) is not None
    assert partition.job(jobs[0]) is None


def test_nor_more_bytes() -> None:
    told = given(bounds=Bounds(closed_bytes_max=10_000))
    run(told, 60)
    partition = told.owner.partition
    assert partition.closed.bytes <= 10_000 + FORGET_EVERY * 1_000
    assert partition.closed.bytes == sum(size_of(job) for job in partition.closed.values())


def test_the_bound_holds_where_jobs_only_end() -> None:
    told = given(bounds=Bounds(closed_max=5))
    jobs = [job_id(str(number)) for number in range(40)]
    for number, job in enumerate(jobs):
        told.also(requested(job, order=NOON + number))
    for job in jobs:
        told.also(cancelled("at_once", job=job))
    assert len(told.owner.partition.closed) <= 5 + FORGET_EVERY


def test_a_forgotten_job_is_not_found() -> None:
    told = given(requested(), cancelled("at_once"), bounds=Bounds(closed_us=SECOND))
    run(told, 2 * FORGET_EVERY)
    told.when(lock()).then(Rejection.JOB_NOT_FOUND)


# --- Bytes ---------------------------------------------------------------------------------------
def test_what_a_runtime_says_of_a_job_counts_as_its_bytes() -> None:
    told = given(requested(labels={"a": "b"}), leased(), started())
    partition = told.owner.partition
    before = partition.open_bytes
    told.also(progressed(5, "x" * 100, "y" * 1000))
    assert partition.open_bytes == before + 1100
    told.also(failed("BROKEN", "z" * 2000, details=Raw(b'"' + b"d" * 8000 + b'"')), retried(1))
    assert partition.open_bytes == before + 1100 + 2000 + 8002
    told.also(after(1), leased(fence=2))
    assert partition.open_bytes == before + 2000 + 8002
    told.also(succeeded(fence=2))
    assert partition.open_bytes == 0
    assert partition.closed.bytes == size_of(told.job)


# --- Keys ----------------------------------------------------------------------------------------
def hold(keys: remembered.Keys, number: int, *, until: float, window: float) -> None:
    holder = remembered.KeyHolder(b"%d" % number, job_id(str(number)), b"c", at(until))
    keys.add(holder, at(until - window))


def at(seconds: float) -> Micros:
    return Micros(round(seconds * SECOND))


def test_a_long_window_does_not_keep_short_ones() -> None:
    keys = remembered.Keys()
    hold(keys, 0, until=10**9, window=10**9)
    for number in range(1, 100):
        hold(keys, number, until=number, window=1)
    keys.forget(at(1_000))
    assert [held.digest for held in keys.values()] == [b"0"]


def test_a_key_that_came_again_after_its_window_is_held_for_the_new_one() -> None:
    keys = remembered.Keys()
    for until in (400, 800):
        hold(keys, 0, until=until, window=400)
    keys.forget(at(700))
    assert len(keys) == 1
    keys.forget(at(1_100))
    assert len(keys) == 0


# --- Outcomes ------------------------------------------------------------------------------------
def test_outcomes_go_after_their_hour_though_no_job_comes() -> None:
    told = given(requested(), bounds=Bounds(commands_us=SECOND))
    for number in range(40):
        told.owner.clock.pass_seconds(400)
        told.when(fail(fence=9), keyed(str(number), "a")).refused()
    assert len(told.owner.partition.outcomes) <= FORGET_EVERY


def test_a_full_table_is_not_grown_by_what_needs_no_row() -> None:
    told = given(requested(), bounds=Bounds(commands_max=3))
    for number in range(10):
        told.when(fail(fence=9), keyed(str(number), "a")).refused()
    assert len(told.owner.partition.outcomes) == 3
    told.when(request()).then(Rejection.QUEUE_FULL)
    told.when(lock()).then(leased(), again=Rejection.JOB_ALREADY_LOCKED)


def test_ids_of_keyed_commands_name_key_and_content() -> None:
    assert identity_of("ik.abc.def") == ("ik.abc", "def")
    assert identity_of("cmd.abc.def") == ("cmd.abc.def", "")


# --- Refusals ------------------------------------------------------------------------------------
def test_refusals_are_counted_by_what_makes_them_equal() -> None:
    def refused(command: str, **names: Any) -> tuple[str, ...]:
        return refusal_key(CommandRejected(QUEUE, CommandId(command), "t", "C", **names))

    assert refused("1") != refused("2")
    assert refused("1", job_id=JOB) == refused("2", job_id=JOB)
    assert refused("1", job_id=JOB) != refused("1", job_id=JOB, runtime_id=RuntimeId("ada"))
    assert refused(keyed("1", ""), job_id=JOB) != refused(keyed("2", ""), job_id=JOB)


def test_no_more_refusals_than_the_bound() -> None:
    told = given(bounds=Bounds(refusals_max=10))
    for number in range(50):
        told.when(LockJob(job_id(str(number)), RuntimeId("ada"))).refused()
    assert len(told.owner.partition.refused_at) == 10


# --- Lanes and timers ----------------------------------------------------------------------------
def test_jobs_that_end_while_nobody_asks_leave_no_trail() -> None:
    partition = Partition(0, Bounds(closed_max=0))
    for number in range(6 * PLACES_MIN):
        job = job_id(str(number))
        asked = at_its_time(requested(job, order=NOON + number), NOON)
        events = (asked, cancelled("at_once", job=job))
        partition.apply(Entry(number + 1, NOON, 0, 0, events))
    assert len(partition.queue(QUEUE).ready) <= PLACES_MIN + 1


def test_a_type_without_jobs_keeps_no_lane() -> None:
    told = given()
    for number in range(50):
        told.also(requested(job_id(str(number)), type=f"t{number}", order=NOON + number))
        told.also(cancelled("at_once", job=job_id(str(number))))
    types = tuple(f"t{number}" for number in range(50))
    assert told.owner.partition.next_ready(QUEUE, types) is None
    assert not told.owner.partition.queue(QUEUE).ready._lanes


def test_timers_that_are_moved_to_and_fro_leave_no_trail() -> None:
    timers: Timers[JobId] = Timers()
    for number in range(10 * STALE_MAX):
        timers.arm(JOB, at(10**9 - number))
    assert len(timers) == 1
    assert len(timers._heap) <= STALE_MAX + 3
    assert timers.pop(at(10**9), 5) == [JOB]


def test_delays_end_with_their_jobs() -> None:
    told = given(requested(delay=900), cancelled("at_once"))
    assert not told.owner.partition.delayed
    assert told.owner.partition.timers.pop(at(10**12), 5) == []


def test_a_claim_names_queues_that_are_not_begun_by_it() -> None:
    told = given()
    told.when(Claim(RuntimeId("ada"), (QueueName("a"),), ("t",))).decided()
    assert told.owner.partition.queues == {}


@pytest.mark.parametrize("many", [0, 3])
def test_a_forgetful_partition_answers_still(many: int) -> None:
    bounds = Bounds(closed_us=0, closed_max=many, commands_us=0, refusals_max=1)
    told = given(bounds=bounds)
    run(told, 30)
    assert isinstance(told.owner.partition, Partition)
    assert told.when(request()).decided().events
