"""Cancel: at once while nobody runs it, else by asking its runtime; and who wins a race."""

from __future__ import annotations

import pytest

from ledger.domain.failures import LEASE_EXPIRED
from ledger.domain.job import status
from ledger.domain.rejections import Rejection
from ledger.domain.steps import Settled, Status
from tests.support.builders import (
    Fact,
    acknowledge_cancel,
    cancel,
    cancel_asked,
    cancelled,
    expired,
    extended,
    fail,
    failed,
    gave_up,
    heartbeat,
    leased,
    lock,
    release,
    released,
    requested,
    result,
    retried,
    started,
    succeeded,
)
from tests.support.clock import after
from tests.support.given import given

pytestmark = pytest.mark.rule("S1.10")

RUNNING = (requested(), leased(), started())
CANCELLING = (*RUNNING, cancel_asked("no consent"))


# --- Asking --------------------------------------------------------------------------------------
def test_a_pending_job_is_cancelled_at_once() -> None:
    told = given(requested()).when(cancel("no consent"))
    ended = told.then(cancelled("at_once", "no consent"), again=Rejection.JOB_CLOSED)
    assert status(ended.job) == "cancelled"
    assert ended.job.cancel is not None
    assert (ended.job.cancel.reason, ended.job.cancel.by) == ("no consent", "tester")


def test_a_delayed_job_and_one_that_waits_for_its_retry_are_cancelled_at_once() -> None:
    for history in ((requested(delay=90),), (*RUNNING, failed(), retried(1))):
        given(*history).when(cancel()).then(cancelled("at_once"), again=Rejection.JOB_CLOSED)


@pytest.mark.parametrize("more", [(), (started(),), (started(), gave_up())])
def test_the_runtime_of_a_leased_running_or_waiting_job_is_asked_to_stop(
    more: tuple[Fact, ...],
) -> None:
    told = given(requested(), leased(), *more).when(cancel("why")).then(cancel_asked("why"))
    assert status(told.job) == "cancelling"


def test_asking_twice_is_no_news() -> None:
    told = given(*CANCELLING, after(10)).when(cancel("other")).then()
    assert told.job.cancel is not None
    assert told.job.cancel.reason == "no consent"


def test_a_type_may_allow_no_cancel() -> None:
    refused = Rejection.CANCEL_NOT_SUPPORTED
    given(requested(cancel_supported=False)).when(cancel()).then(refused)
    given(requested(cancel_supported=False), leased()).when(cancel()).then(refused)


def test_an_ended_job_is_closed_to_a_cancel_even_of_another_version() -> None:
    told = given(requested(), cancelled("at_once")).when(cancel(if_version=1))
    assert told.then(Rejection.JOB_CLOSED).refusal.job_status == "cancelled"


def test_a_cancel_of_another_version_is_refused() -> None:
    given(*RUNNING).when(cancel(if_version=2)).then(Rejection.PRECONDITION_FAILED)
    given(*RUNNING).when(cancel(if_version=3)).then(
        cancel_asked(), again=Rejection.PRECONDITION_FAILED
    )


# --- How it ends ---------------------------------------------------------------------------------
def test_the_runtime_learns_of_it_at_its_next_heartbeat() -> None:
    told = given(*CANCELLING, after(20)).when(heartbeat()).then(extended())
    assert told.job.cancel is not None


def test_the_runtime_says_that_it_has_stopped() -> None:
    ended = given(*CANCELLING).when(acknowledge_cancel())
    told = ended.then(cancelled("acknowledged", "no consent"), again=Rejection.JOB_CLOSED)
    assert told.job.steps[0].phase == Settled(Status.CANCELLED)


def test_a_stop_that_nobody_asked_for_is_refused() -> None:
    given(*RUNNING).when(acknowledge_cancel()).then(Rejection.JOB_NOT_PENDING)


def test_a_stop_under_a_stale_fence_is_refused() -> None:
    given(*CANCELLING).when(acknowledge_cancel(7)).then(Rejection.LEASE_STALE)


def test_a_runtime_that_does_not_stop_is_cut_off_after_the_grace() -> None:
    held = given(*CANCELLING)
    held.when(after(29.999)).then()
    told = held.when(after(0.001)).then(cancelled("grace_ended", "no consent"))
    assert status(told.job) == "cancelled"


def test_beating_does_not_lengthen_the_grace() -> None:
    held = given(*CANCELLING, after(20), extended())
    held.when(after(10)).then(cancelled("grace_ended", "no consent"))


def test_a_new_owner_gives_the_grace_once_more() -> None:
    held = given(*CANCELLING, after(29), extended())
    held.owner.take_over()
    held.when(after(29)).then()
    held.when(after(1)).then(cancelled("grace_ended", "no consent"))


def test_an_attempt_that_expires_or_fails_while_cancelling_is_not_tried_again() -> None:
    short = requested(lease_us=5_000_000)
    lapsing = given(short, leased(lease=5), started(), cancel_asked())
    lapsing.when(after(5)).then(expired(LEASE_EXPIRED), cancelled("attempt_ended"))
    given(*CANCELLING).when(fail()).then(
        failed(), cancelled("attempt_ended", "no consent"), again=Rejection.JOB_CLOSED
    )


def test_a_release_while_cancelling_ends_it() -> None:
    given(*CANCELLING).when(release()).then(
        released(), cancelled("attempt_ended", "no consent"), again=Rejection.JOB_CLOSED
    )


# --- Races ---------------------------------------------------------------------------------------
def test_a_result_that_arrives_while_cancelling_wins() -> None:
    ended = given(*CANCELLING).when(result()).then(succeeded())
    assert status(ended.job) == "succeeded"


def test_a_cancel_after_the_result_is_told_that_it_succeeded() -> None:
    told = given(*RUNNING, succeeded()).when(cancel()).then(Rejection.JOB_CLOSED)
    assert told.refusal.job_status == "succeeded"


def test_a_cancelled_job_is_never_leased_again() -> None:
    ended = given(requested(), cancelled("at_once"))
    ended.when(lock()).then(Rejection.JOB_CLOSED)
    assert ended.owner.partition.next_ready(ended.job.request.queue, ("report",)) is None
