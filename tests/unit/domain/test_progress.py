"""Progress: at most once a second, the last word wins, and it never goes back in an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.commands import Beat, HeldLease, ProgressSaid
from ledger.domain.failures import LEASE_EXPIRED
from ledger.domain.ids import Fence, Session
from ledger.domain.job import Job
from ledger.domain.progress import merged
from tests.support.builders import (
    ADA,
    BOB,
    JOB,
    QUEUE,
    expired,
    fail,
    failed,
    heartbeat,
    leased,
    lock,
    progress,
    progressed,
    requested,
    result,
    retried,
    runtime_started,
    started,
    succeeded,
)
from tests.support.clock import after
from tests.support.given import given

RUNNING = (requested(), leased(), started())


def shown(job: Job) -> tuple[Any, ...]:
    last = job.steps[0].progress
    assert last is not None
    return last.percent, last.phase, last.message


def test_the_first_word_is_recorded_at_once() -> None:
    given(*RUNNING).when(progress(10, phase="load")).then(progressed(10, "load"))


def test_progress_starts_what_was_not_started() -> None:
    given(requested(), leased()).when(progress(10)).then(started(), progressed(10))


def test_a_word_within_a_second_waits_and_the_last_one_wins() -> None:
    told = given(*RUNNING, progressed(10))
    for percent in (20, 30, 40):
        told.owner.clock.pass_seconds(0.1)
        told.when(progress(percent)).then()
    told.when(after(0.6)).then()
    spoken = told.when(after(0.1)).then(progressed(40))
    spoken.when(after(5)).then()


def test_what_waits_is_not_lost_when_a_later_word_comes_in_time() -> None:
    told = given(*RUNNING, progressed(10, "load"), after(0.5))
    told.when(progress(20, phase="run")).then()
    told.owner.clock.pass_seconds(0.5)
    told.when(progress(30, message="almost")).then(progressed(30, "run", "almost"))
    told.when(after(5)).then()


def test_a_word_that_takes_back_what_waits_leaves_nothing_to_say() -> None:
    told = given(*RUNNING, progressed(10, "load"), after(0.5))
    told.when(progress(phase="run")).then()
    told.when(progress(phase="load")).then()
    assert not told.owner.partition.deferred
    told.when(after(5)).then()


def test_the_same_word_again_is_no_news() -> None:
    given(*RUNNING, progressed(10, "load"), after(9)).when(progress(10, phase="load")).then()


def test_saying_nothing_is_no_news() -> None:
    given(*RUNNING).when(progress()).then()
    given(*RUNNING, progressed(10), after(9)).when(progress()).then()


def test_it_never_goes_back_within_an_attempt() -> None:
    told = given(*RUNNING, progressed(50), after(1))
    told.when(progress(20)).then()
    told.when(progress(20, phase="again")).then(progressed(50, "again"))


def test_what_a_word_leaves_out_stays() -> None:
    told = given(*RUNNING, progressed(50, "load", "9 of 10"), after(1)).when(progress(60))
    assert shown(told.then(progressed(60, "load", "9 of 10")).job) == (60, "load", "9 of 10")


def test_a_new_attempt_begins_anew() -> None:
    told = given(*RUNNING, progressed(90), failed(), retried(1), after(1), leased(fence=2))
    assert told.job.steps[0].progress is None
    told.when(progress(5, fence=2)).then(started(2), progressed(5, fence=2))


def test_what_waits_ends_with_its_attempt() -> None:
    told = given(*RUNNING, progressed(10), after(0.5))
    told.when(progress(20)).then()
    told.when(fail()).then(failed(), retried(1))
    assert not told.owner.partition.deferred
    told = told.when(after(1)).then().when(lock()).then(leased(fence=2))
    told.when(after(5)).then()


def test_what_waits_ends_with_its_job() -> None:
    told = given(*RUNNING, progressed(10), after(0.5))
    told.when(progress(20)).then()
    told.when(result()).then(succeeded())
    assert not told.owner.partition.deferred
    told.when(after(5)).then()


def test_a_word_of_an_older_attempt_does_not_wait_for_the_next() -> None:
    told = given(*RUNNING, failed(), retried(1), after(1), leased(fence=2), progressed(1, fence=2))
    told.owner.partition.defer(JOB, Fence(1), ProgressSaid(99), told.now)
    assert not told.owner.partition.deferred


def test_a_heartbeat_carries_it() -> None:
    told = given(*RUNNING).when(heartbeat(percent=5.0)).then(progressed(5))
    told.owner.clock.pass_seconds(0.5)
    told.when(heartbeat(percent=6.0)).then()
    told.when(after(0.5)).then(progressed(6))


def test_a_heartbeat_that_only_extends_records_it_too() -> None:
    given(requested(), leased()).when(heartbeat(begin=False, percent=5.0)).then(progressed(5))


def test_a_beat_carries_it_for_each_lease() -> None:
    history = requested(), runtime_started(), leased(session="s1", number=1), started()

    def beat(number: int, percent: float) -> Beat:
        held = HeldLease(JOB, Fence(1), ProgressSaid(percent))
        return Beat(ADA, Session("s1"), QUEUE, number, ("report",), leases=(held,))

    told = given(*history).when(beat(1, 5)).then(progressed(5))
    told.owner.clock.pass_seconds(0.5)
    told.when(beat(2, 6)).then()
    told.when(after(0.5)).then(progressed(6))


def test_only_the_holders_beat_says_how_far_it_is() -> None:
    history = requested(), runtime_started(), leased(session="s1", number=1), started()
    held = (HeldLease(JOB, Fence(1), ProgressSaid(50)),)
    told = given(*history, runtime_started(BOB), progressed(5), after(0.5))
    told.when(Beat(BOB, Session("s1"), QUEUE, 1, ("report",), leases=held)).then()
    told.when(after(5)).then()


def test_a_lapse_comes_before_a_word_that_waits() -> None:
    told = given(requested(), leased(), started(), after(59.5), progressed(10), after(0.2))
    told.when(progress(20)).then()
    told.when(after(0.3)).then(expired(LEASE_EXPIRED), retried(1))


def test_a_timer_that_comes_for_nothing_keeps_the_lease_timed() -> None:
    told = given(requested(), leased(), started(), progressed(10), after(0.5))
    told.when(progress(20)).then()
    told.owner.partition.deferred.clear()
    told.when(after(0.5)).then()
    told.when(after(59)).then(expired(LEASE_EXPIRED), retried(1))


@pytest.mark.parametrize(
    ("before", "said", "expected"),
    [
        (None, ProgressSaid(1), ProgressSaid(1)),
        (ProgressSaid(5), ProgressSaid(1), ProgressSaid(5)),
        (ProgressSaid(5), ProgressSaid(7), ProgressSaid(7)),
        (ProgressSaid(5, "a", "b"), ProgressSaid(None, "c"), ProgressSaid(5, "c", "b")),
        (ProgressSaid(None, "a"), ProgressSaid(0), ProgressSaid(0, "a")),
        (ProgressSaid(1, "a", "b"), ProgressSaid(None, "", ""), ProgressSaid(1, "", "")),
    ],
)
def test_words_merge(
    before: ProgressSaid | None, said: ProgressSaid, expected: ProgressSaid
) -> None:
    assert merged(before, said) == expected
