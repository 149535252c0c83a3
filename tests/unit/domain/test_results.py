"""Results: accepted once, said again without harm, and told who won."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import SubmitResult
from ledger.domain.events import JobSucceeded, Ref
from ledger.domain.failures import LEASE_EXPIRED
from ledger.domain.ids import INLINE_BYTES_MAX, Fence
from ledger.domain.job import status
from ledger.domain.object_keys import output_key
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    BOB,
    JOB,
    LATER,
    OK,
    OK_HASH,
    cancel,
    cancelled,
    expired,
    fail,
    failed,
    heartbeat,
    job_failed,
    leased,
    lock,
    progress,
    release,
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

pytestmark = pytest.mark.rule("S1.8")

RUNNING = (requested(), leased(), started())
DONE = (*RUNNING, succeeded())
SHA = "a" * 64


def test_a_result_is_the_end_of_the_job() -> None:
    ended = given(*RUNNING).when(result()).then(succeeded())
    assert status(ended.job) == "succeeded"
    assert ended.job.result is not None
    assert (ended.job.result.output, ended.job.result.attempt) == (OK, 1)


def test_the_hash_is_over_canonical_bytes() -> None:
    assert sha256_hex({"ok": True}) == OK_HASH
    given(*RUNNING).when(result(Raw(b' {"ok" : true}'))).then(succeeded(Raw(b' {"ok" : true}')))


def test_the_same_result_again_changes_nothing() -> None:
    given(*DONE).when(result()).then()
    given(*DONE).when(result(Raw(b'{ "ok":true }'))).then()


def test_the_same_result_counts_under_whatever_fence() -> None:
    given(*DONE).when(result(fence=7)).then()


def test_another_result_is_told_that_one_exists() -> None:
    told = given(*DONE).when(result(LATER)).then(Rejection.RESULT_ALREADY_EXISTS)
    assert told.refusal.job_status == "succeeded"


def test_a_result_after_the_attempt_had_expired_is_stale_while_the_job_is_open() -> None:
    history = (*RUNNING, after(60), expired(LEASE_EXPIRED), retried(1), after(1))
    given(*history, leased(BOB, fence=2)).when(result()).then(Rejection.LEASE_STALE)


def test_the_old_holders_result_after_the_new_ones_is_another() -> None:
    history = (*RUNNING, after(60), expired(LEASE_EXPIRED), retried(1), after(1))
    given(*history, leased(BOB, fence=2), succeeded(fence=2)).when(result(LATER)).then(
        Rejection.RESULT_ALREADY_EXISTS
    )


def test_a_failed_or_cancelled_job_has_no_result_to_compare_with() -> None:
    for end in ((failed(retryable=False), job_failed()), (cancelled("at_once"),)):
        history = RUNNING if len(end) == 2 else (requested(),)
        told = given(*history, *end).when(result()).then(Rejection.JOB_CLOSED)
        assert told.refusal.job_status in ("failed", "cancelled")


def test_all_else_said_of_an_ended_job_is_told_that_it_is_closed() -> None:
    words = (start(), heartbeat(), progress(9), fail(), release(), wait(), lock(), cancel())
    for word in words:
        told = given(*DONE).when(word).then(Rejection.JOB_CLOSED)
        assert told.refusal.job_status == "succeeded"


def test_an_output_that_lies_elsewhere_is_known_by_its_hash() -> None:
    ref = Ref(output_key(JOB, {}, Fence(1)), 70_000, SHA)
    ask = SubmitResult(JOB, Fence(1), output_ref=ref)
    done = JobSucceeded(JOB, given(*RUNNING).job.steps[0].name, Fence(1), 1, SHA, output_ref=ref)
    given(*RUNNING).when(ask).then(done)


def test_an_output_is_here_or_elsewhere_not_both() -> None:
    ask = SubmitResult(JOB, Fence(1), OK, Ref("users/1/out", 70_000, SHA))
    told = given(*RUNNING).when(ask).then(Rejection.VALIDATION_FAILED)
    assert told.refusal.pointer == "/output_ref"


def test_no_output_is_null() -> None:
    decided = given(*RUNNING).when(SubmitResult(JOB, Fence(1))).decided()
    [done] = decided.events
    assert isinstance(done, JobSucceeded)
    assert done.output_hash == sha256_hex(None)


def test_a_given_hash_is_taken_as_it_is() -> None:
    ask = SubmitResult(JOB, Fence(1), OK, output_hash=SHA)
    given(*RUNNING).when(ask).then(succeeded(digest=SHA))


def test_an_integer_without_canonical_form_is_an_error_with_its_place() -> None:
    told = given(*RUNNING).when(result(Raw(b'{"n":[1,9007199254740993]}')))
    refused = told.then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer == "/output/n/1"


def test_an_output_of_64_kib_fits_and_not_a_byte_more() -> None:
    most = b'"' + b"x" * (INLINE_BYTES_MAX - 2) + b'"'
    given(*RUNNING).when(result(Raw(most))).decided()
    told = given(*RUNNING).when(result(Raw(most + b" "))).then(Rejection.PAYLOAD_TOO_LARGE)
    assert (told.refusal.pointer, told.refusal.job_status) == ("/output", "running")
