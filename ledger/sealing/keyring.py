"""The keys that secrets are sealed under: the newest seals, all open.

Messages name a key by its place in the text and never quote it: whoever mixes up ids and keys would
find a key in them otherwise.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ledger.domain.strict_json import MalformedJson, check

KEY_BYTES = 32
KEYS_MAX = 64
TEXT_BYTES_MAX = 65_536
ID_PATTERN = r"[A-Za-z0-9_-]{1,64}"
_ID = re.compile(ID_PATTERN)
_URL_SAFE = str.maketrans("-_", "+/")


class KeyringInvalid(ValueError):
    """The text or file is no key ring; the message says where and why, without any of it."""


@final
class Key:
    """`cipher` is AES-256-GCM under it; the bytes themselves are not kept here."""

    __slots__ = ("cipher", "key_id")

    def __init__(self, key_id: str, data: bytes) -> None:
        self.key_id = key_id
        self.cipher = AESGCM(data)

    def __repr__(self) -> str:
        return f"Key({self.key_id!r})"


@final
class Keyring:
    """At least one key, the newest first."""

    __slots__ = ("_keys", "newest")

    def __init__(self, keys: Sequence[Key]) -> None:
        """Raises `KeyringInvalid`."""
        if not keys:
            raise KeyringInvalid("the key ring holds no key")
        if len(keys) > KEYS_MAX:
            raise KeyringInvalid(f"the key ring holds {len(keys)} keys; {KEYS_MAX} fit")
        self.newest = keys[0]
        self._keys = {key.key_id: key for key in keys}
        if len(self._keys) != len(keys):
            raise KeyringInvalid("two keys of the key ring have the same id")

    def find(self, key_id: str) -> Key | None:
        return self._keys.get(key_id)

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The newest first."""
        return tuple(self._keys)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"


def keyring_from(text: str) -> Keyring:
    """Of a file or an environment variable, the newest key first: lines `id:base64` (blank ones and
    those that begin with `#` do not count), or JSON `[{"id": …, "key": base64}, …]`.

    Raises `KeyringInvalid`.
    """
    if len(text) > TEXT_BYTES_MAX:
        raise KeyringInvalid(f"longer than {TEXT_BYTES_MAX} characters: this is no key ring")
    return Keyring(_from_json(text) if text.lstrip().startswith("[") else _from_lines(text))


def read_keyring(path: Path) -> Keyring:
    """Raises `KeyringInvalid`, and for a file that cannot be read too."""
    try:
        with path.open("rb") as file:
            text = file.read(TEXT_BYTES_MAX + 1).decode()
    except OSError as error:
        raise KeyringInvalid(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KeyringInvalid(f"{path} is not UTF-8 text") from None
    try:
        return keyring_from(text)
    except KeyringInvalid as error:
        raise KeyringInvalid(f"{path}: {error}") from None


def generate_key() -> str:
    """A new key as base64, to be put first into a key ring with an id of its own."""
    return b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class _KeyFields(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    key: str


def _from_json(text: str) -> list[Key]:
    try:
        found = msgspec.convert(check(text.encode()), list[_KeyFields])
    except (MalformedJson, UnicodeEncodeError):
        raise KeyringInvalid("begins like JSON and is none") from None
    except msgspec.ValidationError:
        raise KeyringInvalid('JSON, but not of the form [{"id": …, "key": …}, …]') from None
    return [_key(one.id, one.key, f"key {at}") for at, one in enumerate(found, 1)]


def _from_lines(text: str) -> list[Key]:
    keys = []
    for at, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key_id, colon, key = line.partition(":")
        if not colon:
            raise KeyringInvalid(f"line {at} is not of the form id:base64")
        keys.append(_key(key_id.strip(), key.strip(), f"line {at}"))
    return keys


def _key(key_id: str, key: str, place: str) -> Key:
    if not _ID.fullmatch(key_id):
        raise KeyringInvalid(f"{place}: an id has 1 to 64 letters, digits, _ or -")
    try:
        padded = key.translate(_URL_SAFE).rstrip("=")
        data = b64decode(padded + "=" * (-len(padded) % 4), validate=True)
    except (NotBase64, ValueError):
        raise KeyringInvalid(f"{place}: the key is not base64") from None
    if len(data) != KEY_BYTES:
        raise KeyringInvalid(f"{place}: the key has {len(data)} bytes; it takes {KEY_BYTES}")
    if len(set(data)) == 1:
        raise KeyringInvalid(f"{place}: the key is one byte over and over, not a random one")
    return Key(key_id, data)
