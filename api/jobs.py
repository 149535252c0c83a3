"""Jobs: asked for, read, listed, cancelled, run again."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, UnsetType
from starlette.responses import Response

from api.answers import job_response, json_response, not_modified, stored_response
from api.bodies import AsOf, Cancellation, HistoryQuery, JobsQuery, NewJob, Rerun, fields_of
from api.conditions import etag, spares
from api.decisions import (
    Decided,
    caught_up,
    decide,
    find,
    id_of,
    if_version,
    job_answer,
    refuse_if_match,
    shown,
    unknown_job,
)
from api.event_streams import LAST_EVENT_ID, job_stream, wants_stream
from api.filters import filter_of, instant
from api.fitting import Asked, require_payload, require_payload_of_rerun
from api.idempotency import fresh_id
from api.input import inline_form
from api.moving import (
    Moved,
    copied_outputs,
    copied_payload,
    labels_of,
    moved_payload,
)
from api.operation import Answer, Ask, Operation
from api.paging import Numbered, page_of, total_pages
from api.positions import position_text
from api.problems import invalid, refused
from api.sealing import sealed_headers
from api.server_sent import MEDIA_TYPE
from api.views import (
    AcceptedView,
    AttemptList,
    EventList,
    EventPage,
    JobList,
    JobPage,
    attempt_view,
    event_view,
)
from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import CancelJob, RequestJob, RerunJob
from ledger.domain.creation import EMPTY
from ledger.domain.events import Labels, Ref
from ledger.domain.ids import CommandId, Micros, StepName
from ledger.domain.job_view import JobView, job_view
from projections.answers import Stored


# --- Asked for -----------------------------------------------------------------------------------
async def request_job(ask: Ask) -> Response:
    return await request_of(ask, fields_of(ask.body))


async def request_of(ask: Ask, fields: dict[str, Any]) -> Response:
    """`fields` of a `NewJob`, its headers not sealed yet."""
    refuse_if_match(ask)
    if ask.key is not None:
        if fields["idempotency_key"] not in (None, ask.key):
            raise invalid("/idempotency_key", "differs from the header Idempotency-Key")
        fields["idempotency_key"] = ask.key
    command_id = fresh_id()  # The key is the job's own, and answers for it.
    assert isinstance(ask.value, dict)
    value = ask.value.get("payload", {})
    sent = fields["payload"]
    inline: Raw | None = EMPTY
    if sent is not UNSET:
        inline = fields["payload"] = inline_form(value, sent)
    queue, version = fields["queue"], fields.get("template_version")
    asked = Asked(queue, fields["type"], labels_of(fields["labels"], {}), version)
    is_keyed = fields["idempotency_key"] is not None
    if inline is None:
        await shown(ask, ask.services.partition_of(queue))
        fields |= _elsewhere(await moved_payload(ask, asked, value, sent, command_id))
    else:
        await require_payload(ask, asked, inline, is_keyed=is_keyed)
        if is_keyed:
            fields["payload_hash"] = sha256_hex(value)
    fields["forward_headers"] = sealed_headers(ask, fields["forward_headers"], command_id)
    decision = await decide(ask, RequestJob(**fields), command_id=command_id)
    return await job_answer(ask, decision, requested)


def _elsewhere(moved: Moved) -> dict[str, Any]:
    return {
        "payload": UNSET,
        "payload_ref": moved.ref,
        "payload_hash": moved.content_hash,
        "extract": moved.extract,
        "checked_against": moved.checked_against,
    }


def requested(decision: Decided, job: bytes | Raw) -> Response:
    """An earlier job answers for an equal request."""
    deduplicated = decision.is_duplicate or decision.replayed
    return job_response(
        job,
        status=200 if deduplicated else 201,
        position=decision.position,
        is_deduplicated=deduplicated,
        replayed=decision.replayed,
        with_location=True,
    )


# --- Read ----------------------------------------------------------------------------------------
async def read_job(ask: Ask) -> Response:
    stored = await _found(ask)
    query: AsOf = ask.query
    if query.as_of is not None:
        stored = await _as_it_was(ask, stored, query.as_of)
    return _unless_known(ask, stored) or stored_response(stored.job, stored.position)


async def _found(ask: Ask) -> Stored:
    stored = await find(ask, ask.job_id)
    if stored is None:
        raise await unknown_job(ask, ask.job_id)
    return stored


def _unless_known(ask: Ask, stored: Stored) -> Response | None:
    version = stored.job.version
    if spares(ask.request.headers.get("if-none-match"), version):
        return not_modified(version, stored.position)
    return None


async def _as_it_was(ask: Ask, stored: Stored, text: str) -> Stored:
    reads, job_id = ask.services.reads, ask.job_id
    if text.isascii() and text.isdecimal():
        version = int(text)
        before = await reads.as_of(job_id, version=version) if version else None
        if before is None or before.job.version != version:
            raise await unknown_job(
                ask, job_id, f"the job has no version {version}; its last is {stored.job.version}"
            )
        return before
    at = instant("as_of", text)
    # Answers show milliseconds: such an instant means the whole of its millisecond.
    at = at if at % 1000 else Micros(at + 999)
    before = await reads.as_of(job_id, at=at)
    if before is None:
        raise await unknown_job(ask, job_id, f"the job did not exist at {text}")
    return before


async def list_jobs(ask: Ask) -> Response:
    query: JobsQuery = ask.query
    where = filter_of(query)
    wanted = page_of(query)
    reads = ask.services.reads
    if isinstance(wanted, Numbered):
        page = await reads.jobs_page(
            where, order=query.order, page=wanted.page, page_size=wanted.page_size
        )
        numbered = JobPage(
            items=tuple(map(job_view, page.items)),
            page=page.page,
            page_size=page.page_size,
            total=page.total,
            total_pages=page.total_pages,
            total_exact=page.total_exact,
        )
        return json_response(numbered, position=position_text(page.positions))
    jobs = await reads.jobs(where, order=query.order, limit=wanted.limit, cursor=wanted.cursor)
    listed = JobList(tuple(map(job_view, jobs.items)), jobs.next_cursor)
    return json_response(listed, position=position_text(jobs.positions))


async def read_events(ask: Ask) -> Response:
    """By `seq`, which counts without a gap: a cursor is the last one seen, and so is the id of an
    event in a stream."""
    query: HistoryQuery = ask.query
    wanted = page_of(query)
    is_stream = wants_stream(ask.request.headers.get("accept", ""))
    _refuse_the_others(query, is_stream=is_stream)
    stored = await find(ask, ask.job_id, even_erased=True)
    if stored is None:
        raise await unknown_job(ask, ask.job_id)
    if is_stream:
        return job_stream(ask, stored, query.last_event_id)
    if isinstance(wanted, Numbered):
        after, limit = wanted.before, wanted.page_size
    else:
        after, limit = _after(wanted.cursor), wanted.limit
    history = await ask.services.reads.history(ask.job_id, after_seq=after, limit=limit)
    if history is None:
        raise await unknown_job(ask, ask.job_id)
    if known := _unless_known(ask, stored):
        return known
    items = tuple(map(event_view, history.items))
    headers = {"ETag": etag(stored.job.version)}
    if isinstance(wanted, Numbered):
        total = stored.job.version
        numbered = EventPage(
            items=items,
            page=wanted.page,
            page_size=wanted.page_size,
            total=total,
            total_pages=total_pages(total, wanted.page_size),
            total_exact=True,
        )
        return json_response(numbered, position=history.position, headers=headers)
    cursor = None if history.next_seq is None else str(history.next_seq)
    return json_response(EventList(items, cursor), position=history.position, headers=headers)


def _refuse_the_others(query: HistoryQuery, *, is_stream: bool) -> None:
    """Parameters of a page in a stream, and of a stream in a page."""
    of_page = ("limit", "cursor", "page", "page_size")
    for name in of_page if is_stream else ("last_event_id",):
        if getattr(query, name) is not None:
            kind = "a page" if is_stream else "a stream (Accept: text/event-stream)"
            raise invalid(f"/{name}", f"only for {kind}")


def _after(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 15):
        raise invalid("/cursor", "not a cursor of this list")
    return int(cursor)


async def read_attempts(ask: Ask) -> Response:
    stored = await _found(ask)
    if known := _unless_known(ask, stored):
        return known
    attempts = await ask.services.reads.attempts(ask.job_id)
    listed = AttemptList(tuple(map(attempt_view, attempts or ())))
    headers = {"ETag": etag(stored.job.version)}
    return json_response(listed, position=stored.position, headers=headers)


# --- Ended, run again ----------------------------------------------------------------------------
async def cancel_job(ask: Ask) -> Response:
    version = await if_version(ask)
    command = CancelJob(ask.job_id, **fields_of(ask.body), if_version=version)
    return await job_answer(ask, await decide(ask, command))


async def rerun_job(ask: Ask) -> Response:
    version = await if_version(ask)
    command_id = id_of(ask, ask.value)
    fields = fields_of(ask.body)
    fields |= await _payload_of_rerun(ask, fields["payload"], fields["labels"], command_id)
    if fields["from_failed"]:
        fields["output_refs"] = await _outputs_of_rerun(ask, fields["labels"], command_id)
    command = RerunJob(ask.job_id, **fields, if_version=version)
    return await job_answer(ask, await decide(ask, command, command_id=command_id), created)


async def _payload_of_rerun(
    ask: Ask, sent: Raw | UnsetType, labels: Labels | UnsetType, command_id: CommandId
) -> dict[str, Any]:
    """A new one, or a copy of what lies in the object store."""
    value = ask.value.get("payload") if isinstance(ask.value, dict) else None
    if sent is not UNSET and (inline := inline_form(value, sent)) is not None:
        await require_payload_of_rerun(ask, inline)
        return {"payload": inline}
    stored = await find(ask, ask.job_id)
    if stored is None:
        return {}  # The owner says so.
    original = stored.job.request
    new_labels = labels_of(labels, original.labels)
    if sent is not UNSET:
        asked = Asked(original.queue, original.type, new_labels, original.template_version)
        moved = await moved_payload(ask, asked, value, sent, command_id)
        return {"payload": UNSET, "payload_ref": moved.ref, "extract": moved.extract}
    if original.payload_ref is None or stored.job.payload_withdrawn:
        return {}
    return {"payload_ref": await copied_payload(ask, original, new_labels, command_id)}


async def _outputs_of_rerun(
    ask: Ask, labels: Labels | UnsetType, command_id: CommandId
) -> dict[StepName, Ref]:
    """Once the view shows the job's end, it shows all that its steps gave."""
    stored = await find(ask, ask.job_id)
    if stored is not None and stored.job.end is None:
        if not await caught_up(ask, stored.partition):
            raise refused("VIEW_BEHIND", "the views have not heard of the job's end")
        stored = await find(ask, ask.job_id)
    if stored is None or stored.job.end is None:
        return {}  # The owner says so.
    new_labels = labels_of(labels, stored.job.request.labels)
    return await copied_outputs(ask, stored.job, new_labels, command_id)


def created(decision: Decided, job: bytes | Raw) -> Response:
    """A new job; or, where equal ones share one, that one."""
    return job_response(
        job,
        status=200 if decision.is_duplicate else 201,
        position=decision.position,
        is_deduplicated=decision.is_duplicate,
        replayed=decision.replayed,
        with_location=True,
    )


# --- The table -----------------------------------------------------------------------------------
ACCEPTED = Answer(
    content=AcceptedView,
    description="In the log, not decided yet; `Location` tells the outcome for an hour",
    headers=("Location",),
)
KNOWN = {"If-None-Match": "ETags that the caller has"}
JOB = Answer(content=JobView, description="The job", headers=("ETag",))
NOT_MODIFIED = Answer(content=None, description="The caller has this version", headers=("ETag",))
NEW = Answer(content=JobView, description="A new job", headers=("Location", "ETag"))
EARLIER = Answer(
    content=JobView,
    description="An earlier job answers for it (`deduplicated`), as it is now",
    headers=("Location", "ETag", "Idempotency-Replayed"),
)
OF_REQUESTS = (
    "TEMPLATE_DISABLED",
    "DUPLICATE_ACTIVE",
    "NOT_REPEATABLE",
    "QUEUE_FULL",
    "COMMAND_EXPIRED",
    "ENTRY_TOO_LARGE",
    "VIEW_BEHIND",
)

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/jobs",
        name="requestJob",
        tag="jobs",
        summary="Ask for a job",
        endpoint=request_job,
        body=NewJob,
        is_command=True,
        moves=True,
        answers={200: EARLIER, 201: NEW, 202: ACCEPTED},
        codes=(*OF_REQUESTS, "TEMPLATE_NOT_FOUND", "MODEL_NOT_FOUND"),
    ),
    Operation(
        method="GET",
        path="/v1/jobs",
        name="listJobs",
        tag="jobs",
        summary="List jobs",
        endpoint=list_jobs,
        query=JobsQuery,
        prefixed="label",
        is_read=True,
        answers={200: Answer(content=JobList | JobPage, description="Jobs, a page at a time")},
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}",
        name="readJob",
        tag="jobs",
        summary="Read a job, also as it was",
        endpoint=read_job,
        query=AsOf,
        is_read=True,
        headers=KNOWN,
        answers={200: JOB, 304: NOT_MODIFIED},
        codes=("JOB_NOT_FOUND",),
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/events",
        name="readJobEvents",
        tag="jobs",
        summary="Read a job's whole history, oldest first",
        endpoint=read_events,
        query=HistoryQuery,
        is_read=True,
        headers={**LAST_EVENT_ID, **KNOWN},
        answers={
            200: Answer(
                content=EventList | EventPage,
                description="Events, a page at a time; or, where the client accepts it, as they "
                "come until the job has ended",
                headers=("ETag",),
                also=(MEDIA_TYPE,),
            ),
            204: Answer(content=None, description="The job has ended, and the stream told all"),
            304: NOT_MODIFIED,
        },
        codes=("JOB_NOT_FOUND", "OVERLOADED"),
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/attempts",
        name="readJobAttempts",
        tag="jobs",
        summary="Read how each attempt went",
        endpoint=read_attempts,
        is_read=True,
        headers=KNOWN,
        answers={
            200: Answer(
                content=AttemptList, description="Attempts, oldest first", headers=("ETag",)
            ),
            304: NOT_MODIFIED,
        },
        codes=("JOB_NOT_FOUND",),
    ),
    Operation(
        method="POST",
        path="/v1/jobs/{id}/cancel",
        name="cancelJob",
        tag="jobs",
        summary="Cancel a job: pending at once, else its runtime is asked to stop",
        endpoint=cancel_job,
        body=Cancellation,
        is_command=True,
        answers={200: JOB, 202: ACCEPTED},
        codes=("JOB_NOT_FOUND", "JOB_CLOSED", "CANCEL_NOT_SUPPORTED", "VIEW_BEHIND"),
    ),
    Operation(
        method="POST",
        path="/v1/jobs/{id}/rerun",
        name="rerunJob",
        tag="jobs",
        summary="Ask for an ended job anew",
        endpoint=rerun_job,
        body=Rerun,
        is_command=True,
        moves=True,
        answers={200: EARLIER, 201: NEW, 202: ACCEPTED},
        codes=(
            "JOB_NOT_FOUND",
            "JOB_NOT_CLOSED",
            "QUEUE_FULL",
            "TEMPLATE_DISABLED",
            "MODEL_NOT_FOUND",
            "DUPLICATE_ACTIVE",
            "NOT_REPEATABLE",
            "VIEW_BEHIND",
        ),
    ),
)
