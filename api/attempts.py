"""What an HTTP runtime does with one job: takes it, keeps it, ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct
from starlette.responses import Response

from api import bodies
from api.answers import accepted_response, raw_response
from api.bodies import fields_of
from api.decisions import decide, if_version, job_answer
from api.disconnects import unless_gone
from api.gateway import Undecided
from api.input import check_details, checked_inline
from api.jobs import ACCEPTED, JOB
from api.operation import Answer, Ask, Operation
from api.problems import invalid, refused
from api.views import HeartbeatView, LeaseGrantView
from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import (
    AcknowledgeCancel,
    FailAttempt,
    Heartbeat,
    LockJob,
    ReleaseLease,
    ReportProgress,
    StartAttempt,
    SubmitResult,
    WaitForCompletion,
)
from ledger.domain.events import Ref


async def lock_job(ask: Ask) -> Response:
    await if_version(ask, is_checked_by_owner=False)
    command = LockJob(ask.job_id, **fields_of(ask.body))
    decision = await unless_gone(ask.request, decide(ask, command, gives_back=True))
    return _data(decision)


async def heartbeat(ask: Ask) -> Response:
    await if_version(ask, is_checked_by_owner=False)
    return _data(await decide(ask, Heartbeat(ask.job_id, **fields_of(ask.body))))


async def start(ask: Ask) -> Response:
    return await _said(ask, StartAttempt)


async def progress(ask: Ask) -> Response:
    return await _said(ask, ReportProgress)


async def fail(ask: Ask) -> Response:
    if ask.body.details is not UNSET:
        check_details(ask.body.details)
    return await _said(ask, FailAttempt)


async def release(ask: Ask) -> Response:
    return await _said(ask, ReleaseLease)


async def wait(ask: Ask) -> Response:
    return await _said(ask, WaitForCompletion)


async def stopped(ask: Ask) -> Response:
    return await _said(ask, AcknowledgeCancel)


async def submit_result(ask: Ask) -> Response:
    body = ask.body
    changes: dict[str, Any] = {}
    if body.output is not UNSET:
        if body.output_ref is not None:
            raise invalid("/output_ref", "excludes output")
        assert isinstance(ask.value, dict)
        computed = sha256_hex(ask.value["output"])
        if body.output_hash not in (None, computed):
            raise invalid("/output_hash", "is not the SHA-256 of the RFC 8785 bytes of output")
        changes["output_hash"] = computed
        changes["output"] = checked_inline(ask.value, "output", body.output)
    elif body.output_ref is not None:
        changes["output_ref"] = Ref(**fields_of(body.output_ref))
    return await _said(ask, SubmitResult, changes)


async def _said(ask: Ask, kind: type[Any], changes: Mapping[str, Any] | None = None) -> Response:
    """One word on the job; the answer is the job after it."""
    await if_version(ask, is_checked_by_owner=False)
    command = kind(job_id=ask.job_id, **{**fields_of(ask.body), **(changes or {})})
    return await job_answer(ask, await decide(ask, command))


def _data(decision: Any) -> Response:
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    if decision.data is None:
        raise refused("LEASE_STALE", "answered before; the lease has ended since")
    headers = {"Idempotency-Replayed": "true"} if decision.replayed else {}
    return raw_response(decision.data, position=decision.position, headers=headers)


# --- The table -----------------------------------------------------------------------------------
_LEASE = ("JOB_NOT_FOUND", "JOB_CLOSED", "LEASE_STALE", "VIEW_BEHIND")


def _operation(
    path: str,
    name: str,
    summary: str,
    endpoint: Any,
    body: type[Struct],
    answer: Answer = JOB,
    *,
    codes: tuple[str, ...] = _LEASE,
) -> Operation:
    return Operation(
        method="POST",
        path=f"/v1/jobs/{{id}}/{path}",
        name=name,
        tag="runtimes",
        summary=summary,
        endpoint=endpoint,
        body=body,
        is_command=True,
        answers={200: answer, 202: ACCEPTED},
        codes=codes,
    )


OPERATIONS = (
    _operation(
        "lock",
        "lockJob",
        "Lease this job, if nobody else has",
        lock_job,
        bodies.Lock,
        Answer(content=LeaseGrantView, description="The lease, with the job and its inputs"),
        codes=(
            "JOB_NOT_FOUND",
            "JOB_ALREADY_LOCKED",
            "JOB_NOT_PENDING",
            "JOB_CLOSED",
            "QUEUE_PAUSED",
            "LIMIT_REACHED",
            "VIEW_BEHIND",
        ),
    ),
    _operation("start", "startAttempt", "The attempt runs", start, bodies.Start),
    _operation(
        "heartbeat",
        "heartbeat",
        "Extend the lease; learn of a cancel",
        heartbeat,
        bodies.Beat,
        Answer(content=HeartbeatView, description="The lease's recorded end"),
    ),
    _operation("progress", "reportProgress", "Say how far it is", progress, bodies.Progress),
    _operation(
        "result",
        "submitResult",
        "End the attempt with its output; the same again is no news",
        submit_result,
        bodies.Result,
        codes=(*_LEASE, "RESULT_ALREADY_EXISTS", "PAYLOAD_TOO_LARGE", "ENTRY_TOO_LARGE"),
    ),
    _operation(
        "fail",
        "failAttempt",
        "End the attempt with a failure: pending again, or failed",
        fail,
        bodies.Failure,
        codes=(*_LEASE, "ENTRY_TOO_LARGE"),
    ),
    _operation("release", "releaseLease", "Give the job back", release, bodies.Release),
    _operation(
        "wait",
        "waitForCompletion",
        "Give the lease up for an external completion under the same fence",
        wait,
        bodies.Wait,
    ),
    _operation(
        "cancelled",
        "acknowledgeCancel",
        "The cooperative stop is done",
        stopped,
        bodies.Stopped,
        codes=(*_LEASE, "JOB_NOT_PENDING"),
    ),
)
