"""Rows as `COPY … (FORMAT BINARY)` takes them: each field its length as 4 bytes, then its bytes.

psycopg adapting Python values row by row costs 32-42 us a row; this, 4-5 us for a new job.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

import orjson
from msgspec import UNSET

from ledger.domain.events import JobRequested, Labels
from ledger.domain.ids import Micros
from ledger.domain.job import (
    Job,
    Pending,
    Status,
    objects_of,
    objects_to_delete,
    status,
    worker_type_of,
)
from ledger.domain.retention import FAILED_FOR_GOOD
from projections.packing import ABSENT, pack_request
from projections.storable import BYTES_MAX, storable

HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TAIL = b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
NOTHING = bytes(4)
"""A field of no bytes."""
Y2000 = 946_684_800_000_000
"""Postgres counts microseconds from 2000-01-01."""
DETAIL_BYTES_MAX = 16_384

_u32 = Struct(">i").pack
_LENGTHS = [_u32(size) for size in range(4096)]
_instant = Struct(">iq").pack
_open_job = Struct(">hiiihiqiqiqiqii").pack
_ended_job = Struct(">hiiihiqiqiqiii?i?").pack
_staged_job = Struct(">hiiiiiqiqi?i?i?").pack
_array = Struct(">iiiii").pack
_no_items = Struct(">iii").pack
_history = Struct(">hiqiqiiiiii").pack
_command = Struct(">hiiiqiq").pack

_texts: dict[str, bytes] = {}
"""Of texts that come again and again: queues, types, statuses, codes."""
_TEXTS_MAX = 10_000


def raw_field(data: bytes) -> bytes:
    size = len(data)
    return (_LENGTHS[size] if size < 4096 else _u32(size)) + data


def text_field(text: str, bytes_max: int = BYTES_MAX) -> bytes:
    """Of a text of its own, such as an id."""
    if len(text) > bytes_max or not text.isascii() or "\0" in text:
        text = storable(text, bytes_max)
    return raw_field(text.encode())


def known_text_field(text: str) -> bytes:
    field = _texts.get(text)
    if field is None:
        if len(_texts) >= _TEXTS_MAX:
            _texts.clear()
        field = _texts[text] = text_field(text)
    return field


def optional_text_field(text: str | None) -> bytes:
    return NULL if text is None else text_field(text)


def instant_field(at: Micros | None) -> bytes:
    return NULL if at is None else _instant(8, at - Y2000)


def labels_field(labels: Labels) -> bytes:
    if not labels:
        return NULL
    words = {storable(key): storable(value) for key, value in labels.items()}
    return raw_field(b"\1" + orjson.dumps(words))


def open_job_row(job: Job, partition: int, born: int, state: bytes | None) -> bytes:
    """Hot: once a job that has not ended in its first batch. Columns as in `copy_open_jobs.sql`."""
    asked = job.request
    return b"".join(
        (
            _open_job(
                *(21, 4, partition, 2, asked.priority, 8, job.order, 8, job.created_at - Y2000),
                *(8, _ready_at(job) - Y2000, 8, born, 4, job.version),
            ),
            *_fields(job, state),
            instant_field(_started_at(job)),
            _wanted_field(job),
            _objects_field(job),
            NOTHING,
        )
    )


def ended_job_row(job: Job, partition: int, born: int, state: bytes | None) -> bytes:
    """Hot: once a job whose life came in one batch. Columns as in `copy_ended_jobs.sql`."""
    assert job.finished_at is not None
    return b"".join(
        (
            _ended_job(
                *(23, 4, partition, 2, job.request.priority, 8, job.created_at - Y2000),
                *(8, job.finished_at - Y2000, 8, born, 4, job.version),
                *(1, _ended_badly(job), 1, job.erased),
            ),
            *_fields(job, state),
            instant_field(_started_at(job)),
            instant_field(removable_at(job)),
            _output_field(job),
            _objects_field(job),
            NOTHING,
        )
    )


def _fields(job: Job, state: bytes | None) -> tuple[bytes, ...]:
    asked = job.request
    return (
        text_field(asked.job_id),
        known_text_field(asked.queue),
        known_text_field(asked.type),
        known_text_field(status(job)),
        NULL if state is None else raw_field(state),
        NULL if asked.scope is None else text_field(asked.scope),
        labels_field(asked.labels) if asked.labels else NULL,
        _error_field(job),
        NULL if asked.retried_from is None else text_field(asked.retried_from),
        NULL if asked.schedule is None else known_text_field(asked.schedule),
    )


def staged_job_row(job: Job, events: int, state: bytes | None, packed: bytes) -> bytes:
    """Hot: once a job that moved. Columns as in `copy_staged_jobs.sql`."""
    output = job.result.output if job.result else UNSET
    return b"".join(
        (
            _staged_job(
                *(18, 4, events, 4, job.version, 8, job.order, 8, _ready_at(job) - Y2000),
                *(1, _ended_badly(job), 1, job.withdrawn, 1, job.erased),
            ),
            text_field(job.request.job_id),
            known_text_field(status(job)),
            NULL if state is None else raw_field(state),
            raw_field(packed),
            _error_field(job),
            instant_field(_started_at(job)),
            instant_field(job.finished_at),
            instant_field(removable_at(job)),
            NULL if output is UNSET or output is ABSENT else raw_field(bytes(output)),
            _wanted_field(job),
            _objects_field(job),
        )
    )


def first_history_row(
    asked: JobRequested,
    last_seq: int,
    packed: bytes,
    *,
    partition: int,
    born: int,
    position: int,
) -> bytes:
    """With what was asked. `position` is that of the flush."""
    return b"".join(
        (
            _history(9, 8, born, 8, position, 4, partition, 4, 1, 4, last_seq),
            text_field(asked.job_id),
            raw_field(packed),
            raw_field(pack_request(asked)),
            raw_field(bytes(asked.payload)),
        )
    )


def command_row(
    partition: int,
    position: int,
    at: Micros,
    *,
    command_id: str,
    outcome: str,
    detail: str,
    code: str | None,
    job_id: str | None,
    operation_id: str | None,
) -> bytes:
    return b"".join(
        (
            _command(9, 4, partition, 8, position, 8, at - Y2000),
            text_field(command_id),
            known_text_field(outcome),
            text_field(detail, DETAIL_BYTES_MAX),
            NULL if code is None else known_text_field(code),
            optional_text_field(job_id),
            optional_text_field(operation_id),
        )
    )


def document(rows: Iterable[bytes]) -> bytes:
    return b"".join((HEAD, *rows, TAIL))


def error_code(job: Job) -> str | None:
    """As the job's view says it: of the latest failure, and none once it has succeeded."""
    if job.end is Status.SUCCEEDED:
        return None
    return next((step.failure.code for step in reversed(job.steps) if step.failure), None)


def removable_at(job: Job) -> Micros | None:
    """When the result, or a job that failed for good, has outlived its time, and is to be removed;
    of one that is, as long as what it referred to is to be deleted."""
    if (job.withdrawn or job.erased) and objects_to_delete(job):
        return job.finished_at
    if job.erased:
        return None
    if job.result_expires_at is not None and not job.withdrawn:
        return job.result_expires_at
    ttl = job.request.failed_ttl_us
    if ttl is None or job.finished_at is None or job.end not in FAILED_FOR_GOOD:
        return None
    return Micros(job.finished_at + ttl)


_BADLY = (Status.FAILED, Status.CANCELLED, Status.EXPIRED)


def _ended_badly(job: Job) -> bool:
    return job.end is not None and job.end in _BADLY


def _error_field(job: Job) -> bytes:
    if len(job.steps) == 1 and job.steps[0].failure is None:
        return NULL
    code = error_code(job)
    return NULL if code is None else known_text_field(code)


def _output_field(job: Job) -> bytes:
    result = job.result
    if result is None or result.output is UNSET or job.withdrawn or job.erased:
        return NULL
    return raw_field(bytes(result.output))


def _ready_at(job: Job) -> Micros:
    waits = [step.phase.ready_at for step in job.steps if type(step.phase) is Pending]
    return min(waits) if waits else job.request.ready_at


def _started_at(job: Job) -> Micros | None:
    return job.steps[0].started_at if job.request.flow is None else job.first_started_at


def _wanted_field(job: Job) -> bytes:
    """Worker types of the steps that wait to be leased; NULL of a plain job."""
    if job.request.flow is None:
        return NULL
    if job.end is not None or job.cancel is not None:
        return NOTHING_WANTED
    waiting = [step for step in job.steps if type(step.phase) is Pending]
    types = sorted({worker_type_of(job, step) for step in waiting})
    if not types:
        return NOTHING_WANTED
    return _texts_field(map(known_text_field, types), len(types))


def _objects_field(job: Job) -> bytes:
    if job.request.payload_ref is None and job.request.flow is None:
        result = job.result
        if result is None or result.output_ref is None:
            return NULL
    keys = objects_of(job)
    return _texts_field(map(text_field, keys), len(keys)) if keys else NULL


def _texts_field(fields: Iterable[bytes], many: int) -> bytes:
    return raw_field(_array(1, 0, TEXT, many, 1) + b"".join(fields))


TEXT = 25
"""Postgres's number of the type `text`."""
NOTHING_WANTED = raw_field(_no_items(0, 0, TEXT))
