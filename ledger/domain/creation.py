"""How a request becomes a job: template and defaults resolved, keys compared, reruns."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from ledger.domain import schemas
from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import SECONDS_MAX, RequestJob, RerunJob, Template
from ledger.domain.dedupe import dedupe_digest
from ledger.domain.events import JobRequested, Labels
from ledger.domain.failures import Retry
from ledger.domain.flow_design import flow_of
from ledger.domain.flow_plan import Flow
from ledger.domain.ids import (
    INLINE_BYTES_MAX,
    CommandId,
    Micros,
    QueueName,
    micros,
    micros_of,
    new_job_id,
)
from ledger.domain.pointers import point
from ledger.domain.rejections import FieldError, Rejected, Rejection
from ledger.domain.retries import merged_retry
from ledger.domain.schemas import Schema
from ledger.domain.strict_json import UnsafeInteger
from ledger.domain.wrong import Wrong

EMPTY = Raw(b"{}")
_ordered = msgspec.json.Encoder(order="deterministic")
_ALWAYS_ALLOWED = frozenset(
    {
        "type",
        "queue",
        "payload",
        "payload_hash",
        "payload_ref",
        "scope",
        "idempotency_key",
        "template_version",
        "extract",
        "checked_against",
        "forward_headers",
    }
)
_OPTIONAL = tuple(
    (field.name, field.default)
    for field in msgspec.structs.fields(RequestJob)
    if field.name not in _ALWAYS_ALLOWED
)
"""Fields that a template must allow, each with the value that says it is absent."""
AHEAD_US_MAX = micros(SECONDS_MAX)
"""How far ahead a job may be put off: what a duration may be."""


class Pinned(Struct, frozen=True, gc=False):
    """A version of a template, with what its words come to where a request says nothing."""

    version: int
    """0: of no template."""
    template: Template
    timeout_us: int
    lease_us: int
    start_timeout_us: int | None
    grace_us: int
    result_ttl_us: int | None
    failed_ttl_us: int | None
    retry: Retry
    flow: Flow | None
    payload_schema: Schema | None
    output_schema: Schema | None
    put_at: Micros


def pinned(job_type: str, version: int, template: Template, at: Micros) -> Pinned:
    return Pinned(
        version,
        template,
        micros(template.timeout_seconds),
        micros(template.lease_seconds),
        _micros(template.start_timeout_seconds),
        micros(template.cancel.grace_seconds),
        _micros(template.result_ttl_seconds),
        _micros(template.failed_ttl_seconds),
        merged_retry(template.retry, UNSET),
        flow_of(job_type, template),
        schema_of(template.payload_schema),
        schema_of(template.output_schema),
        at,
    )


def schema_of(content: Raw | UnsetType) -> Schema | None:
    """None: there is none, or none that this version understands; a put would have refused it."""
    schema = None if content is UNSET else schemas.compiled(content)
    return None if isinstance(schema, Wrong) else schema


class Key(Struct, frozen=True, gc=False):
    """An idempotency key as it is compared and remembered: digests of 16 bytes, as hex."""

    digest: str
    """Over the key and what the declared scope points to."""
    content: str
    """Over all that the request asks for."""
    window_us: int
    """How long it is remembered."""


def resolve(
    ask: RequestJob,
    by: Pinned | None,
    key: Key | None,
    *,
    seed: str,
    at: Micros,
    order: int,
    born: Micros,
    schedule: str | None = None,
) -> JobRequested | Rejected:
    """The fact that a request comes to. `seed` is its command's id, `order` a place at the tail,
    `born` the instant in its id."""
    if wrong := _wrong(ask, by, at):
        return wrong
    if by is None:
        by = UNDECLARED
    template = by.template
    try:
        dedupe = dedupe_digest(ask, template) if by.version else None
    except UnsafeInteger as error:
        return _invalid(f"/payload{error.pointer}", str(error))
    return JobRequested(
        new_job_id(ask.queue, born, (seed if key is None else key.digest).encode()),
        ask.queue,
        ask.type,
        EMPTY if ask.payload is UNSET else ask.payload,
        _ready_at(ask, at),
        order,
        template.priority if ask.priority is UNSET else ask.priority,
        {} if ask.labels is UNSET else ask.labels,
        None if ask.scope is UNSET else ask.scope,
        ask.idempotency_key,
        None if key is None else key.digest,
        None if key is None else key.content,
        None if key is None else Micros(at + key.window_us),
        by.version or None,
        by.timeout_us if ask.timeout_seconds is UNSET else micros(ask.timeout_seconds),
        by.lease_us if ask.lease_seconds is UNSET else micros(ask.lease_seconds),
        by.start_timeout_us
        if ask.start_timeout_seconds is UNSET
        else _micros(ask.start_timeout_seconds),
        by.retry if ask.retry is UNSET else merged_retry(template.retry, ask.retry),
        template.cancel.supported,
        by.grace_us,
        template.exhausted_as,
        by.result_ttl_us if ask.result_ttl_seconds is UNSET else _micros(ask.result_ttl_seconds),
        by.failed_ttl_us if ask.failed_ttl_seconds is UNSET else _micros(ask.failed_ttl_seconds),
        ask.payload_ref,
        None,
        by.flow,
        dedupe,
        not template.repeatable,
        schedule,
        UNSET if ask.extract is None else Raw(msgspec.json.encode(ask.extract)),
        ask.forward_headers,
        None if ask.forward_headers is None else CommandId(seed),
    )


def rerun(
    original: JobRequested,
    command: RerunJob,
    by: Pinned | None,
    *,
    seed: str,
    at: Micros,
    order: int,
) -> JobRequested | Rejected:
    """A new job that asks for the same as an ended one, with what the command changes. `by` is the
    version that one holds, or the newest where that is forgotten."""
    payload = original.payload if command.payload is UNSET else command.payload
    again = replace(
        original,
        job_id=new_job_id(original.queue, at, seed.encode()),
        payload=EMPTY if command.payload_ref is not None else payload,
        payload_ref=command.payload_ref,
        labels=original.labels if command.labels is UNSET else command.labels,
        priority=original.priority if command.priority is UNSET else command.priority,
        extract=_extract_of(original, command),
        schedule=None,
        ready_at=at,
        order=order,
        idempotency_key=None,
        key_digest=None,
        content_digest=None,
        key_until=None,
        retried_from=original.job_id,
    )
    if command.payload is not UNSET:
        schema = None if by is None else by.payload_schema
        if wrong := too_large(payload) or mismatch(schema, payload, "/payload"):
            return wrong
    is_same = command.payload is UNSET and command.extract is None and command.labels is UNSET
    if by is None or is_same:
        return again
    try:
        return replace(again, dedupe_digest=dedupe_digest(again, by.template))
    except UnsafeInteger as error:
        return _invalid(f"/payload{error.pointer}", str(error))


def _extract_of(original: JobRequested, command: RerunJob) -> Raw | UnsetType:
    if command.payload_ref is None:
        return UNSET
    if command.extract is None:
        return original.extract
    return Raw(msgspec.json.encode(command.extract))


def key_of(request: RequestJob, template: Template) -> Key | None:
    """None without a key. Raises `UnsafeInteger` where the payload has no canonical form."""
    if request.idempotency_key is None:
        return None
    digest = key_digest(request, template.idempotency_scope)
    return Key(digest, content_digest(request), micros(template.idempotency_seconds))


def key_digest(request: RequestJob, scope: tuple[str, ...]) -> str:
    """A queue lies in one partition with others, so its name always belongs to the key. What a
    pointer does not find is equal only to itself: the same request has the same key."""
    values = [
        [pointer] if (found := point(request, pointer)) is UNSET else [pointer, found]
        for pointer in scope
    ]
    return _digest([request.queue, values, request.idempotency_key])


def content_digest(request: RequestJob) -> str:
    """Over all that the request asks for, its payload as RFC 8785 bytes, wherever it lies. Sealed
    headers look different each time, and the token in them may be a fresher one: they are no part
    of it."""
    payload_hash = request.payload_hash
    if payload_hash is None and request.payload_ref is not None:
        payload_hash = request.payload_ref.sha256
    if payload_hash is None:
        payload = EMPTY if request.payload is UNSET else request.payload
        payload_hash = sha256_hex(msgspec.json.decode(payload))
    asked = replace(
        request,
        idempotency_key=None,
        payload=UNSET,
        payload_hash=payload_hash,
        payload_ref=None,  # Where it lies: its hash says what it is.
        extract=None,
        checked_against=None,
        forward_headers=None,
    )
    return _digest(asked)


def matches(
    where_queue: QueueName | None,
    types: tuple[str, ...] | None,
    labels: Labels | None,
    scope: str | None,
    job: JobRequested,
) -> bool:
    """Whether a job is among those that a bulk operation names."""
    if where_queue is not None and job.queue != where_queue:
        return False
    if types is not None and job.type not in types:
        return False
    if scope is not None and job.scope != scope:
        return False
    return labels is None or all(job.labels.get(k) == v for k, v in labels.items())


def _wrong(request: RequestJob, by: Pinned | None, at: Micros) -> Rejected | None:
    if request.run_at is not None:
        if request.delay_seconds is not None:
            return _invalid("/delay_seconds", "run_at and delay_seconds exclude each other")
        if micros_of(request.run_at) > at + AHEAD_US_MAX:
            return _invalid("/run_at", "more than ten years ahead")
    if large := too_large(request.payload):
        return large
    if by is None:
        return None
    for name, absent in _OPTIONAL:
        if name not in by.template.overridable and getattr(request, name) is not absent:
            return _invalid(
                f"/{name}", f"the template {request.type} does not let it be overridden"
            )
    if request.payload_ref is None:  # Else who moved it has checked it.
        payload = EMPTY if request.payload is UNSET else request.payload
        return mismatch(by.payload_schema, payload, "/payload")
    return None


def mismatch(schema: Schema | None, content: Raw, at: str) -> Rejected | None:
    """What a template's schema says against a payload or output."""
    if schema is None or not (errors := schema.errors(content)):
        return None
    fields = tuple(FieldError(at + error.pointer, error.message) for error in errors)
    first = fields[0]
    detail = f"{first.pointer}: {first.message}"
    return Rejected(Rejection.VALIDATION_FAILED, detail, pointer=first.pointer, errors=fields)


def too_large(payload: Raw | UnsetType) -> Rejected | None:
    if payload is UNSET or len(payload) <= INLINE_BYTES_MAX:
        return None
    return Rejected(
        Rejection.PAYLOAD_TOO_LARGE,
        f"the payload has {len(payload)} bytes; {INLINE_BYTES_MAX} fit",
        pointer="/payload",
    )


def _invalid(pointer: str, detail: str) -> Rejected:
    return Rejected(Rejection.VALIDATION_FAILED, detail, pointer=pointer)


def _ready_at(request: RequestJob, at: Micros) -> Micros:
    if request.run_at is not None:
        return Micros(max(at, micros_of(request.run_at)))
    return Micros(at + micros(request.delay_seconds)) if request.delay_seconds else at


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else micros(seconds)


def _digest(value: object) -> str:
    return blake2b(_ordered.encode(value), digest_size=16).hexdigest()


NO_TEMPLATE = Template()
UNDECLARED = pinned("", 0, NO_TEMPLATE, Micros(0))
"""What holds for a type that nobody declared."""
