"""JSON pointers (RFC 6901) into a request, by which templates say what belongs to a key."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from ledger.domain.commands import RequestJob

LENGTH_MAX = 256
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_FIELDS = frozenset(RequestJob.__struct_fields__)


def is_pointer(text: str) -> bool:
    """To something within a request; the whole of it (`""`) is none that a rule can use."""
    return len(text) <= LENGTH_MAX and _POINTER.fullmatch(text) is not None


def point(request: RequestJob, pointer: str) -> Any:
    """What a pointer finds in the request's JSON; UNSET where it finds nothing."""
    field, *rest = _parts(pointer)
    found: Any = getattr(request, field) if field in _FIELDS else None
    if found is None:
        return UNSET
    if type(found) is str and not rest:
        return found
    if isinstance(found, Raw):
        found = msgspec.json.decode(found)
    elif isinstance(found, Struct):
        found = msgspec.to_builtins(found)
    for part in rest:
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and _INDEX.fullmatch(part) and int(part) < len(found):
            found = found[int(part)]
        else:
            return UNSET
    return found


@lru_cache(maxsize=1024)
def _parts(pointer: str) -> tuple[str, ...]:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))
