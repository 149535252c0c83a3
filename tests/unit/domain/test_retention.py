"""How long results are kept: collected once, withdrawn never early, erased where it was asked."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.commands import (
    Closing,
    CollectJob,
    RequestJob,
    SubmitResult,
    WithdrawResult,
)
from ledger.domain.events import (
    JobCollected,
    JobErased,
    JobRequested,
    Ref,
    ResultWithdrawn,
)
from ledger.domain.ids import Fence
from ledger.domain.job_view import job_view
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    JOB,
    OK,
    cancelled,
    failed,
    instant,
    job_failed,
    leased,
    requested,
    succeeded,
)
from tests.support.clock import after
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S4.5")

KEPT = Ref("jobs/out", 5, "ab" * 32)
MOVED = Ref("jobs/in", 5, "cd" * 32)


def done(ttl: float | None = 60) -> Given:
    ttl_us = None if ttl is None else round(ttl * 1_000_000)
    return given(requested(result_ttl_us=ttl_us), leased(), succeeded())


def hopeless(ttl: float | None = 60) -> Given:
    ttl_us = None if ttl is None else round(ttl * 1_000_000)
    asked = requested(failed_ttl_us=ttl_us, payload_ref=MOVED)
    return given(asked, leased(), failed(retryable=False), job_failed())


# --- Collecting ----------------------------------------------------------------------------------
def test_the_first_to_collect_sets_the_expiry() -> None:
    story = done().when(CollectJob(JOB)).then(JobCollected(JOB, instant(60)))
    story.owner.clock.pass_seconds(30)
    assert story.when(CollectJob(JOB)).decided().events == ()
    assert (story.job.collected_at, story.job.result_expires_at) == (instant(0), instant(60))


def test_without_a_ttl_it_never_expires() -> None:
    done(None).when(CollectJob(JOB)).then(JobCollected(JOB))


def test_only_a_job_that_succeeded_is_collected() -> None:
    assert hopeless().when(CollectJob(JOB)).decided().events == ()
    assert given(requested(), cancelled("at_once")).when(CollectJob(JOB)).decided().events == ()


def test_an_open_one_says_where_it_stands() -> None:
    refused = given(requested(), leased()).when(CollectJob(JOB)).refused()
    assert (refused.code, refused.job_status) == (Rejection.JOB_NOT_CLOSED, "leased")


def test_an_unknown_one_is_not_found() -> None:
    given().when(CollectJob(JOB)).then(Rejection.JOB_NOT_FOUND)


# --- Withdrawing ---------------------------------------------------------------------------------
@pytest.mark.rule("S4.7")
@pytest.mark.parametrize(("seconds", "events"), [(59.999, 0), (60, 1), (600, 1)])
def test_a_result_is_withdrawn_at_its_expiry_and_never_before(seconds: float, events: int) -> None:
    story = done()
    story.when(CollectJob(JOB)).decided()
    story.owner.clock.pass_seconds(seconds)
    said = story.when(WithdrawResult(JOB)).decided().events
    assert said == (ResultWithdrawn(JOB, "expired"),) * events
    assert story.when(WithdrawResult(JOB)).decided().events == ()


def test_what_was_never_collected_never_expires() -> None:
    assert done().also(after(10**6)).when(WithdrawResult(JOB)).decided().events == ()


def test_a_withdrawn_result_is_shown_no_more_and_collecting_says_the_same() -> None:
    story = done()
    story.when(CollectJob(JOB)).decided()
    assert job_view(story.job).result is not None
    story.owner.clock.pass_seconds(60)
    story.when(WithdrawResult(JOB)).decided()
    assert (job_view(story.job).result, story.job.end) == (None, "succeeded")
    assert story.when(CollectJob(JOB)).decided().events == ()
    assert job_view(story.job).result_expires_at == "2026-03-01T12:01:00.000Z"


def test_the_same_result_again_is_no_news_though_it_was_withdrawn() -> None:
    story = done()
    story.when(WithdrawResult(JOB, "owner_removed")).decided()
    assert story.when(SubmitResult(JOB, Fence(1), OK)).decided().events == ()
    other = SubmitResult(JOB, Fence(1), Raw(b"2"))
    assert story.when(other).refused().code == Rejection.RESULT_ALREADY_EXISTS


@pytest.mark.rule("S3.7")
def test_an_owners_removal_withdraws_at_once_and_once() -> None:
    story = (
        done()
        .when(WithdrawResult(JOB, "owner_removed"))
        .then(ResultWithdrawn(JOB, "owner_removed"))
    )
    assert story.when(WithdrawResult(JOB)).decided().events == ()


# --- Jobs that failed for good -------------------------------------------------------------------
@pytest.mark.rule("S4.7")
def test_a_job_that_failed_for_good_is_erased_after_its_time() -> None:
    story = hopeless()
    story.owner.clock.pass_seconds(59)
    assert story.when(WithdrawResult(JOB)).decided().events == ()
    story.owner.clock.pass_seconds(1)
    story.when(WithdrawResult(JOB)).then(JobErased(JOB))
    assert story.job.erased


@pytest.mark.rule("S4.7")
def test_without_a_time_it_stays() -> None:
    assert hopeless(None).also(after(10**7)).when(WithdrawResult(JOB)).decided().events == ()


# --- Forgotten jobs ------------------------------------------------------------------------------
# The owner remembers nothing of them; the read model brings along what it knows.
SUCCEEDED = Closing("succeeded", instant(-100), result_ttl_us=60_000_000)


def test_a_forgotten_job_is_collected_by_the_facts_that_come_along() -> None:
    story = given()
    collect = CollectJob(JOB, SUCCEEDED)
    told = story.when(collect).then(JobCollected(JOB, instant(60)))
    told.owner.clock.pass_seconds(30)
    assert told.when(collect).decided().events == ()
    assert story.owner.partition.late[JOB].result_expires_at == instant(60)


def test_the_first_collect_counts_though_the_read_model_does_not_know_of_it_yet() -> None:
    story = given()
    story.when(CollectJob(JOB, SUCCEEDED)).decided()
    story.owner.clock.pass_seconds(59)
    withdraw = WithdrawResult(JOB, closing=SUCCEEDED)
    assert story.when(withdraw).decided().events == ()
    story.owner.clock.pass_seconds(1)
    story.when(withdraw).then(ResultWithdrawn(JOB, "expired"))
    assert story.when(withdraw).decided().events == ()


def test_what_the_read_model_knows_of_counts_as_well() -> None:
    collected = msgspec.structs.replace(
        SUCCEEDED, collected_at=instant(-90), result_expires_at=instant(-30)
    )
    story = given()
    assert story.when(CollectJob(JOB, collected)).decided().events == ()
    story.when(WithdrawResult(JOB, closing=collected)).then(ResultWithdrawn(JOB, "expired"))


def test_a_forgotten_failure_is_erased_at_its_time() -> None:
    closing = Closing("failed", instant(-59), failed_ttl_us=60_000_000)
    story = given()
    assert story.when(WithdrawResult(JOB, closing=closing)).decided().events == ()
    story.owner.clock.pass_seconds(1)
    story.when(WithdrawResult(JOB, closing=closing)).then(JobErased(JOB))


def test_facts_of_a_job_that_is_open_here_are_not_believed() -> None:
    story = given()
    job_id = story.when(RequestJob("report")).decided().job_id
    assert job_id is not None
    refused = story.when(CollectJob(job_id, SUCCEEDED)).refused()
    assert refused.code == Rejection.JOB_NOT_CLOSED
    assert isinstance(story.known(job_id).request, JobRequested)
