"""Secrets of requests: checked, and sealed before anything of them leaves for the log."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import scrypt

from api.operation import Ask
from api.problems import Refused, invalid
from ledger.domain.ids import CommandId
from ledger.sealing.api_keys import context_of
from ledger.sealing.forward_headers import (
    FORBIDDEN,
    HeadersRefused,
    checked_name,
    checked_value,
    seal_headers,
)
from ledger.sealing.keyring import Keyring
from ledger.sealing.sealed import seal

SETTING = "LEDGER_SEALING_KEYS"
API_KEY_LENGTH_MAX = 4_096


def sealed_headers(
    ask: Ask, headers: Mapping[str, object] | None, command_id: CommandId
) -> str | None:
    """`forward_headers` of the request that this command makes. Raises `Refused`."""
    if not headers:
        return None
    keyring = _keyring(ask, "/forward_headers")
    try:
        return seal_headers(keyring, headers, command_id=command_id)
    except HeadersRefused as error:
        raise _refused(error) from None


def sealed_api_key(ask: Ask, model: str, api_key: str) -> str:
    """Bound to its model. Raises `Refused`."""
    try:
        checked_value(api_key, "/api_key")
    except HeadersRefused as error:
        raise _refused(error) from None
    if not 1 <= len(api_key) <= API_KEY_LENGTH_MAX:
        raise invalid("/api_key", f"has 1 to {API_KEY_LENGTH_MAX} characters; null removes it")
    keyring = _keyring(ask, "/api_key")
    return seal(keyring, api_key.encode(), context=context_of(model))


def check_api_key_header(name: str) -> None:
    try:
        header = checked_name(name, "/api_key_header")
    except HeadersRefused as error:
        raise _refused(error) from None
    if header in FORBIDDEN:
        raise invalid("/api_key_header", f"{header} belongs to the connection or the call itself")


def digest_of(secret: str, salt: str) -> str:
    """In place of a secret in what an Idempotency-Key stands for: that lies in the log, so guesses
    are made dear (some 50 ms each)."""
    return scrypt(secret.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=20).hex()


def _keyring(ask: Ask, pointer: str) -> Keyring:
    keyring = ask.services.settings.keyring
    if keyring is None:
        message = f"a secret, and there is no key to seal it under: set {SETTING} for the api"
        raise invalid(pointer, message)
    return keyring


def _refused(error: HeadersRefused) -> Refused:
    return invalid(error.pointer, error.message)
