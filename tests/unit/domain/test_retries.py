"""How attempts go wrong, which are tried again, when, and where the job waits then."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.commands import Report, ReportedFailure
from ledger.domain.decide import due
from ledger.domain.events import RetryScheduled
from ledger.domain.failures import Retry, is_retryable, retry_at
from ledger.domain.ids import SECOND, JobId, Micros
from ledger.domain.job import status
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    ADA,
    JOB,
    QUEUE,
    evenly,
    fail,
    failed,
    instant,
    job_failed,
    job_id,
    leased,
    lock,
    requested,
    retried,
    runtime_started,
    started,
)
from tests.support.clock import NOON, after
from tests.support.given import given

SECONDLY = evenly(backoff_us=(SECOND,))
SECOND_JOB, THIRD_JOB = job_id("second"), job_id("third")


@pytest.mark.rule("S1.2", "S1.5")
def test_a_failed_attempt_is_tried_again_after_its_backoff() -> None:
    told = given(requested(), leased(), started()).when(fail("NETWORK_ERROR", message="cut"))
    pending = told.then(failed("NETWORK_ERROR", "cut"), retried(1))
    assert status(pending.job) == "pending"
    pending.when(lock()).then(Rejection.JOB_NOT_PENDING)
    pending.when(after(1)).then()
    pending.when(lock()).then(leased(fence=2))


def test_the_last_backoff_repeats() -> None:
    retry = evenly(max_attempts=9)
    waits = [retry_at(retry, JOB, attempt, NOON) - NOON for attempt in range(1, 7)]
    assert waits == [s * SECOND for s in (1, 5, 30, 30, 30, 30)]


def test_no_backoff_is_none() -> None:
    asked = requested(retry=evenly(backoff_us=()))
    given(asked, leased(), started()).when(fail()).then(failed(), retried(0))


def test_jitter_only_ever_adds() -> None:
    retry = Retry(jitter=0.5, backoff_us=(SECOND,))
    waits = {retry_at(retry, job_id(str(n)), 1, NOON) - NOON for n in range(200)}
    assert len(waits) > 150
    assert min(waits) >= SECOND
    assert max(waits) <= 1.5 * SECOND


def test_chance_is_the_same_each_time() -> None:
    assert retry_at(Retry(), JOB, 1, NOON) == retry_at(Retry(), JOB, 1, NOON)
    assert retry_at(Retry(), JOB, 1, NOON) != retry_at(Retry(), JOB, 4, NOON) - 29 * SECOND


def test_a_runtime_may_ask_for_a_longer_wait_never_for_a_shorter_one() -> None:
    running = given(requested(), leased(), started())
    running.when(fail(retry_after_seconds=20)).then(failed(), retried(20))
    given(requested(), leased(), started()).when(fail(retry_after_seconds=0.5)).then(
        failed(), retried(1)
    )


def test_a_failure_starts_what_was_not_started() -> None:
    given(requested(), leased()).when(fail()).then(started(), failed(), retried(1))


def test_the_same_failure_again_is_no_news() -> None:
    told = given(requested(), leased(), started()).when(fail()).then(failed(), retried(1))
    told.when(fail("OTHER")).then()
    told.when(after(1)).then()
    told.when(lock()).then(leased(fence=2)).when(fail()).then()


def test_details_are_kept() -> None:
    told = given(requested(), leased(), started()).when(fail(details=Raw(b'{"line":3}')))
    told.then(failed(details=Raw(b'{"line":3}')), retried(1))


def test_details_have_8_kib() -> None:
    most = b'"' + b"x" * 8_190 + b'"'
    given(requested(), leased()).when(fail(details=Raw(most))).decided()
    told = given(requested(), leased()).when(fail(details=Raw(most + b" ")))
    assert told.then(Rejection.VALIDATION_FAILED).refusal.pointer == "/details"


@pytest.mark.rule("S1.5")
def test_three_retries_are_four_attempts() -> None:
    told = given(requested(retry=SECONDLY))
    for fence in (1, 2, 3):
        told = told.when(lock()).then(leased(fence=fence))
        told = told.when(fail(fence=fence)).then(started(fence), failed(fence=fence), retried(1))
        told = told.when(after(1)).then()
    told = told.when(lock()).then(leased(fence=4))
    ended = told.when(fail(fence=4)).then(
        started(4), failed(fence=4), job_failed(), again=Rejection.JOB_CLOSED
    )
    assert status(ended.job) == "failed"


# --- Which codes ---------------------------------------------------------------------------------
@pytest.mark.rule("S1.6")
@pytest.mark.parametrize(
    ("code", "flag", "retryable"),
    [
        ("NETWORK_ERROR", None, True),
        ("NETWORK_ERROR", True, True),
        ("NETWORK_ERROR", False, False),
        ("INVALID_SNAPSHOT", None, False),
        ("INVALID_SNAPSHOT", True, False),
        ("INVALID_SNAPSHOT", False, False),
        ("NEVER_HEARD_OF", None, True),
        ("NEVER_HEARD_OF", False, False),
        ("IN_BOTH", True, False),
    ],
)
def test_a_flag_is_honoured_within_the_catalogue(
    code: str, flag: bool | None, retryable: bool
) -> None:
    retry = Retry(
        retryable_codes=("NETWORK_ERROR", "IN_BOTH"), fatal_codes=("INVALID_SNAPSHOT", "IN_BOTH")
    )
    assert is_retryable(retry, code, flag) is retryable


@pytest.mark.rule("S1.6")
def test_what_is_not_retryable_fails_the_job_at_once() -> None:
    running = given(requested(), leased(), started())
    ended = running.when(fail("INVALID_SCHEMA", retryable=False)).then(
        failed("INVALID_SCHEMA", retryable=False),
        job_failed("INVALID_SCHEMA"),
        again=Rejection.JOB_CLOSED,
    )
    assert status(ended.job) == "failed"


@pytest.mark.rule("S1.6")
def test_a_fatal_code_beats_the_flag() -> None:
    asked = requested(retry=evenly(fatal_codes=("INVALID_SCHEMA",)))
    given(asked, leased(), started()).when(fail("INVALID_SCHEMA", retryable=True)).then(
        failed("INVALID_SCHEMA", retryable=False),
        job_failed("INVALID_SCHEMA"),
        again=Rejection.JOB_CLOSED,
    )


# --- Where it waits ------------------------------------------------------------------------------
def _assigned_after_a_failure(position: str) -> list[JobId]:
    """In order, once the first of three jobs has failed."""
    first = requested(retry=evenly(backoff_us=(), position=position))
    told = given(first, leased(), started(), after(1), runtime_started(), requested(SECOND_JOB))
    told.also(after(1), requested(THIRD_JOB)).when(fail()).decided()
    return [grant.job_id for grant in told.owner.assign(ADA, "s1", 5)]


def test_a_job_keeps_its_place() -> None:
    assert _assigned_after_a_failure("keep") == [JOB, SECOND_JOB, THIRD_JOB]


def test_a_job_goes_to_the_tail_where_its_type_says_so() -> None:
    assert _assigned_after_a_failure("tail") == [SECOND_JOB, THIRD_JOB, JOB]


def test_jobs_that_fail_in_one_report_stand_at_the_tail_in_its_order() -> None:
    told = given(runtime_started())
    jobs = [job_id(str(number)) for number in range(5)]
    for job in jobs:
        told.also(after(1), requested(job, retry=evenly(backoff_us=(), position="tail")))
    grants = told.owner.assign(ADA, "s1", 5)
    words = tuple(ReportedFailure(g.job_id, g.fence, "BROKEN") for g in reversed(grants))
    decided = told.when(Report(ADA, grants[0].session, QUEUE, words)).decided()
    orders = [e.order for e in decided.events if isinstance(e, RetryScheduled)]
    assert orders == sorted(set(orders))
    assert [g.job_id for g in told.owner.assign(ADA, "s1", 5)] == list(reversed(jobs))


def test_the_instant_of_a_retry_counts_from_the_entry_that_records_it() -> None:
    told = given(requested(), leased(), after(60))
    [_, retry] = due(told.owner.partition, told.job, instant(60), instant(62))
    assert isinstance(retry, RetryScheduled)
    assert retry.ready_at == Micros(instant(63))
