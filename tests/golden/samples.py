"""One full and one minimal value of any struct, always the same, read off its fields."""

from __future__ import annotations

from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct, UnsetType

JOB_ID = "mail.0190a7b2-7b1c-7def-8a12-0123456789ab"

# What a field's type alone does not say.
_BY_NAME: dict[str, Any] = {
    "job_id": JOB_ID,
    "retried_from": "mail.0190a7b2-0000-7000-8000-000000000000",
    "goto": "step_1",
    "StepAsk.name": "step_1",
    "StepPlan.name": "step_1",
    "needs": ("step_1",),
    "queue": "mail",
    "queues": ("mail", "print"),
    "sha256": "ab" * 32,
    "payload_hash": "ab" * 32,
    "output_hash": "cd" * 32,
    "key_digest": "ef" * 16,
    "content_digest": "cd" * 32,
    "priority": 7,
    "percent": 62.5,
    "jitter": 0.25,
    "inputs": {"gliederung": Raw('{"a":"é"}'.encode())},
    "message": "Grüße; 100 %\n😀",
}

_INSTANTS = {"ready_at", "until", "deadline", "key_until", "expires_at", "at"}


def full(kind: type[Struct]) -> Any:
    """Every field set, none to its default where that can be told."""
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: _field(kind, name, hints[name]) for name in kind.__struct_fields__})


def minimal(kind: type[Struct]) -> Any:
    """Only the fields that have no default."""
    hints = get_type_hints(kind, include_extras=True)
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{name: _field(kind, name, hints[name]) for name in required})


def _field(kind: type[Struct], name: str, hint: Any) -> Any:
    return _BY_NAME.get(f"{kind.__name__}.{name}") or _value(name, hint)


def _value(name: str, hint: Any) -> Any:
    if name in _BY_NAME:
        return _BY_NAME[name]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _value(name, arguments[0])
    if hasattr(hint, "__supertype__"):
        return _value(name, hint.__supertype__)
    if origin in (Union, UnionType):
        real = [each for each in arguments if each not in (type(None), UnsetType)]
        return _value(name, real[0])
    if origin is Literal:
        return arguments[-1]
    if origin is tuple:
        kinds = get_args(arguments[0])
        if get_origin(arguments[0]) in (Union, UnionType) and issubclass(kinds[0], Struct):
            return tuple(full(kind) for kind in kinds)
        if arguments[-1] is not Ellipsis:
            return tuple(_value(name, argument) for argument in arguments)
        return (_value(name, arguments[0]),)
    if origin is dict and isinstance(arguments[1], type) and issubclass(arguments[1], Struct):
        return {"user": full(arguments[1])}
    if origin is dict:
        return {"user": "u1", "projekt": "Öl"}
    if isinstance(hint, type) and issubclass(hint, Struct):
        return full(hint)
    return _PLAIN[hint](name)


_PLAIN: dict[Any, Any] = {
    str: lambda name: f"{name}-1",
    int: lambda name: 1_700_000_000_000_000 if name in _INSTANTS else 3,
    float: lambda name: 12.5,
    bool: lambda name: name not in ("start", "enabled", "supported", "cancel_supported"),
    Raw: lambda name: Raw('{"a":[1,2.50,"é"],"b":null}'.encode()),
    datetime: lambda name: datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
}
