"""RFC 8785: one byte form for equal JSON values, which is what hashes are over."""

from __future__ import annotations

from hashlib import sha256

import orjson
import rfc8785

from ledger.domain.strict_json import check_integers


def canonical(value: object) -> bytes:
    """Raises `UnsafeInteger`, and ValueError for what is no JSON value."""
    if _is_plain(value):
        try:
            return orjson.dumps(value, option=_SORTED)
        except TypeError as error:  # An integer beyond the safe range, or a lone surrogate.
            check_integers(value)
            raise ValueError(f"no JSON value: {error}") from None
    check_integers(value)
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, AttributeError) as error:
        raise ValueError(f"no JSON value: {error}") from None


def sha256_hex(value: object) -> str:
    """Of the canonical bytes: what `payload_hash` and `output_hash` hold."""
    return sha256(canonical(value)).hexdigest()


_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


def _is_plain(value: object) -> bool:
    """Whether orjson's sorted form is the canonical one, at a tenth of the cost.

    They differ only in floats and in the order of keys beyond the basic plane.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not key.isascii():
                return False
            if type(item) is not str and not _is_plain(item):
                return False
        return True
    if kind is list:
        return all(_is_plain(item) for item in value)  # type: ignore[attr-defined]
    return False
