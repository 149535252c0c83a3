"""Python values as JSON that the ledger keeps: as strict here as its owner is on arrival."""

from __future__ import annotations

import json
from hashlib import sha256

import orjson

from ledger.domain.canonical import canonical
from ledger.domain.strict_json import (
    DEPTH_MAX,
    MalformedJson,
    UnsafeInteger,
    check,
    check_integers,
    may_hold_unsafe_integer,
)

DETAILS_BYTES_MAX = 8_192
NULL = b"null"
NULL_HASH = sha256(NULL).hexdigest()
SHORT = 15
"""So few bytes hold no integer beyond the safe range."""
TEXT_LENGTH_MAX = 2_048
"""Characters of a message or reason."""


def json_bytes(value: object) -> bytes:
    """Raises `MalformedJson` and `UnsafeInteger`.

    orjson writes NaN as null, so only data with a null in it is written again by the strict encoder
    of the standard library, which is ten times as slow. And it takes a fragment as it stands: only
    data that it would not write the same again is read by the owner's decoder. What it returns
    holds 4 KB for however few bytes, so it is copied: that costs less than the memory.
    """
    if value is None:
        return NULL
    try:
        data = bytes(memoryview(orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATACLASS)))
        if b"null" in data:
            _strict.encode(value)
        written = orjson.loads(data)
        is_foreign = orjson.dumps(written) != data
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedJson(f"no JSON value: {error}") from None
    if is_foreign or b"\\u" in data or data.count(b"{") + data.count(b"[") > DEPTH_MAX:
        check(data)
    if len(data) > SHORT and may_hold_unsafe_integer(data):
        check_integers(written)
    return data


def hash_of(value: object, data: bytes) -> str:
    """SHA-256 hex over the RFC 8785 bytes of `value`, which `json_bytes` wrote as `data`."""
    if value is None:
        return NULL_HASH
    try:
        return sha256(canonical(value)).hexdigest()
    except UnsafeInteger:
        raise
    except (ValueError, RecursionError):
        return sha256(canonical(orjson.loads(data))).hexdigest()


def clean_text(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """What a store takes of any text: cut, without NUL and lone surrogates."""
    return text[:length_max].replace("\0", "\ufffd").encode(errors="replace").decode()


_strict = json.JSONEncoder(allow_nan=False, check_circular=False, default=str)
