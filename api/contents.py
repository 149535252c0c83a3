"""What jobs were given and what they gave, byte for byte, wherever it lies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import structlog
from msgspec import Raw, UnsetType
from starlette.responses import Response, StreamingResponse

from api.answers import not_modified, raw_response
from api.conditions import etag, spares
from api.decisions import caught_up, find, unknown_job
from api.jobs import NOT_MODIFIED
from api.operation import Answer, Ask, Endpoint, Operation
from api.problems import Refused, refused
from ledger.domain.events import Ref
from ledger.domain.flow_plan import base_of
from ledger.domain.ids import StepName
from ledger.domain.job import Job
from ledger.domain.job_view import job_view
from ledger.domain.step_changes import SUCCEEDED
from ledger.domain.steps import Part
from ledger.objects import ObjectDamaged, ObjectError, ObjectNotFound, ObjectStore
from projections.answers import Stored

LINK_SECONDS = 300
"""In which a link must be followed."""

log = structlog.get_logger(__name__)


async def read_output(ask: Ask) -> Response:
    stored = await _found(ask)
    job = stored.job
    if job.result is None:
        raise _missing(stored, "the job has no result")
    if job.withdrawn:
        raise _missing(stored, "the result was removed: its time was over, or its owner went")
    result = job.result
    return await _given(ask, stored, result.output_ref, result.output, "output.json")


async def read_payload(ask: Ask) -> Response:
    stored = await _found(ask)
    if stored.job.payload_withdrawn:
        raise _missing(stored, "the payload was removed with its owner")
    asked = stored.job.request
    return await _given(ask, stored, asked.payload_ref, asked.payload, "payload.json")


async def read_step_output(ask: Ask) -> Response:
    """Whoever holds the next step has it from the owner that this one succeeded: the view may have
    to hear of it first."""
    name = StepName(ask.path["step"])
    stored = await _found(ask)
    part = _done(stored.job, name)
    if part is None and await caught_up(ask, stored.partition):
        stored = await _found(ask)
        part = _done(stored.job, name)
    if part is None:
        raise _missing(stored, _why_none(stored.job, name))
    if stored.job.withdrawn:
        raise _missing(stored, "the outputs were removed: their time was over, or their owner went")
    return await _given(ask, stored, part.output_ref, part.output, "output.json")


def _done(job: Job, name: StepName) -> Part | None:
    """None: no step of that name has succeeded."""
    done = (step.part for step in job.steps if step.name == name and step.phase == SUCCEEDED)
    return next(done, None)


def _why_none(job: Job, name: StepName) -> str:
    if job.request.flow is None:
        return "the job has no steps; its output is at /output"
    many = sum(base_of(step.name) == name != step.name for step in job.steps)
    if many:
        return f"the step is done {many} times: ask for {name}[0] to {name}[{many - 1}]"
    return "no step of that name has succeeded"


async def _found(ask: Ask) -> Stored:
    stored = await find(ask, ask.job_id)
    if stored is None:
        raise await unknown_job(ask, ask.job_id)
    return stored


async def _given(
    ask: Ask, stored: Stored, ref: Ref | None, inline: Raw | UnsetType, filename: str
) -> Response:
    version = stored.job.version
    if spares(ask.request.headers.get("if-none-match"), version):
        return not_modified(version, stored.position)
    headers = {"ETag": etag(version), "Ledger-Position": stored.position}
    if ref is None:
        content = inline or b"null"
        return raw_response(content, headers=headers)
    store = ask.services.objects
    if store is None:
        raise _missing(stored, "it lies in an object store, and none is set up here")
    link = await store.link(ref, LINK_SECONDS, filename=filename)
    if link is not None:
        headers = {"Location": link, "Ledger-Position": stored.position}
        return Response(status_code=307, headers=headers)
    return await _streamed(ask, stored, store, ref, headers)


async def _streamed(
    ask: Ask, stored: Stored, store: ObjectStore, ref: Ref, headers: dict[str, str]
) -> Response:
    """The first piece is read before the answer begins: what is lost is a problem, not a body that
    breaks off."""
    pieces = store.stream(ref)
    try:
        first = await anext(pieces, b"")
    except ObjectNotFound as error:
        log.error("object_lost", job_id=ask.job_id, key=ref.key)
        raise _missing(stored, str(error)) from None
    except ObjectDamaged as error:
        log.error("object_damaged", job_id=ask.job_id, key=ref.key, reason=str(error))
        raise refused("OBJECT_DAMAGED", str(error), job_id=ask.job_id) from None
    headers = {**headers, "Content-Length": str(ref.size)}
    media_type = "application/json" if ref.key.endswith(".json") else "application/octet-stream"
    if ask.request.method == "HEAD":
        await pieces.aclose()
        return Response(headers=headers, media_type=media_type)
    body = _all_of(first, pieces, ref, ask.job_id)
    return StreamingResponse(body, headers=headers, media_type=media_type)


async def _all_of(
    first: bytes, pieces: AsyncGenerator[bytes, None], ref: Ref, job_id: str
) -> AsyncIterator[bytes]:
    """Breaks off where the object turns out damaged: then less comes than was announced."""
    try:
        yield first
        async for piece in pieces:
            yield piece
    except ObjectError as error:
        log.error("object_broke_off", job_id=job_id, key=ref.key, reason=str(error))
        raise
    finally:
        await pieces.aclose()


def _missing(stored: Stored, why: str) -> Refused:
    return refused(
        "RESULT_NOT_FOUND",
        why,
        job_id=stored.job.id,
        job_status=job_view(stored.job).status,
        headers={"Ledger-Position": stored.position},
    )


def _operation(
    path: str, name: str, summary: str, description: str, endpoint: Endpoint
) -> Operation:
    return Operation(
        method="GET",
        path=path,
        name=name,
        tag="jobs",
        summary=summary,
        endpoint=endpoint,
        is_read=True,
        headers={"If-None-Match": "ETags that the caller has"},
        answers={
            200: Answer(content=None, description=description),
            304: NOT_MODIFIED,
            307: Answer(
                content=None,
                description="It lies at this address, for five minutes",
                headers=("Location",),
            ),
        },
        codes=("JOB_NOT_FOUND", "RESULT_NOT_FOUND", "STORE_UNAVAILABLE", "OBJECT_DAMAGED"),
    )


OPERATIONS = (
    _operation(
        "/v1/jobs/{id}/output",
        "readJobOutput",
        "Read a job's output, byte for byte",
        "The output as its runtime sent it",
        read_output,
    ),
    _operation(
        "/v1/jobs/{id}/payload",
        "readJobPayload",
        "Read a job's payload, byte for byte",
        "The payload as it was sent",
        read_payload,
    ),
    _operation(
        "/v1/jobs/{id}/steps/{step}/output",
        "readStepOutput",
        "Read a step's output, byte for byte: what `input_refs` names",
        "The output as its runtime sent it",
        read_step_output,
    ),
)
