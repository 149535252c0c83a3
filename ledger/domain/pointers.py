"""JSON pointers (RFC 6901) into a request, by which templates say what belongs to a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from ledger.domain.commands import RequestJob
from ledger.domain.events import JobRequested
from ledger.domain.strict_json import UNDECODABLE

LENGTH_MAX = 256
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_FIELDS = frozenset(RequestJob.__struct_fields__)


def is_pointer(text: str) -> bool:
    """To something within a request; the whole of it (`""`) is none that a rule can use."""
    return len(text) <= LENGTH_MAX and _POINTER.fullmatch(text) is not None


def point(request: RequestJob | JobRequested, pointer: str) -> Any:
    """What a pointer finds in the request's JSON; UNSET where it finds nothing.

    Of a payload that lies elsewhere it finds what the request brings along.
    """
    found: Any
    field, *rest = parts(pointer)
    if field == "payload" and request.payload_ref is not None:
        brought = request.extract
        found = _decoded(brought) if isinstance(brought, Raw) else brought
        return found.get(pointer, UNSET) if isinstance(found, dict) else UNSET
    found = getattr(request, field, None) if field in _FIELDS else None
    if found is None:
        return UNSET
    if type(found) is str and not rest:
        return found
    if isinstance(found, Raw):
        found = _decoded(found)
    elif isinstance(found, Struct | datetime):
        found = msgspec.to_builtins(found)
    return find(found, rest)


def _decoded(content: Raw) -> Any:
    """UNSET for what is no JSON: only a log that others wrote has that."""
    try:
        return msgspec.json.decode(content)
    except UNDECODABLE:
        return UNSET


def find(value: Any, path: Sequence[str]) -> Any:
    """What lies at a path within a JSON value; UNSET: nothing."""
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return UNSET
    return value


@lru_cache(maxsize=1024)
def parts(pointer: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))
