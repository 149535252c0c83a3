"""Getting a lease, holding it, giving it up: who wins, what extends it, when it lapses."""

from __future__ import annotations

import pytest

from ledger.domain.failures import JOB_TIMEOUT, LEASE_EXPIRED, WAIT_TIMEOUT
from ledger.domain.job import status
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    ADA,
    BOB,
    acknowledge_cancel,
    cancel_asked,
    cancelled,
    evenly,
    expired,
    extended,
    fail,
    failed,
    gave_up,
    heartbeat,
    instant,
    job_expired,
    job_failed,
    leased,
    lock,
    progress,
    progressed,
    release,
    released,
    requested,
    result,
    retried,
    start,
    started,
    succeeded,
    wait,
)
from tests.support.clock import after
from tests.support.given import given

pytestmark = pytest.mark.rule("S1.4")


# --- Getting it ----------------------------------------------------------------------------------
def test_the_first_to_lock_a_pending_job_gets_a_lease_of_a_minute() -> None:
    given(requested()).when(lock(ADA)).then(leased(ADA, fence=1, lease=60))


def test_the_loser_is_told_that_it_is_locked() -> None:
    given(requested(), leased(ADA)).when(lock(BOB)).then(Rejection.JOB_ALREADY_LOCKED)


def test_the_holder_itself_is_told_so_too() -> None:
    given(requested(), leased(ADA)).when(lock(ADA)).then(Rejection.JOB_ALREADY_LOCKED)


def test_the_very_same_lock_again_has_the_same_answer_even_after_the_lease_has_ended() -> None:
    told = given(requested()).when(lock(ADA), "cmd-lock").then(leased(ADA))
    told = told.when(fail("BROKEN")).then(started(), failed(), retried(1))
    again = told.when(lock(ADA), "cmd-lock").decided()
    assert again.replayed
    assert [grant.fence for grant in again.grants] == [1]


def test_a_lock_that_was_refused_stays_refused_under_its_id() -> None:
    told = given(requested(), leased(BOB)).when(lock(ADA), "cmd-lock")
    freed = told.then(Rejection.JOB_ALREADY_LOCKED).when(release()).then(released())
    freed.when(lock(ADA), "cmd-lock").then(Rejection.JOB_ALREADY_LOCKED)
    freed.when(lock(ADA)).then(leased(ADA, fence=2, attempt=1))


def test_each_lease_has_a_higher_fence() -> None:
    given(requested(), leased(), released()).when(lock(BOB)).then(leased(BOB, fence=2, attempt=1))


def test_a_delayed_job_is_not_to_be_locked_before_its_time() -> None:
    told = given(requested(delay=50)).when(lock()).then(Rejection.JOB_NOT_PENDING)
    assert "12:00:50" in told.refusal.detail
    given(requested(delay=50), after(50)).when(lock()).then(leased())


def test_a_job_that_waits_for_its_completion_is_not_to_be_locked() -> None:
    given(requested(), leased(), gave_up()).when(lock(BOB)).then(Rejection.JOB_NOT_PENDING)


def test_a_cancelling_job_is_not_to_be_locked() -> None:
    given(requested(), leased(), cancel_asked()).when(lock(BOB)).then(Rejection.JOB_NOT_PENDING)


def test_a_step_that_is_none_is_an_error() -> None:
    ask = lock()
    ask = type(ask)(ask.job_id, ask.runtime_id, "polish")  # type: ignore[arg-type]
    told = given(requested()).when(ask).then(Rejection.VALIDATION_FAILED)
    assert told.refusal.pointer == "/step"


# --- Starting ------------------------------------------------------------------------------------
def test_a_start_begins_the_time_that_the_execution_may_take() -> None:
    told = given(requested(timeout_us=9_000_000), leased()).when(start()).then(started(timeout=9))
    assert status(told.job) == "running"


def test_a_heartbeat_starts_what_was_not_started() -> None:
    given(requested(), leased()).when(heartbeat()).then(started())


def test_a_heartbeat_may_only_extend() -> None:
    given(requested(), leased(), after(20)).when(heartbeat(begin=False)).then(extended())


def test_a_result_starts_what_was_not_started() -> None:
    given(requested(), leased()).when(result()).then(started(), succeeded())


# --- Holding it ----------------------------------------------------------------------------------
def test_a_heartbeat_extends_the_lease_by_a_minute_from_now() -> None:
    told = given(requested(), leased(), started(), after(20)).when(heartbeat()).then(extended())
    assert told.job.steps[0].phase.lease.until == instant(80)  # type: ignore[union-attr]


@pytest.mark.parametrize(("lease_seconds", "most"), [(60, 60), (6, 6), (5, 5), (1, 5)])
def test_heartbeats_are_recorded_at_most_once_a_second_of_a_short_lease_five_times(
    lease_seconds: int, most: int
) -> None:
    told = given(requested(lease_us=lease_seconds * 1_000_000), leased(lease=lease_seconds))
    recorded = -1  # The start.
    for _ in range(10 * lease_seconds):
        told.owner.clock.pass_seconds(0.1)
        recorded += len(told.when(heartbeat()).decided().events)
    assert recorded == most


def test_a_heartbeat_under_a_stale_fence_extends_nothing() -> None:
    history = requested(), leased(), released(), leased(BOB, fence=2, attempt=1)
    given(*history).when(heartbeat(1)).then(Rejection.LEASE_STALE)


def test_a_lease_without_a_heartbeat_expires_after_its_length() -> None:
    held = given(requested(), leased())
    held.when(after(59.999)).then()
    told = held.when(after(0.001)).then(expired(LEASE_EXPIRED), retried(1))
    assert status(told.job) == "pending"


def test_a_lease_that_was_extended_expires_by_its_new_end() -> None:
    held = given(requested(), leased(), started(), after(40), extended())
    held.when(after(59)).then()
    held.when(after(1)).then(expired(LEASE_EXPIRED), retried(1))


def test_a_result_that_comes_late_but_before_the_expiry_counts() -> None:
    given(requested(), leased(), started(), after(61)).when(result()).then(succeeded())


def test_a_new_owner_gives_every_lease_a_full_length() -> None:
    held = given(requested(), leased(), started(), after(59))
    held.owner.take_over()
    held.when(after(59)).then()
    held.when(after(1)).then(expired(LEASE_EXPIRED), retried(1))


def test_what_an_expired_runtime_still_says_is_stale() -> None:
    lapsed = given(requested(), leased(), after(60), expired(LEASE_EXPIRED), retried(1))
    for word in (start(), heartbeat(), progress(5), result(), fail(), release(), wait()):
        lapsed.when(word).then(Rejection.LEASE_STALE)


# --- The time that an execution may take ---------------------------------------------------------
@pytest.mark.rule("S1.5")
def test_an_execution_that_takes_too_long_expires_however_often_it_beats() -> None:
    held = given(requested(), leased(), started(), after(50), extended(), after(50), extended())
    held.when(after(19)).then()
    held.when(after(1)).then(expired(JOB_TIMEOUT), retried(1))


@pytest.mark.rule("S1.5")
def test_the_time_counts_from_the_start_not_from_the_lease() -> None:
    held = given(requested(timeout_us=10_000_000), leased(), after(30), started(timeout=10))
    held.when(after(9)).then()
    held.when(after(1)).then(expired(JOB_TIMEOUT), retried(1))


@pytest.mark.rule("S1.5")
def test_a_take_over_does_not_lengthen_the_execution() -> None:
    held = given(requested(), leased(), started(), after(50), extended(), after(50), extended())
    held.owner.take_over()
    held.when(after(20)).then(expired(JOB_TIMEOUT), retried(1))


@pytest.mark.rule("S1.5")
def test_the_last_attempt_to_run_out_of_time_fails_the_job() -> None:
    once = given(requested(retry=evenly(max_attempts=1)), leased(), started(timeout=10))
    told = once.when(after(10)).then(expired(JOB_TIMEOUT), job_failed(JOB_TIMEOUT))
    assert status(told.job) == "failed"
    failure = told.job.steps[0].failure
    assert failure is not None
    assert (failure.code, failure.attempt) == (JOB_TIMEOUT, 1)


@pytest.mark.rule("S1.5")
def test_a_type_may_say_that_such_a_job_is_expired() -> None:
    asked = requested(retry=evenly(max_attempts=1), exhausted_as="expired")
    given(asked, leased()).when(after(60)).then(expired(LEASE_EXPIRED), job_expired(LEASE_EXPIRED))


@pytest.mark.rule("S1.5")
def test_a_fatal_code_of_the_clock_is_not_tried_again() -> None:
    asked = requested(retry=evenly(fatal_codes=(LEASE_EXPIRED,)))
    lapsed = expired(LEASE_EXPIRED, retryable=False)
    given(asked, leased()).when(after(60)).then(lapsed, job_failed(LEASE_EXPIRED))


# --- Giving it back ------------------------------------------------------------------------------
def test_a_release_spends_no_attempt() -> None:
    told = given(requested(), leased(), started()).when(release(reason="drain"))
    told.then(released(reason="drain")).when(lock(BOB)).then(leased(BOB, fence=2, attempt=1))


def test_a_release_again_is_no_news_until_the_next_lease_ends() -> None:
    freed = given(requested(), leased(), released())
    freed.when(release()).then()
    freed.when(lock(BOB)).then(leased(BOB, fence=2, attempt=1)).when(release()).then()


def test_a_failure_after_a_release_is_stale() -> None:
    given(requested(), leased(), released()).when(fail()).then(Rejection.LEASE_STALE)


def test_a_release_after_a_failure_is_stale() -> None:
    given(requested(), leased(), failed(), retried(1)).when(release()).then(Rejection.LEASE_STALE)


def test_the_hundred_and_first_release_spends_its_attempt() -> None:
    free = given(requested())
    for fence in range(1, 101):
        free = free.when(lock()).then(leased(fence=fence, attempt=1))
        free = free.when(release(fence)).then(released(fence))
    spent = free.when(lock()).then(leased(fence=101, attempt=1))
    told = spent.when(release(101)).then(released(101, spent=True))
    told.when(lock()).then(leased(fence=102, attempt=2))


def test_a_release_that_spends_the_last_attempt_fails_the_job() -> None:
    free = given(requested(retry=evenly(max_attempts=1)))
    for fence in range(1, 101):
        free = free.when(lock()).then(leased(fence=fence, attempt=1))
        free = free.when(release(fence)).then(released(fence))
    last = free.when(lock()).then(leased(fence=101, attempt=1)).when(release(101))
    told = last.then(released(101, spent=True), job_failed("RELEASED"), again=Rejection.JOB_CLOSED)
    failure = told.job.steps[0].failure
    assert failure is not None
    assert failure.message


# --- Waiting -------------------------------------------------------------------------------------
def test_a_wait_gives_up_the_lease_and_keeps_the_fence() -> None:
    waiting = given(requested(), leased(), started()).when(wait(600)).then(gave_up(wait=600))
    assert status(waiting.job) == "waiting"
    waiting.when(progress(30)).then(progressed(30))
    waiting.when(after(300)).then()
    waiting.when(result()).then(succeeded())


def test_a_waiting_job_may_fail_under_its_fence() -> None:
    given(requested(), leased(), gave_up()).when(fail()).then(failed(), retried(1))


def test_a_waiting_job_may_acknowledge_its_cancel() -> None:
    waiting = given(requested(), leased(), gave_up(), cancel_asked())
    told = waiting.when(acknowledge_cancel())
    told.then(cancelled("acknowledged"), again=Rejection.JOB_CLOSED)


def test_the_fence_of_a_waiting_job_holds_no_lease() -> None:
    waiting = given(requested(), leased(), started(), gave_up())
    waiting.when(heartbeat()).then(Rejection.LEASE_STALE)
    waiting.when(release()).then(Rejection.LEASE_STALE)
    waiting.when(wait()).then()
    waiting.when(start()).then()


def test_a_wait_starts_what_was_not_started() -> None:
    given(requested(), leased()).when(wait(5)).then(started(), gave_up(wait=5))


def test_a_wait_that_is_not_completed_in_time_expires_the_attempt() -> None:
    waiting = given(requested(), leased(), started(), gave_up(wait=600))
    waiting.when(after(599)).then()
    waiting.when(after(1)).then(expired(WAIT_TIMEOUT), retried(1))


def test_a_new_owner_gives_a_wait_a_full_length_of_a_lease() -> None:
    waiting = given(requested(), leased(), started(), gave_up(wait=600), after(599))
    waiting.owner.take_over()
    waiting.when(after(59)).then()
    waiting.when(after(1)).then(expired(WAIT_TIMEOUT), retried(1))


def test_a_wait_that_has_longer_to_go_is_not_moved_by_a_new_owner() -> None:
    waiting = given(requested(), leased(), started(), gave_up(wait=600), after(100))
    waiting.owner.take_over()
    waiting.when(after(499)).then()
    waiting.when(after(1)).then(expired(WAIT_TIMEOUT), retried(1))
