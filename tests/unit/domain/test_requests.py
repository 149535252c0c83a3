"""A request becomes a job: defaults, template, what it may override, and when it may begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec import Raw

from ledger.domain.commands import CancelPolicy, Claim, PutTemplate, RetryAsk, Template
from ledger.domain.events import JobRequested
from ledger.domain.failures import START_TIMEOUT, Retry
from ledger.domain.ids import INLINE_BYTES_MAX, SECOND, QueueName, queue_of
from ledger.domain.job import status
from ledger.domain.partition import Bounds
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    BOB,
    JOB,
    QUEUE,
    cancel_asked,
    cancelled,
    evenly,
    instant,
    job_expired,
    job_failed,
    leased,
    lock,
    released,
    request,
    requested,
    start,
    started,
)
from tests.support.clock import NOON, after
from tests.support.given import Given, given


def made(told: Given, **fields: Any) -> JobRequested:
    [event] = told.when(request(fields.pop("payload", None), **fields)).decided().events
    assert isinstance(event, JobRequested)
    return event


def put(told: Given, **fields: Any) -> None:
    told.when(PutTemplate(QUEUE, "report", Template(**fields))).decided()


def noon_utc(seconds: float = 0) -> datetime:
    return datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=seconds)


# --- Defaults ------------------------------------------------------------------------------------
@pytest.mark.rule("S1.1", "S1.3")
def test_a_type_needs_no_template() -> None:
    told = given()
    job = made(told)
    assert queue_of(job.job_id) == QUEUE
    assert job == JobRequested(
        job_id=job.job_id,
        queue=QUEUE,
        type="report",
        payload=Raw(b"{}"),
        ready_at=NOON,
        order=NOON,
        priority=5,
        timeout_us=120 * SECOND,
        lease_us=60 * SECOND,
        retry=Retry(4, (SECOND, 5 * SECOND, 30 * SECOND), 0.1, "keep"),
        grace_us=30 * SECOND,
    )
    assert status(told.known(job.job_id)) == "pending"


@pytest.mark.rule("S1.3")
def test_what_a_request_says_is_kept() -> None:
    said = {
        "labels": {"user": "1", "model": "m"},
        "scope": "project:42",
        "priority": 0,
        "timeout_seconds": 0.5,
        "lease_seconds": 1,
        "start_timeout_seconds": 0,
        "retry": RetryAsk(max_attempts=2, backoff_seconds=(0.25,), position="tail"),
        "result_ttl_seconds": 3,
        "failed_ttl_seconds": 4,
        "idempotency_key": "k",
    }
    job = made(given(), payload=b"[1]", **said)
    assert (job.labels, job.scope, job.priority) == (said["labels"], "project:42", 0)
    assert (job.timeout_us, job.lease_us, job.start_timeout_us) == (500_000, SECOND, 0)
    assert job.retry == Retry(2, (250_000,), 0.1, "tail")
    assert (job.result_ttl_us, job.failed_ttl_us) == (3 * SECOND, 4 * SECOND)
    assert (job.payload, job.idempotency_key) == (Raw(b"[1]"), "k")


# --- Templates -----------------------------------------------------------------------------------
@pytest.mark.rule("S1.1")
def test_a_template_says_what_a_request_does_not() -> None:
    told = given()
    put(
        told,
        priority=2,
        timeout_seconds=9,
        lease_seconds=8,
        start_timeout_seconds=7,
        result_ttl_seconds=6,
        retry=RetryAsk(max_attempts=2, fatal_codes=("BAD",)),
        cancel=CancelPolicy(False, 5),
        exhausted_as="expired",
    )
    job = made(told)
    assert (job.template_version, job.priority, job.exhausted_as) == (1, 2, "expired")
    assert (job.timeout_us, job.lease_us, job.start_timeout_us, job.result_ttl_us) == tuple(
        seconds * SECOND for seconds in (9, 8, 7, 6)
    )
    assert (job.cancel_supported, job.grace_us) == (False, 5 * SECOND)
    assert job.retry == Retry(max_attempts=2, fatal_codes=("BAD",))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 0),
        ("run_at", noon_utc(9)),
        ("delay_seconds", 0.0),
        ("timeout_seconds", 1),
        ("start_timeout_seconds", None),
        ("labels", {}),
    ],
)
def test_what_may_be_overridden_by_default(field: str, value: object) -> None:
    told = given()
    put(told)
    made(told, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lease_seconds", 5),
        ("retry", RetryAsk()),
        ("result_ttl_seconds", None),
        ("failed_ttl_seconds", 1),
    ],
)
def test_what_may_not_be_is_an_error(field: str, value: Any) -> None:
    told = given()
    put(told)
    refused = told.when(request(**{field: value})).then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer == f"/{field}"
    put(told, overridable=(field,))
    made(told, **{field: value})


def test_a_template_may_forbid_what_the_default_allows() -> None:
    told = given()
    put(told, overridable=(), start_timeout_seconds=9)
    allowed: dict[str, Any] = {"start_timeout_seconds": None, "priority": 5, "labels": {}}
    for field, value in allowed.items():
        refused = told.when(request(**{field: value})).then(Rejection.VALIDATION_FAILED).refusal
        assert refused.pointer == f"/{field}"
    made(told, payload=b"1", scope="s", idempotency_key="k")


def test_a_retry_is_merged_over_the_templates_over_the_defaults() -> None:
    told = given()
    put(told, overridable=("retry",), retry=RetryAsk(max_attempts=2, jitter=0))
    assert made(told, retry=RetryAsk(jitter=1, position="tail")).retry == Retry(
        max_attempts=2, jitter=1, position="tail"
    )


def test_a_disabled_template_takes_no_jobs_whatever_version_is_asked_for() -> None:
    told = given()
    put(told, title="one")
    made(told)
    put(told, enabled=False)
    told.when(request()).then(Rejection.TEMPLATE_DISABLED)
    told.when(request(template_version=1)).then(Rejection.TEMPLATE_DISABLED)


def test_a_version_that_was_disabled_serves_once_the_newest_is_enabled() -> None:
    told = given()
    put(told, title="one")
    made(told)
    put(told, enabled=False)
    put(told, title="three")
    assert made(told, template_version=1).template_version == 1


def test_a_job_keeps_the_version_that_it_was_created_with() -> None:
    told = given()
    put(told, timeout_seconds=1)
    first = made(told)
    put(told, timeout_seconds=2)
    assert (first.timeout_us, made(told).timeout_us) == (SECOND, 2 * SECOND)
    assert made(told, template_version=1).timeout_us == SECOND


def test_a_version_goes_with_the_last_open_job_that_holds_it() -> None:
    told = given()
    put(told, title="one")
    first, second = made(told), made(told)
    put(told, title="two")
    for job in (first, second):
        assert made(told, template_version=2).template_version == 2
        told.owner.append(cancelled("at_once", job=job.job_id))
    refused = told.when(request(template_version=1)).then(Rejection.TEMPLATE_NOT_FOUND).refusal
    assert refused.pointer == "/template_version"


def test_a_version_of_no_template_is_not_found() -> None:
    given().when(request(template_version=1)).then(Rejection.TEMPLATE_NOT_FOUND)


# --- When it may begin ---------------------------------------------------------------------------
def test_a_delay_counts_from_the_owners_now() -> None:
    job = made(given(after(3)), delay_seconds=1.5)
    assert job.ready_at == instant(4.5)


def test_an_instant_is_one_in_whatever_zone() -> None:
    there = noon_utc(90).astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert made(given(), run_at=there).ready_at == instant(90)


def test_an_instant_that_has_passed_is_now() -> None:
    assert made(given(after(99)), run_at=noon_utc(-5)).ready_at == instant(99)


def test_an_instant_and_a_delay_exclude_each_other() -> None:
    told = given().when(request(run_at=noon_utc(), delay_seconds=1))
    assert told.then(Rejection.VALIDATION_FAILED).refusal.pointer == "/delay_seconds"


def test_an_instant_beyond_ten_years_is_an_error() -> None:
    far = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12)))
    told = given().when(request(run_at=far)).then(Rejection.VALIDATION_FAILED)
    assert told.refusal.pointer == "/run_at"


# --- The time that it may wait for its start -----------------------------------------------------
def test_a_job_that_nobody_starts_in_time_is_expired() -> None:
    waiting = given(requested(start_timeout_us=60 * SECOND))
    waiting.when(after(59)).then()
    told = waiting.when(after(1)).then(job_expired(START_TIMEOUT))
    assert status(told.job) == "expired"


@pytest.mark.rule("S1.2")
def test_it_fails_where_its_type_says_so() -> None:
    waiting = given(requested(start_timeout_us=60 * SECOND, exhausted_as="failed"))
    assert status(waiting.when(after(60)).then(job_failed(START_TIMEOUT)).job) == "failed"


def test_the_time_runs_from_when_it_could_begin() -> None:
    waiting = given(requested(delay=100, start_timeout_us=60 * SECOND))
    waiting.when(after(159)).then()
    waiting.when(after(1)).then(job_expired(START_TIMEOUT))


def test_a_lease_is_no_start() -> None:
    waiting = given(requested(start_timeout_us=50 * SECOND), after(40), leased())
    told = waiting.when(after(10)).then(job_expired(START_TIMEOUT))
    told.when(start()).then(Rejection.JOB_CLOSED)


def test_nor_does_giving_it_back_begin_the_time_anew() -> None:
    waiting = given(requested(start_timeout_us=50 * SECOND), after(40), leased(), released())
    waiting.when(after(10)).then(job_expired(START_TIMEOUT))


def test_the_first_start_ends_it_for_good() -> None:
    asked = requested(start_timeout_us=50 * SECOND, retry=evenly(backoff_us=(90 * SECOND,)))
    begun = given(asked, leased(), started(), released(), after(100))
    begun.when(after(1)).then()
    begun.when(lock(BOB)).then(leased(BOB, fence=2, attempt=1))


def test_a_cancel_ends_it_too() -> None:
    asked = given(requested(start_timeout_us=10 * SECOND), leased(), cancel_asked())
    asked.when(after(29)).then()
    asked.when(after(1)).then(cancelled("grace_ended"))


# --- Size ----------------------------------------------------------------------------------------
def test_a_payload_of_64_kib_fits_and_not_a_byte_more() -> None:
    most = b'"' + b"x" * (INLINE_BYTES_MAX - 2) + b'"'
    assert made(given(), payload=most).payload == Raw(most)
    told = given().when(request(most + b" ")).then(Rejection.PAYLOAD_TOO_LARGE)
    assert told.refusal.pointer == "/payload"


# --- Room ----------------------------------------------------------------------------------------
def test_a_full_partition_takes_no_more_until_a_job_has_ended() -> None:
    told = given(requested(), bounds=Bounds(open_bytes_max=1))
    told.when(request()).then(Rejection.QUEUE_FULL)
    told.when(type(lock())(JOB, BOB)).then(leased(BOB))
    told.owner.append(cancel_asked()(told.now), cancelled("acknowledged"))  # type: ignore[operator]
    made(told)


def test_a_full_table_of_keys_refuses_rather_than_forgets() -> None:
    told = given(bounds=Bounds(keys_max=2))
    made(told, idempotency_key="1")
    made(told, idempotency_key="2")
    told.when(request(idempotency_key="3")).then(Rejection.QUEUE_FULL)
    again = told.when(request(idempotency_key="1")).decided()
    assert again.deduplicated


def test_a_refused_request_is_not_bound_to_its_refusal_by_a_full_queue() -> None:
    told = given(requested(), bounds=Bounds(open_bytes_max=1))
    told.when(request(), "cmd-1").then(Rejection.QUEUE_FULL)
    told.owner.append(cancelled("at_once"))
    assert told.when(request(), "cmd-1").decided().events


def test_a_queue_begins_with_what_is_kept_not_with_what_is_asked() -> None:
    told = given()
    queues = tuple(QueueName(f"q{number}") for number in range(50))
    told.when(Claim(BOB, queues, ("report",))).then()
    told.when(request(template_version=3)).then(Rejection.TEMPLATE_NOT_FOUND)
    assert not told.owner.partition.queues
