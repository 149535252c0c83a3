"""One plausible value of any record, always the same: what the generated documents show."""

from __future__ import annotations

from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct, UnsetType

NOW = 1_767_323_045_678_000
"""2026-01-02T03:04:05.678Z."""
JOB_ID = "default.019b7cfa-c52e-7def-8a12-0123456789ab"

_BY_NAME: dict[str, Any] = {
    "job_id": JOB_ID,
    "queue": "default",
    "queues": ("default",),
    "type": "quiz_generation",
    "types": ("quiz_generation",),
    "command_type": "ledger.attempt.result.v1",
    "command_id": "019b7cfa-c52e-7abc-9def-001122334455",
    "operation_id": "019b7cfa-c52e-7abc-9def-001122334455",
    "runtime_id": "runtime-1",
    "session": "019b7cfa-c000-7000-8000-000000000001",
    "step": "main",
    "fence": 1,
    "attempt": 1,
    "number": 1,
    "beat": 12,
    "received": 1,
    "slots": 9,
    "percent": 40.0,
    "phase": "writing",
    "message": "4 of 10 questions",
    "code": "MODEL_TIMEOUT",
    "detail": "the fence quoted is 1, the current one is 2",
    "reason": "consent withdrawn",
    "by": "api",
    "how": "acknowledged",
    "why": "left",
    "scope": "project:42",
    "idempotency_key": "user-42-tides",
    "key_digest": "5f" * 16,
    "content_digest": "c0" * 32,
    "sha256": "ab" * 32,
    "output_hash": "ab" * 32,
    "payload_hash": "ab" * 32,
    "key": "users/42/input.json",
    "size": 70_000,
    "retried_from": "default.019b7cf0-0000-7000-8000-000000000000",
    "order": NOW,
    "topic": "ledger.requests.v1",
    "offset": 17,
    "first": 17,
    "end": 18,
    "partition": 3,
    "partitions": 16,
    "requests_end": 18,
    "matched": 5,
    "count": 1,
    "version": 1,
    "template_version": 1,
    "timeout_us": 120_000_000,
    "lease_us": 60_000_000,
    "grace_us": 30_000_000,
    "period_us": 5_000_000,
    "start_timeout_us": 600_000_000,
    "result_ttl_us": 86_400_000_000,
    "failed_ttl_us": 86_400_000_000,
    "timeout_seconds": 120.0,
    "lease_seconds": 60.0,
    "delay_seconds": 0.0,
    "period_seconds": 5.0,
    "wait_seconds": 10.0,
    "limit": 1,
    "priority": 5,
    "max_attempts": 4,
    "backoff_us": (1_000_000, 5_000_000, 30_000_000),
    "backoff_seconds": (1.0, 5.0, 30.0),
    "jitter": 0.1,
    "retryable_codes": ("MODEL_TIMEOUT",),
    "fatal_codes": ("INVALID_SCHEMA",),
    "supported": True,
    "cancel_supported": True,
    "enabled": True,
    "start": True,
    "grace_seconds": 30.0,
    "start_timeout_seconds": 600.0,
    "result_ttl_seconds": 86_400.0,
    "failed_ttl_seconds": 86_400.0,
    "idempotency_seconds": 604_800.0,
    "idempotency_scope": ("/queue", "/type", "/labels/user"),
    "overridable": ("priority", "labels"),
    "payload_schema": Raw(b'{"type":"object"}'),
    "output_schema": Raw(b'{"type":"object"}'),
    "title": "Write a quiz",
    "description": "Ten questions on one topic",
    "retryable": True,
    "labels": {"user": "42"},
    "inputs": {"outline": Raw(b'{"sections":3}')},
    "schedule": "nightly",
    "payload": Raw(b'{"topic":"tides"}'),
    "output": Raw(b'{"questions":["What moves the tide?"]}'),
    "details": Raw(b'{"provider":"p1"}'),
    "name": "draft",
    "goto": "draft",
    "to": "draft",
    "needs": ("draft",),
    "each": "/draft/pages",
    "when": "payload.pages > 1",
    "success_when": "all_steps_succeeded",
    "progress": (0.0, 20.0),
    "progress_from": 0.0,
    "progress_to": 20.0,
    "worker_type": "quiz_generation",
    "items": Raw(b'[{"page":1},{"page":2}]'),
    "concurrency_policy": "reject_same_scope",
    "dedupe_keys": ("/scope",),
    "dedupe_digest": "7d" * 16,
    "max": 3,
    "depth_max": 10_000,
    "cron": "0 6 * * *",
    "timezone": "Europe/Berlin",
    "base_url": "https://models.example",
    "route": "/v1/generate",
    "api_key_header": "X-Api-Key",
    "api_key": "v1.k1.b2b2.c3c3",
    "forward_headers": "v1.k1.d4d4.e5e5",
    "max_concurrency": 4,
    "user": "42",
    "project": "tides",
    "created_at": "2026-01-02T03:04:05.678Z",
    "lease_since": "2026-01-02T03:04:05.678Z",
    "lease_expires_at": "2026-01-02T03:05:05.678Z",
    "nonce": "3f2a9c1e5b7d4860",
    "at": NOW,
}


def example(kind: type[Struct]) -> bytes:
    """As JSON: what is required, and what a reader will most often see."""
    return msgspec.json.encode(full(kind))


def full(kind: type[Struct]) -> Any:
    """Every field set, but for alternatives of one another."""
    hints = get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind)
    given = [field for field in fields if field.required or field.name not in _LEFT_OUT]
    return kind(**{field.name: _value(field.name, hints[field.name]) for field in given})


_LEFT_OUT = {
    # An inline value and its reference exclude each other; so do a time and a delay.
    "output_ref",
    "output_refs",
    "payload_ref",
    "run_at",
    "if_version",
    "original",
    "exhausted_as",
    "opaque",
}


def _value(name: str, hint: Any) -> Any:
    known = _BY_NAME.get(name)
    if known is not None and _fits(known, hint):
        return known
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _value(name, arguments[0])
    if hasattr(hint, "__supertype__"):
        return _value(name, hint.__supertype__)
    if origin in (Union, UnionType):
        return _value(name, next(a for a in arguments if a not in (type(None), UnsetType)))
    if origin is Literal:
        return arguments[0]
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(_value(name, argument) for argument in arguments)
    if origin is tuple:
        return (_value(name, arguments[0]),)
    if origin is dict:
        return {"user": "42"}
    if isinstance(hint, type) and issubclass(hint, Struct):
        return full(hint)
    return _PLAIN[hint](name)


def _fits(value: Any, hint: Any) -> bool:
    """Fields of one name can have different types in different records."""
    if isinstance(value, Raw):
        return hint is Raw or Raw in get_args(hint)
    try:
        msgspec.convert(value, hint)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


_INSTANT = ("_at", "until", "deadline")
_PLAIN: dict[Any, Any] = {
    str: lambda name: name,
    int: lambda name: NOW + 60_000_000 if name.endswith(_INSTANT) else 1,
    float: lambda name: 1.0,
    bool: lambda name: False,
    Raw: lambda name: Raw(b"{}"),
    datetime: lambda name: datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
}
