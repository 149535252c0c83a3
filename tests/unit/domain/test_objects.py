"""Objects of jobs: whose they are, when they may be deleted, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.commands import (
    CancelJob,
    Closing,
    CollectJob,
    ConfirmDeleted,
    PutTemplate,
    Report,
    ReportedResult,
    RequestJob,
    RerunJob,
    SubmitResult,
    Template,
    WithdrawResult,
)
from ledger.domain.events import (
    JobCollected,
    JobErased,
    JobRequested,
    JobSucceeded,
    ObjectsDeleted,
    Ref,
    ResultWithdrawn,
)
from ledger.domain.ids import MAIN, SECOND, CommandId, Fence, RuntimeId, Session
from ledger.domain.job import objects_of, objects_to_delete
from ledger.domain.job_view import job_view
from ledger.domain.object_keys import output_key, payload_key
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    JOB,
    QUEUE,
    Fact,
    failed,
    instant,
    job_expired,
    job_failed,
    leased,
    lock,
    request,
    requested,
    started,
)
from tests.support.clock import Pause, after
from tests.support.given import Given, given

CMD = CommandId("cmd-1")
SHA = "ab" * 32
LABELS = {"user": "ada", "project": "p"}
PAYLOAD = Ref(payload_key(QUEUE, LABELS, CommandId("asked")), 70_000, SHA)
OUTPUT = Ref(output_key(JOB, LABELS, Fence(1)), 70_000, SHA)


def asked(**fields: Any) -> Fact:
    fields = {"result_ttl_us": 9 * SECOND, **fields}
    return requested(labels=LABELS, payload_ref=PAYLOAD, **fields)


def done(ref: Ref | None = OUTPUT) -> JobSucceeded:
    return JobSucceeded(JOB, MAIN, Fence(1), 1, SHA, output_ref=ref)


RUNNING = (asked(), leased(), started())
DONE = (*RUNNING, done())
EXPIRED = (
    *DONE,
    JobCollected(JOB, instant(9)),
    after(9),
    ResultWithdrawn(JOB, "expired"),
)
DOOMED = asked(failed_ttl_us=9 * SECOND, start_timeout_us=SECOND)


# --- Whose they are -------------------------------------------------------------------------------
@pytest.mark.rule("S3.7")
def test_a_payload_lies_where_its_command_puts_it() -> None:
    ref = Ref(payload_key(QUEUE, LABELS, CMD), 70_000, SHA)
    decided = given().when(request(labels=LABELS, payload_ref=ref), CMD).decided()
    [event] = decided.events
    assert isinstance(event, JobRequested)
    assert (event.payload, event.payload_ref) == (Raw(b"{}"), ref)


@pytest.mark.parametrize(
    "key",
    [
        payload_key(QUEUE, LABELS, CommandId("cmd-2")),
        payload_key(QUEUE, {"user": "bob"}, CMD),
        payload_key(QUEUE, LABELS, CMD).replace("input", "output"),
        f"{payload_key(QUEUE, LABELS, CMD)}/more",
        "users/ada/",
        "k",
    ],
)
def test_a_payload_that_belongs_to_another_command_is_refused(key: str) -> None:
    ask = request(labels=LABELS, payload_ref=Ref(key, 70_000, SHA))
    told = given().when(ask, CMD).then(Rejection.VALIDATION_FAILED)
    assert told.refusal.pointer == "/payload_ref/key"


def test_a_payload_is_here_or_elsewhere_not_both() -> None:
    ask = request(b"{}", labels=LABELS, payload_ref=PAYLOAD)
    told = given().when(ask, "asked").then(Rejection.VALIDATION_FAILED)
    assert told.refusal.pointer == "/payload_ref"


@pytest.mark.parametrize("by", [Fence(1), CMD])
@pytest.mark.rule("S3.7")
def test_an_output_belongs_to_its_fence_or_command(by: Fence | CommandId) -> None:
    ref = Ref(output_key(JOB, LABELS, by, "plan.pdf"), 70_000, SHA)
    said = SubmitResult(JOB, Fence(1), output_ref=ref)
    given(*RUNNING).when(said, CMD).then(done(ref))


@pytest.mark.parametrize(
    "key",
    [
        output_key(JOB, LABELS, Fence(2)),
        output_key(JOB, LABELS, CommandId("cmd-2")),
        output_key(JOB, {"user": "bob"}, Fence(1)),
        PAYLOAD.key,
        "users/ada/projects/p/tasks/../output/x",
    ],
)
def test_an_output_that_belongs_to_another_is_refused(key: str) -> None:
    ref = Ref(key, 70_000, SHA)
    told = given(*RUNNING).when(SubmitResult(JOB, Fence(1), output_ref=ref), CMD)
    assert told.then(Rejection.VALIDATION_FAILED).refusal.pointer == "/output_ref/key"


def test_a_report_is_held_to_the_same() -> None:
    word = ReportedResult(JOB, Fence(1), output_ref=Ref("k", 1, SHA))
    report = Report(RuntimeId("ada"), Session("s"), QUEUE, (word,))
    decided = given(*RUNNING).when(report).decided()
    assert [one.pointer for one in decided.refused] == ["/output_ref/key"]


def test_a_stale_fence_is_told_so_whatever_it_brings() -> None:
    said = SubmitResult(JOB, Fence(9), output_ref=Ref("k", 1, SHA))
    given(*RUNNING).when(said).then(Rejection.LEASE_STALE)


# --- Content --------------------------------------------------------------------------------------
@pytest.mark.rule("S1.7")
def test_the_same_content_under_one_key_is_one_job_wherever_it_lies() -> None:
    told = given()
    first = told.when(keyed_ask("cmd-1", SHA), "cmd-1").decided()
    second = told.when(keyed_ask("cmd-2", SHA), "cmd-2").decided()
    assert (second.job_id, second.deduplicated) == (first.job_id, True)
    told.when(keyed_ask("cmd-3", "cd" * 32), "cmd-3").then(Rejection.IDEMPOTENCY_KEY_REUSED)


def keyed_ask(command_id: str, payload_hash: str) -> RequestJob:
    ref = Ref(payload_key(QUEUE, {}, CommandId(command_id)), 70_000, SHA)
    return request(idempotency_key="k", payload_ref=ref, payload_hash=payload_hash)


def test_what_was_checked_against_an_older_template_is_to_be_sent_again() -> None:
    told = given()
    told.when(PutTemplate(QUEUE, "report", Template(title="1"))).decided()
    ref = Ref(payload_key(QUEUE, {}, CMD), 70_000, SHA)
    told.when(request(payload_ref=ref, checked_against=0), CMD).then(Rejection.VIEW_BEHIND)
    told.when(request(payload_ref=ref, checked_against=1), CMD).decided()


# --- Reruns ---------------------------------------------------------------------------------------
@pytest.mark.rule("S1.9")
def test_a_rerun_brings_a_copy_of_a_payload_that_lies_elsewhere() -> None:
    told = given(*DONE)
    refused = told.when(RerunJob(JOB), "other").then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer == "/payload"
    copy = Ref(payload_key(QUEUE, LABELS, CMD), 70_000, SHA)
    assert again(told, payload_ref=copy).payload_ref == copy


@pytest.mark.rule("S2.2")
def test_a_new_payload_that_lies_elsewhere_has_equals_of_its_own() -> None:
    told = given()
    told.when(PutTemplate(QUEUE, "report", Template(dedupe_keys=("/payload/n",)))).decided()
    first = told.when(request(b'{"n":1}')).decided()
    assert first.job_id is not None
    told.when(CancelJob(first.job_id)).decided()
    copy = Ref(payload_key(QUEUE, {}, CMD), 70_000, SHA)
    rerun = RerunJob(first.job_id, payload_ref=copy, extract={"/payload/n": 2})
    again = told.when(rerun, CMD).decided().job_id
    inline = told.when(request(b'{"n":2}')).decided().job_id
    assert again is not None
    assert inline is not None
    digests = [told.known(job_id).request.dedupe_digest for job_id in (again, inline)]
    assert digests[0] == digests[1] is not None


def test_a_copy_lies_by_the_new_jobs_labels() -> None:
    told = given(*DONE)
    copy = Ref(payload_key(QUEUE, LABELS, CMD), 70_000, SHA)
    labelled = RerunJob(JOB, payload_ref=copy, labels={"user": "bob"})
    refused = told.when(labelled, CMD).then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer == "/payload_ref/key"


def test_a_rerun_with_a_payload_of_its_own_needs_no_copy() -> None:
    event = again(given(*DONE), payload=Raw(b'{"a":1}'))
    assert (event.payload, event.payload_ref) == (Raw(b'{"a":1}'), None)


def again(told: Given, **fields: Any) -> JobRequested:
    decided = told.when(RerunJob(JOB, **fields), CMD).decided()
    event = decided.events[0]
    assert isinstance(event, JobRequested)
    return event


# --- Withdrawn, then deleted ----------------------------------------------------------------------
def keys(told: Given) -> tuple[set[str], set[str]]:
    """What the job refers to, and what of it is to be deleted."""
    return set(objects_of(told.job)), set(objects_to_delete(told.job))


BOTH = {PAYLOAD.key, OUTPUT.key}


@pytest.mark.rule("S4.7")
def test_nothing_is_to_be_deleted_before_it_is_withdrawn() -> None:
    told = given(*DONE, JobCollected(JOB, instant(9)))
    assert keys(told) == (BOTH, set())
    told.when(WithdrawResult(JOB)).then()
    told.owner.clock.pass_seconds(60)
    told.when(WithdrawResult(JOB)).then(ResultWithdrawn(JOB, "expired"))
    assert keys(told) == (BOTH, {OUTPUT.key})
    assert job_view(told.job).result is None


@pytest.mark.rule("S4.7")
def test_what_was_deleted_is_referred_to_no_more() -> None:
    told = given(*EXPIRED)
    told.when(ConfirmDeleted(JOB, (OUTPUT.key,))).then(ObjectsDeleted(JOB, (OUTPUT.key,)))
    assert keys(told) == ({PAYLOAD.key}, set())


def test_a_part_of_what_is_to_be_deleted_is_not_confirmed() -> None:
    told = given(*DONE, ResultWithdrawn(JOB, "owner_removed"))
    refused = told.when(ConfirmDeleted(JOB, (OUTPUT.key,))).then(Rejection.VALIDATION_FAILED)
    assert refused.refusal.pointer == "/keys"


@pytest.mark.parametrize(
    "end",
    [
        (leased(), started(), failed(retryable=False), job_failed()),
        (after(1), job_expired("START_TIMEOUT")),
    ],
)
@pytest.mark.rule("S4.7")
def test_a_job_that_ended_for_good_is_erased_with_its_objects_after_its_time(
    end: tuple[Fact | Pause, ...],
) -> None:
    told = given(DOOMED, *end)
    told.when(WithdrawResult(JOB)).then()
    told.owner.clock.pass_seconds(9)
    told.when(WithdrawResult(JOB)).then(JobErased(JOB))
    assert keys(told) == ({PAYLOAD.key}, {PAYLOAD.key})
    for word in (RerunJob(JOB), CollectJob(JOB), lock()):
        told.when(word).then(Rejection.JOB_NOT_FOUND)
    told.when(ConfirmDeleted(JOB, (PAYLOAD.key,))).then(ObjectsDeleted(JOB, (PAYLOAD.key,)))
    assert keys(told) == (set(), set())


# --- Their owner is removed -----------------------------------------------------------------------
REMOVED = WithdrawResult(JOB, "owner_removed")


@pytest.mark.rule("S3.7")
def test_with_its_owner_go_output_and_payload() -> None:
    told = given(*DONE).when(REMOVED).then(ResultWithdrawn(JOB, "owner_removed"))
    assert keys(told) == (BOTH, BOTH)
    view = job_view(told.job)
    assert (view.payload_ref, view.result, view.status) == (None, None, "succeeded")
    refused = told.when(RerunJob(JOB)).then(Rejection.VALIDATION_FAILED).refusal
    assert "removed with its owner" in refused.detail


@pytest.mark.rule("S3.7")
def test_a_payload_goes_though_the_output_was_deleted_before() -> None:
    told = given(*EXPIRED, ObjectsDeleted(JOB, (OUTPUT.key,)))
    told.when(REMOVED).then(ResultWithdrawn(JOB, "owner_removed"))
    assert PAYLOAD.key in keys(told)[1]
    told.when(ConfirmDeleted(JOB, tuple(BOTH))).then(ObjectsDeleted(JOB, tuple(BOTH)))
    assert keys(told) == (set(), set())


def test_an_open_job_keeps_its_objects() -> None:
    given(*RUNNING).when(REMOVED).then(Rejection.JOB_NOT_CLOSED)


def test_of_a_forgotten_job_the_facts_that_come_along_count() -> None:
    closing = Closing("succeeded", instant(0), withdrawn=True)
    given().when(WithdrawResult(JOB, "owner_removed", closing)).then(
        ResultWithdrawn(JOB, "owner_removed")
    )
    gone = replace(closing, payload_withdrawn=True)
    given().when(WithdrawResult(JOB, "owner_removed", gone)).then()
