"""Sealing and opening: `v1.<key id>.<nonce>.<ciphertext>`, the last two as base64url.

What is sealed is bound to its place, the context: `models/<name>/api_key`,
`jobs/<command id>/forward_headers`. Moved to another place it does not open. Version and key id are
bound as well. A nonce is 96 random bits, so a key is good for 2^32 seals: make a new one before.
"""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NewType

from cryptography.exceptions import InvalidTag
from msgspec import Struct

from ledger.sealing.keyring import ID_PATTERN, Keyring

Sealed = NewType("Sealed", str)

PLAIN_BYTES_MAX = 16_384
NONCE_BYTES = 12
TAG_BYTES = 16
CONTEXT_LENGTH_MAX = 512
VERSION = "v1"
_FORM = re.compile(
    rf"{VERSION}\.(?P<key>{ID_PATTERN})\.(?P<nonce>[A-Za-z0-9_-]{{16}})\.(?P<data>[A-Za-z0-9_-]+)"
)
_DATA_LENGTH_MAX = (PLAIN_BYTES_MAX + TAG_BYTES + 2) // 3 * 4


class SealingError(Exception):
    """A sealed value does not open. No message quotes what was to be opened."""


class NotSealed(SealingError):
    """The text has not the form of a sealed value."""

    def __init__(self) -> None:
        super().__init__(f"not of the form {VERSION}.<key id>.<nonce>.<ciphertext>")


class UnknownKey(SealingError):
    """It was sealed under a key that the key ring does not hold."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"sealed under the key {key_id}, which the key ring does not hold")
        self.key_id = key_id


class Tampered(SealingError):
    """It was changed, moved to another context, or sealed under another key of the same id."""

    def __init__(self) -> None:
        super().__init__("changed since it was sealed, or sealed for another place")


class PlainTooLong(SealingError):
    """What was to be sealed is longer than `PLAIN_BYTES_MAX`."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes; {PLAIN_BYTES_MAX} can be sealed")


class _Parts(Struct, frozen=True, gc=False):
    key_id: str
    nonce: bytes
    data: bytes


def seal(keyring: Keyring, plain: bytes, *, context: str) -> Sealed:
    """Under the newest key. Raises `PlainTooLong`."""
    if len(plain) > PLAIN_BYTES_MAX:
        raise PlainTooLong(len(plain))
    key = keyring.newest
    nonce = secrets.token_bytes(NONCE_BYTES)
    data = key.cipher.encrypt(nonce, plain, _bound(key.key_id, context))
    return Sealed(f"{VERSION}.{key.key_id}.{_text(nonce)}.{_text(data)}")


def open_sealed(keyring: Keyring, text: str, *, context: str) -> bytes:
    """Raises `NotSealed`, `UnknownKey`, `Tampered`."""
    parts = _parts(text)
    key = keyring.find(parts.key_id)
    if key is None:
        raise UnknownKey(parts.key_id)
    try:
        return key.cipher.decrypt(parts.nonce, parts.data, _bound(parts.key_id, context))
    except InvalidTag:
        raise Tampered from None


def rotate(keyring: Keyring, text: str, *, context: str) -> Sealed:
    """Sealed anew under the newest key; as it is if it already is. Raises as `open_sealed`, and
    opens it in either case: what comes back can be opened."""
    plain = open_sealed(keyring, text, context=context)
    if key_id_of(text) == keyring.newest.key_id:
        return Sealed(text)
    return seal(keyring, plain, context=context)


def key_id_of(text: str) -> str:
    """Which key opens it: as long as anything names a key, the key must stay. Raises `NotSealed`.

    Says nothing of whether it does open.
    """
    return _parts(text).key_id


def _parts(text: str) -> _Parts:
    match = _FORM.fullmatch(text)
    if match is None or len(match["data"]) > _DATA_LENGTH_MAX:
        raise NotSealed
    nonce, data = _bytes(match["nonce"]), _bytes(match["data"])
    if len(data) < TAG_BYTES:
        raise NotSealed
    return _Parts(match["key"], nonce, data)


def _bound(key_id: str, context: str) -> bytes:
    if not 1 <= len(context) <= CONTEXT_LENGTH_MAX:
        raise ValueError(f"a context has 1 to {CONTEXT_LENGTH_MAX} characters")
    return f"{VERSION}.{key_id}.{context}".encode()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Only the one text that `_text` writes: bits that decode to nothing are not ignored."""
    if len(text) % 4 == 1:
        raise NotSealed
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(data) != text:
        raise NotSealed
    return data
