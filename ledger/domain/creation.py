"""How a request becomes a job: template and defaults resolved, keys compared, reruns."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import SECONDS_MAX, RequestJob, RerunJob, RetryAsk, Template
from ledger.domain.events import JobRequested, Labels
from ledger.domain.failures import Retry
from ledger.domain.ids import INLINE_BYTES_MAX, Micros, QueueName, micros, micros_of, new_job_id
from ledger.domain.pointers import point
from ledger.domain.rejections import Rejected, Rejection

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
    retry: Retry


def pinned(version: int, template: Template) -> Pinned:
    return Pinned(
        version,
        template,
        micros(template.timeout_seconds),
        micros(template.lease_seconds),
        _micros(template.start_timeout_seconds),
        micros(template.cancel.grace_seconds),
        _micros(template.result_ttl_seconds),
        merged_retry(template.retry, UNSET),
    )


class Key(Struct, frozen=True, gc=False):
    """An idempotency key as it is compared and remembered: digests of 16 bytes, as hex."""

    digest: str
    """Over the key and what the declared scope points to."""
    content: str
    """Over all that the request asks for."""
    window_us: int
    """How long it is remembered."""


def resolve(
    ask: RequestJob, by: Pinned | None, key: Key | None, *, seed: str, at: Micros, order: int
) -> JobRequested | Rejected:
    """The fact that a request comes to. `seed` is its command's id, `order` a place at the tail."""
    if wrong := _wrong(ask, by, at):
        return wrong
    if by is None:
        by = UNDECLARED
    template = by.template
    return JobRequested(
        new_job_id(ask.queue, at, (seed if key is None else key.digest).encode()),
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
        None if ask.failed_ttl_seconds is UNSET else _micros(ask.failed_ttl_seconds),
        ask.payload_ref,
    )


def rerun(
    original: JobRequested, command: RerunJob, *, seed: str, at: Micros, order: int
) -> JobRequested:
    """A new job that asks for the same as an ended one, with what the command changes."""
    payload = original.payload if command.payload is UNSET else command.payload
    return replace(
        original,
        job_id=new_job_id(original.queue, at, seed.encode()),
        payload=payload,
        payload_ref=original.payload_ref if command.payload is UNSET else None,
        labels=original.labels if command.labels is UNSET else command.labels,
        priority=original.priority if command.priority is UNSET else command.priority,
        ready_at=at,
        order=order,
        idempotency_key=None,
        key_digest=None,
        content_digest=None,
        key_until=None,
        retried_from=original.job_id,
    )


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
    """Over all that the request asks for, its payload as RFC 8785 bytes."""
    payload_hash = request.payload_hash
    if payload_hash is None:
        payload = EMPTY if request.payload is UNSET else request.payload
        payload_hash = sha256_hex(msgspec.json.decode(payload))
    asked = replace(request, idempotency_key=None, payload=UNSET, payload_hash=payload_hash)
    return _digest(asked)


def merged_retry(template: RetryAsk, request: RetryAsk | UnsetType) -> Retry:
    """The request's words over the template's over the defaults."""
    merged: dict[str, Any] = {}
    for ask in (template, request):
        if ask is UNSET:
            continue
        for name in RetryAsk.__struct_fields__:
            value = getattr(ask, name)
            if value is UNSET:
                continue
            if name == "backoff_seconds":
                merged["backoff_us"] = tuple(micros(b) for b in value)
            else:
                merged[name] = value
    return Retry(**merged) if merged else DEFAULT_RETRY


DEFAULT_RETRY = Retry()


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
    return None


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
UNDECLARED = pinned(0, NO_TEMPLATE)
"""What holds for a type that nobody declared."""
