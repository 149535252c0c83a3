"""Reruns: a new job for an ended one, with its lineage."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.commands import Asked, PutTemplate, RerunJob, Template
from ledger.domain.decide import Decided
from ledger.domain.events import JobRequested
from ledger.domain.ids import INLINE_BYTES_MAX, CommandId, JobId, Micros
from ledger.domain.partition import Bounds
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    JOB,
    QUEUE,
    cancelled,
    failed,
    instant,
    job_failed,
    job_id,
    keyed,
    leased,
    requested,
    started,
    succeeded,
)
from tests.support.clock import after
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S1.9")

ASKED: dict[str, Any] = {
    "payload": Raw(b'{"a":1}'),
    "labels": {"user": "1"},
    "priority": 3,
    "scope": "s",
    "timeout_us": 7,
    "idempotency_key": "k",
    "key_digest": "00" * 16,
    "content_digest": "11" * 16,
    "key_until": instant(900),
}
RUNNING = (requested(**ASKED), leased(), started())
FAILED = (*RUNNING, failed(retryable=False), job_failed())


def again(told: Given, **changed: Any) -> JobRequested:
    decided = told.when(RerunJob(changed.pop("job", JOB), **changed)).decided()
    [event] = decided.events
    assert isinstance(event, JobRequested)
    assert decided.job_id == event.job_id
    return event


def test_a_failed_job_is_run_again_as_a_new_one() -> None:
    told = given(*FAILED, after(5))
    new = again(told)
    assert new.job_id != JOB
    assert new.retried_from == JOB
    assert (new.payload, new.labels, new.priority) == (Raw(b'{"a":1}'), {"user": "1"}, 3)
    assert (new.scope, new.timeout_us) == ("s", 7)
    assert (new.ready_at, new.order) == (instant(5), instant(5))
    assert told.job.version == 5


def test_the_key_stays_with_the_first_job() -> None:
    new = again(given(*FAILED))
    assert (new.idempotency_key, new.key_digest, new.content_digest, new.key_until) == (None,) * 4


@pytest.mark.parametrize("end", [[succeeded()], [cancelled("at_once")]])
def test_however_it_had_ended(end: list[Any]) -> None:
    history = RUNNING if isinstance(end[0], type(succeeded())) else RUNNING[:1]
    assert again(given(*history, *end)).retried_from == JOB


def test_an_open_job_is_not_run_again() -> None:
    told = given(*RUNNING).when(RerunJob(JOB)).then(Rejection.JOB_NOT_CLOSED)
    assert told.refusal.job_status == "running"


def test_a_job_that_is_none_is_not_found() -> None:
    given().when(RerunJob(JOB)).then(Rejection.JOB_NOT_FOUND)


def test_a_rerun_may_change_payload_labels_and_priority() -> None:
    changed: dict[str, Any] = {"payload": Raw(b"[]"), "labels": {"x": "y"}, "priority": 0}
    new = again(given(*FAILED), **changed)
    assert (new.payload, new.labels, new.priority) == (Raw(b"[]"), {"x": "y"}, 0)


def test_a_rerun_of_a_rerun_names_the_one_it_was_made_from() -> None:
    told = given(*FAILED)
    second = again(told)
    told.owner.append(cancelled("at_once", job=second.job_id))
    assert again(told, job=second.job_id).retried_from == second.job_id


def test_the_same_command_again_is_the_same_job() -> None:
    told = given(*FAILED)
    first = told.when(RerunJob(JOB), "cmd-1").decided()
    told.owner.clock.pass_seconds(9)
    second = told.when(RerunJob(JOB), "cmd-1").decided()
    assert (second.job_id, second.events, second.replayed) == (first.job_id, (), True)


def test_a_key_makes_it_one_too() -> None:
    told = given(*FAILED)
    first = told.when(RerunJob(JOB), keyed("rerun", "a")).decided()
    assert told.when(RerunJob(JOB), keyed("rerun", "a")).decided().job_id == first.job_id
    told.when(RerunJob(JOB, priority=1), keyed("rerun", "b")).then(Rejection.IDEMPOTENCY_KEY_REUSED)


def test_a_rerun_of_another_version_is_refused() -> None:
    given(*FAILED).when(RerunJob(JOB, if_version=4)).then(Rejection.PRECONDITION_FAILED)
    assert again(given(*FAILED), if_version=5).retried_from == JOB


def test_a_copy_that_is_too_old_is_refused() -> None:
    told = given(*FAILED, after(4000))
    copy = Asked(RerunJob(JOB), CommandId("c"), sent_at=instant(0), appended_at=told.now)
    refused = told.owner.hear(copy)
    assert not isinstance(refused, Decided)
    assert refused.code is Rejection.COMMAND_EXPIRED


def test_a_full_partition_or_a_disabled_template_takes_no_rerun_either() -> None:
    full = given(*FAILED, after(1), requested(job_id("open")), bounds=Bounds(open_bytes_max=1))
    full.when(RerunJob(JOB)).then(Rejection.QUEUE_FULL)
    disabled = given(*FAILED)
    disabled.when(PutTemplate(QUEUE, "report", Template(enabled=False))).decided()
    disabled.when(RerunJob(JOB)).then(Rejection.TEMPLATE_DISABLED)


def test_nor_a_payload_that_is_too_large() -> None:
    large = Raw(b'"' + b"x" * INLINE_BYTES_MAX + b'"')
    given(*FAILED).when(RerunJob(JOB, large)).then(Rejection.PAYLOAD_TOO_LARGE)


# --- Of a job that the owner has forgotten -------------------------------------------------------
def closing_facts(job: JobId = JOB) -> Raw:
    made = requested(job, **ASKED)
    return Raw(msgspec.json.encode(made(Micros(instant(0)))))  # type: ignore[operator]


def test_a_forgotten_job_is_brought_along() -> None:
    new = again(given(), original=closing_facts())
    assert new.retried_from == JOB
    assert (new.payload, new.key_digest) == (Raw(b'{"a":1}'), None)


@pytest.mark.parametrize(
    "original", [b"{}", b"[", b'"x"', b'{"job_id":1}', bytes(closing_facts(job_id("other")))]
)
def test_what_is_brought_along_must_be_that_jobs_request(original: bytes) -> None:
    told = given().when(RerunJob(JOB, original=Raw(original))).then(Rejection.VALIDATION_FAILED)
    assert told.refusal.pointer == "/original"


def test_what_the_owner_knows_itself_counts_more() -> None:
    given(*RUNNING).when(RerunJob(JOB, original=closing_facts())).then(Rejection.JOB_NOT_CLOSED)
