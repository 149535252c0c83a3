"""How a request becomes a job: template and defaults resolved, keys compared, reruns."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import RequestJob, RerunJob, RetryAsk, Template
from ledger.domain.events import JobRequested, Labels
from ledger.domain.failures import Retry
from ledger.domain.ids import Micros, QueueName, micros, micros_of, new_job_id
from ledger.domain.rejections import Rejected, Rejection

NO_TEMPLATE = Template()
"""What holds for a type that nobody declared."""
EMPTY = Raw(b"{}")
_sorted = msgspec.json.Encoder(order="sorted")
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
_OPTIONAL = tuple(name for name in RequestJob.__struct_fields__ if name not in _ALWAYS_ALLOWED)


class Pinned(Struct, frozen=True, gc=False):
    """A template and the number of its version."""

    version: int
    template: Template


def resolve(
    request: RequestJob, pinned: Pinned | None, *, seed: str, at: Micros, order: int
) -> JobRequested | Rejected:
    """The fact that `request` asks for. `seed` is its command's id; `order` its place at the tail."""
    template = pinned.template if pinned else NO_TEMPLATE
    if wrong := _wrong(request, template if pinned else None):
        return wrong
    digest = key_digest(request, template.idempotency_scope)
    job_id = new_job_id(request.queue, at, (digest or seed).encode())
    start_timeout = _given(request.start_timeout_seconds, template.start_timeout_seconds)
    return JobRequested(
        job_id=job_id,
        queue=request.queue,
        type=request.type,
        payload=EMPTY if request.payload is UNSET else request.payload,
        ready_at=_ready_at(request, at),
        order=order,
        priority=_given(request.priority, template.priority),
        labels=_given(request.labels, {}),
        scope=_given(request.scope, None),
        idempotency_key=request.idempotency_key,
        key_digest=digest,
        content_digest=content_digest(request) if digest else None,
        key_until=Micros(at + micros(template.idempotency_seconds)) if digest else None,
        template_version=pinned.version if pinned else None,
        timeout_us=micros(_given(request.timeout_seconds, template.timeout_seconds)),
        lease_us=micros(_given(request.lease_seconds, template.lease_seconds)),
        start_timeout_us=_micros(start_timeout),
        retry=merged_retry(template.retry, request.retry),
        cancel_supported=template.cancel.supported,
        grace_us=micros(template.cancel.grace_seconds),
        exhausted_as=template.exhausted_as,
        result_ttl_us=_micros(_given(request.result_ttl_seconds, template.result_ttl_seconds)),
        failed_ttl_us=_micros(_given(request.failed_ttl_seconds, None)),
        payload_ref=request.payload_ref,
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
        labels=_given(command.labels, original.labels),
        priority=_given(command.priority, original.priority),
        ready_at=at,
        order=order,
        idempotency_key=None,
        key_digest=None,
        content_digest=None,
        key_until=None,
        retried_from=original.job_id,
    )


def key_digest(request: RequestJob, scope: tuple[str, ...]) -> str | None:
    """16 bytes, as hex, over the key and what the declared scope points to; None without a key.

    A queue lies in one partition with others, so its name always belongs to the key.
    """
    if request.idempotency_key is None:
        return None
    values = [[pointer, point(request, pointer)] for pointer in scope]
    return _digest([request.queue, values, request.idempotency_key])


def content_digest(request: RequestJob) -> str:
    """16 bytes, as hex, over all that the request asks for, its payload as RFC 8785 bytes."""
    payload_hash = request.payload_hash
    if payload_hash is None:
        payload = EMPTY if request.payload is UNSET else request.payload
        payload_hash = sha256_hex(msgspec.json.decode(payload))
    asked = replace(request, idempotency_key=None, payload=UNSET, payload_hash=payload_hash)
    return _digest(asked)


def point(request: RequestJob, pointer: str) -> Any:
    """What an RFC 6901 pointer finds in the request's JSON; None where it finds nothing."""
    field, *rest = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    found: Any = getattr(request, field, None)
    if isinstance(found, Raw):
        found = msgspec.json.decode(found)
    for part in rest:
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return None if found is UNSET else found


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
    return Retry(**merged) if merged else _DEFAULT_RETRY


_DEFAULT_RETRY = Retry()


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


def _wrong(request: RequestJob, template: Template | None) -> Rejected | None:
    if request.run_at is not None and request.delay_seconds is not None:
        return _invalid("/delay_seconds", "run_at and delay_seconds exclude each other")
    if template is None:
        return None
    if not template.enabled:
        return Rejected(Rejection.TEMPLATE_DISABLED, f"the template {request.type} is disabled")
    for name in _OPTIONAL:
        given = getattr(request, name)
        if given is not UNSET and given is not None and name not in template.overridable:
            return _invalid(
                f"/{name}", f"the template {request.type} does not let it be overridden"
            )
    return None


def _invalid(pointer: str, detail: str) -> Rejected:
    return Rejected(Rejection.VALIDATION_FAILED, detail, pointer=pointer)


def _ready_at(request: RequestJob, at: Micros) -> Micros:
    if request.run_at is not None:
        return Micros(max(at, micros_of(request.run_at)))
    return Micros(at + micros(request.delay_seconds or 0))


def _given(value: Any, default: Any) -> Any:
    return default if value is UNSET else value


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else micros(seconds)


def _digest(value: object) -> str:
    return blake2b(_sorted.encode(value), digest_size=16).hexdigest()
