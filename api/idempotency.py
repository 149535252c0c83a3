"""Idempotency-Key: how the header is read, and the command ids that make a repeat the same."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from hashlib import sha256

from api.problems import refused
from ledger.domain.canonical import canonical
from ledger.domain.ids import CommandId
from ledger.domain.partition import KEYED
from ledger.domain.strict_json import MalformedJson, check_text

KEY_LENGTH_MAX = 256
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED = re.compile(r'\\(["\\])')


def key_from(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The key, quoted or bare; None without the header. Raises `Refused` for what is none."""
    values = [value for name, value in headers if name == b"idempotency-key"]
    if not values:
        return None
    if len(values) > 1:
        raise refused("VALIDATION_FAILED", "Idempotency-Key stands twice")
    try:
        text = values[0].decode().strip()
        check_text(text)
    except (UnicodeDecodeError, MalformedJson):
        raise refused("VALIDATION_FAILED", "Idempotency-Key is not UTF-8 text") from None
    if quoted := _QUOTED.fullmatch(text):
        text = _ESCAPED.sub(r"\1", quoted.group(1))
    if not 1 <= len(text) <= KEY_LENGTH_MAX:
        raise refused("VALIDATION_FAILED", f"Idempotency-Key has 1 to {KEY_LENGTH_MAX} characters")
    return text


def fresh_id() -> CommandId:
    """Of a command that nobody will name again."""
    return CommandId(f"cmd_{secrets.token_hex(16)}")


def keyed_id(tenant: str, route: str, key: str, body: object) -> CommandId:
    """The same for the same key on the same route with equal content.

    `route` is method and path, ids included; `body` a strict JSON value without unsafe integers.
    """
    identity = sha256(canonical([tenant, route, key])).hexdigest()[:40]
    content = sha256(canonical(body)).hexdigest()[:40]
    return CommandId(f"{KEYED}{identity}.{content}")


def part_id(command_id: CommandId, part: str) -> CommandId:
    """Of one of several commands that a keyed or fresh one comes to; as stable as that one."""
    if not command_id.startswith(KEYED):
        return CommandId(f"{command_id}.{part}")
    identity, _, content = command_id.removeprefix(KEYED).rpartition(".")
    inner = sha256(f"{identity}.{part}".encode()).hexdigest()[:40]
    return CommandId(f"{KEYED}{inner}.{content}")


def release_id(command_id: CommandId, job_id: str, fence: int) -> CommandId:
    """Of the release of a grant that was not handed over: said twice, it is one."""
    digest = sha256(f"{command_id} {job_id} {fence}".encode()).hexdigest()[:40]
    return CommandId(f"rel_{digest}")
