"""Which keys a store can hold, whoever made them."""

from __future__ import annotations

from ledger.objects.errors import InvalidKey

KEY_BYTES_MAX = 1024
"""Of any key, as S3 bounds it. Those of `ledger.domain.object_keys` stay below 400."""


def checked_key(key: str) -> str:
    """The key, if a store can hold it; raises `InvalidKey`."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidKey(key, "it has a lone surrogate") from None
    if not 1 <= size <= KEY_BYTES_MAX:
        raise InvalidKey(key, f"it takes {size} bytes; 1 to {KEY_BYTES_MAX} fit")
    # S3 says keys in XML, which has no way to write these.
    if any(char < " " or char in "\x7f\ufffe\uffff" for char in key):
        raise InvalidKey(key, "it has a control character, U+FFFE or U+FFFF")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise InvalidKey(key, "a part of it between slashes is empty, . or ..")
    return key
