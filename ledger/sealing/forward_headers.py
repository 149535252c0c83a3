"""Headers of a caller (Authorization, X-User-Info …) that travel with a job to the model it calls.

They are checked and sealed before the log. Messages and pointers name a header only where its name
is well formed, and quote no value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ledger.domain.strict_json import escaped
from ledger.sealing.keyring import Keyring
from ledger.sealing.sealed import NotSealed, Sealed, open_sealed, seal
from ledger.sealing.secret import Secret

HEADERS_MAX = 32
HEADERS_BYTES_MAX = 8_192
"""Of the headers as JSON, which is what is sealed."""
NAME_LENGTH_MAX = 128

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
SET_BY_THE_CALL = frozenset(
    {
        "accept-encoding",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
    }
)
FORBIDDEN = HOP_BY_HOP | SET_BY_THE_CALL

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")


class HeadersRefused(ValueError):
    """`pointer` is a JSON pointer into the request."""

    def __init__(self, message: str, pointer: str = "/forward_headers") -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer


def context_of(command_id: str) -> str:
    """Where the headers of the request of that command belong."""
    return f"jobs/{command_id}/forward_headers"


def checked_headers(headers: object) -> dict[str, str]:
    """What was given as `forward_headers`, names in lower case. Raises `HeadersRefused`."""
    if not isinstance(headers, Mapping):
        raise HeadersRefused("an object of header names and values")
    if len(headers) > HEADERS_MAX:
        raise HeadersRefused(f"{len(headers)} headers; {HEADERS_MAX} fit")
    found: dict[str, str] = {}
    for name, value in headers.items():
        key = checked_name(name)
        pointer = f"/forward_headers/{escaped(str(name))}"
        if key in FORBIDDEN:
            raise HeadersRefused(f"{key} belongs to the connection or to the call itself", pointer)
        if key in found:
            raise HeadersRefused(f"{key} stands twice", pointer)
        found[key] = checked_value(value, pointer)
    size = len(msgspec.json.encode(found))
    if size > HEADERS_BYTES_MAX:
        raise HeadersRefused(f"{size} bytes; {HEADERS_BYTES_MAX} fit")
    return found


def checked_name(name: object, pointer: str = "/forward_headers") -> str:
    """A token of RFC 9110, in lower case. Raises `HeadersRefused`."""
    if not isinstance(name, str) or not _TOKEN.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise HeadersRefused(
            f"a header's name has 1 to {NAME_LENGTH_MAX} letters, digits and !#$%&'*+.^_`|~-",
            pointer,
        )
    return name.lower()


def checked_value(value: object, pointer: str) -> str:
    """Visible ASCII, with blanks and tabs only inside. Raises `HeadersRefused`."""
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise HeadersRefused(
            "a header's value is ASCII text without control characters or blanks at its ends",
            pointer,
        )
    return value


def seal_headers(keyring: Keyring, headers: object, *, command_id: str) -> Sealed:
    """Checked, as JSON, sealed for the request of that command. Raises `HeadersRefused`."""
    plain = msgspec.json.encode(checked_headers(headers))
    return seal(keyring, plain, context=context_of(command_id))


def open_headers(keyring: Keyring, text: str, *, command_id: str) -> dict[str, Secret]:
    """Names in lower case. Raises as `open_sealed`; `NotSealed` also for what holds no headers, as
    only another writer with the same keys can have sealed."""
    plain = open_sealed(keyring, text, context=context_of(command_id))
    try:
        found = checked_headers(msgspec.json.decode(plain))
    except (msgspec.DecodeError, HeadersRefused):
        raise NotSealed from None
    return {name: Secret(value) for name, value in found.items()}
