"""What an HTTP runtime does with one job: takes it, keeps it, ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace
from starlette.responses import Response

from api import bodies
from api.answers import accepted_response, raw_response
from api.bodies import fields_of
from api.decisions import Decided, caught_up, decide, find, id_of, if_version, job_answer
from api.disconnects import unless_gone
from api.fitting import require_output
from api.gateway import Undecided
from api.grants import as_granted
from api.input import BODY_BYTES_MAX, check_details, inline_form
from api.jobs import ACCEPTED, JOB
from api.moving import moved_output, require_its_own
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
from ledger.domain.ids import CommandId, Fence
from ledger.domain.job import Job, quoted_step


async def lock_job(ask: Ask) -> Response:
    version = await if_version(ask)
    command = LockJob(ask.job_id, **fields_of(ask.body), if_version=version)
    decision = await unless_gone(ask.request, decide(ask, command, gives_back=True))
    if isinstance(decision, Decided) and decision.replayed and decision.data is not None:
        decision = replace(decision, data=await as_granted(ask, decision.data))
    return _data(decision)


async def heartbeat(ask: Ask) -> Response:
    version = await if_version(ask)
    command = Heartbeat(ask.job_id, **fields_of(ask.body), if_version=version)
    return _data(await decide(ask, command))


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
    if body.extract is not None and body.output_ref is None:
        raise invalid("/extract", "goes with output_ref only")
    if body.output is UNSET:
        return await _said(ask, SubmitResult, await _of_reference(ask))
    if body.output_ref is not None:
        raise invalid("/output_ref", "excludes output")
    assert isinstance(ask.value, dict)
    value = ask.value["output"]
    is_large = len(memoryview(body.output)) > BODY_BYTES_MAX
    computed = await asyncio.to_thread(sha256_hex, value) if is_large else sha256_hex(value)
    if body.output_hash not in (None, computed):
        raise invalid("/output_hash", "is not the SHA-256 of the RFC 8785 bytes of output")
    changes = {"output_hash": computed}
    inline = inline_form(value, body.output)
    if inline is not None:
        await require_output(ask, body.fence, inline)
        return await _said(ask, SubmitResult, {**changes, "output": inline})
    command_id = id_of(ask, ask.value)
    changes |= await _elsewhere(ask, value, command_id)
    return await _said(ask, SubmitResult, changes, command_id)


async def _of_reference(ask: Ask) -> dict[str, Any]:
    if ask.body.output_ref is None:
        return {}
    ref = Ref(**fields_of(ask.body.output_ref))
    stored = await find(ask, ask.job_id)
    if stored is not None:
        await require_its_own(ask, stored.job, ref, ask.body.fence)
    return {"output_ref": ref}


async def _elsewhere(ask: Ask, value: object, command_id: CommandId) -> dict[str, Any]:
    """Of an ended job nothing is moved: the hash alone tells whether it is the same result."""
    job = await _seen(ask, ask.body.fence)
    if job is None or job.end is not None:
        return {"output": UNSET}
    fence, output = ask.body.fence, ask.body.output
    moved = await moved_output(ask, job, fence, value, output, command_id)
    return {"output": UNSET, "output_ref": moved.ref, "extract": moved.extract}


async def _seen(ask: Ask, fence: Fence) -> Job | None:
    """The job, with the attempt that the fence names if there is one. None: no such job."""
    stored = await find(ask, ask.job_id)
    if stored is not None and quoted_step(stored.job, fence) is not None:
        return stored.job
    assert ask.partition is not None
    is_true = await caught_up(ask, ask.partition)
    stored = await find(ask, ask.job_id)
    if not is_true and (stored is None or quoted_step(stored.job, fence) is None):
        raise refused("VIEW_BEHIND", "the view does not show the job's lease yet: say it again")
    return None if stored is None else stored.job


async def _said(
    ask: Ask,
    kind: type[Any],
    changes: Mapping[str, Any] | None = None,
    command_id: CommandId | None = None,
) -> Response:
    """One word on the job; the answer is the job after it."""
    version = await if_version(ask)
    said = {**fields_of(ask.body), **(changes or {})}
    command = kind(job_id=ask.job_id, **said, if_version=version)
    return await job_answer(ask, await decide(ask, command, command_id=command_id))


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
    moves: bool = False,
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
        moves=moves,
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
        codes=(*_LEASE, "RESULT_ALREADY_EXISTS", "ENTRY_TOO_LARGE"),
        moves=True,
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
