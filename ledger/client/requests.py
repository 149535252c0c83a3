"""What a client sends, checked before it is sent as its owner will check it: what passes here is no
dead letter there, and never of a shape that its type does not have."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import TypedDict

import msgspec
from msgspec import Struct

from ledger.client.clock import wall_clock
from ledger.client.errors import Refused
from ledger.client.json_values import hash_of, json_bytes
from ledger.domain.commands import Asked, Command, RequestJob
from ledger.domain.ids import INLINE_BYTES_MAX, CommandId, rfc3339_micros
from ledger.domain.rejections import Rejection
from ledger.domain.strict_json import MalformedJson, UnsafeInteger
from ledger.log.command_codec import (
    COMMAND_ID_LENGTH_MAX,
    Misshapen,
    Unreadable,
    command_from,
    request_from,
    routing_key,
)
from ledger.log.connection import COMMAND_BYTES_MAX
from ledger.log.headers import cloud_event
from ledger.log.records import Header, Outgoing, ReadHeader
from ledger.sealing.api_keys import context_of
from ledger.sealing.forward_headers import HeadersRefused, checked_value, seal_headers
from ledger.sealing.keyring import Keyring
from ledger.sealing.sealed import seal

API_KEY_LENGTH_MAX = 4_096
MALFORMED_JSON = "MALFORMED_JSON"
PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"


class RetryFields(TypedDict, total=False):
    max_attempts: int
    backoff_seconds: list[float]
    jitter: float
    position: str
    retryable_codes: list[str]
    fatal_codes: list[str]


class RequestFields(TypedDict, total=False):
    """What a request may say beside its type, queue and payload; see docs/kafka.md."""

    labels: dict[str, str]
    scope: str
    priority: int
    idempotency_key: str
    run_at: datetime | str
    delay_seconds: float
    start_timeout_seconds: float | None
    timeout_seconds: float
    lease_seconds: float
    retry: RetryFields
    result_ttl_seconds: float
    failed_ttl_seconds: float
    forward_headers: Mapping[str, str]
    template_version: int


class Checked(Struct, frozen=True, gc=False):
    """Ready to be sent."""

    command_id: CommandId
    command: Command
    record: Outgoing


def checked_request(
    fields: Mapping[str, object],
    command_id: CommandId,
    *,
    source: str,
    actor: str = "",
    reply_to: str = "",
    traceparent: str = "",
) -> Checked:
    """The body of `POST /v1/jobs`. Raises `Refused`.

    `payload_hash` is made here only where a key needs it. Hot: 11 us. What `json_bytes` writes is
    strict, so the owner's own reader, which takes 17 more, is asked only about what is long,
    misshapen, or under headers that are not plainly good: it says why.
    """
    body = dict(fields)
    payload = body.get("payload", {})
    if "payload_ref" not in body:
        body["payload"] = payload
    if body.get("idempotency_key") is not None and "payload_hash" not in body:
        body["payload_hash"] = hash_of(payload, _encoded(payload, command_id, "/payload"))
    try:
        value = json_bytes(body)
    except (MalformedJson, UnsafeInteger):
        _encoded(payload, command_id, "/payload")
        value = _encoded(body, command_id, "")
    if len(value) > INLINE_BYTES_MAX:
        _check_size(_encoded(payload, command_id, "/payload"), command_id)
    elif _is_plain(command_id) and (frame := _frame(source, actor, reply_to, traceparent)):
        with suppress(msgspec.DecodeError):
            command = request_from(value)
            sent_at = rfc3339_micros(wall_clock())
            headers = [*frame, ("ce_id", command_id.encode()), ("ce_time", sent_at.encode())]
            return Checked(command_id, command, (command.queue.encode(), value, headers))
    headers = _headers(RequestJob.TYPE, command_id, source, actor, reply_to, traceparent)
    return _checked(value, headers, command_id)


def checked_command(
    record_type: str,
    body: Mapping[str, object],
    command_id: CommandId,
    *,
    source: str,
    actor: str = "",
    reply_to: str = "",
) -> Checked:
    """Of any other type. Raises `Refused`."""
    headers = _headers(record_type, command_id, source, actor, reply_to)
    return _checked(_encoded(body, command_id, ""), headers, command_id)


def _check_size(payload: bytes, command_id: CommandId) -> None:
    if len(payload) > INLINE_BYTES_MAX:
        raise Refused(
            PAYLOAD_TOO_LARGE,
            f"the payload takes {len(payload)} bytes; {INLINE_BYTES_MAX} fit",
            command_id=command_id,
            pointer="/payload",
        )


def _is_plain(command_id: CommandId) -> bool:
    return 0 < len(command_id) <= COMMAND_ID_LENGTH_MAX and command_id.isprintable()


@lru_cache(maxsize=64)
def _frame(source: str, actor: str, reply_to: str, traceparent: str) -> tuple[Header, ...]:
    """A request's headers but for its id and time; none where the owner would not take them."""
    sample = CommandId("-")
    try:
        headers = _headers(RequestJob.TYPE, sample, source, actor, reply_to, traceparent)
        _checked(b'{"type":"any"}', headers, sample)
    except Refused:
        return ()
    return tuple(header for header in headers if header[0] not in ("ce_id", "ce_time"))


def _headers(
    record_type: str,
    command_id: CommandId,
    source: str,
    actor: str,
    reply_to: str,
    traceparent: str = "",
) -> list[Header]:
    try:
        return cloud_event(
            record_id=command_id,
            source=source,
            record_type=record_type,
            at=wall_clock(),
            reply_to=reply_to,
            actor=actor,
            traceparent=traceparent,
        )
    except UnicodeEncodeError:
        detail = "a lone surrogate in a header"
        raise Refused(MALFORMED_JSON, detail, command_id=command_id) from None


# --- Secrets -------------------------------------------------------------------------------------
def sealed_headers(
    keyring: Keyring | None, headers: Mapping[str, object], command_id: CommandId
) -> str | None:
    """`forward_headers` of that command. Raises `Refused`."""
    if not headers:
        return None
    try:
        return seal_headers(
            _needed(keyring, command_id, "/forward_headers"), headers, command_id=command_id
        )
    except HeadersRefused as error:
        raise _invalid(error.message, command_id, error.pointer) from None


def sealed_api_key(keyring: Keyring | None, api_key: str, model: str, command_id: CommandId) -> str:
    """Bound to its model. Raises `Refused`."""
    try:
        checked_value(api_key, "/api_key")
    except HeadersRefused as error:
        raise _invalid(error.message, command_id, "/api_key") from None
    if not 1 <= len(api_key) <= API_KEY_LENGTH_MAX:
        detail = f"has 1 to {API_KEY_LENGTH_MAX} characters; None removes it"
        raise _invalid(detail, command_id, "/api_key")
    ring = _needed(keyring, command_id, "/api_key")
    return seal(ring, api_key.encode(), context=context_of(model))


def _needed(keyring: Keyring | None, command_id: CommandId, pointer: str) -> Keyring:
    if keyring is None:
        raise _invalid("a secret, and no keyring to seal it under", command_id, pointer)
    return keyring


def _invalid(detail: str, command_id: CommandId, pointer: str) -> Refused:
    return Refused(Rejection.VALIDATION_FAILED, detail, command_id=command_id, pointer=pointer)


def _encoded(value: object, command_id: CommandId, pointer: str) -> bytes:
    try:
        return json_bytes(value)
    except UnsafeInteger as error:
        raise Refused(
            Rejection.VALIDATION_FAILED,
            str(error),
            command_id=command_id,
            pointer=pointer + error.pointer,
        ) from None
    except MalformedJson as error:
        raise Refused(
            MALFORMED_JSON, str(error), command_id=command_id, pointer=pointer or None
        ) from None


def _checked(value: bytes, headers: list[Header], command_id: CommandId) -> Checked:
    if len(value) > COMMAND_BYTES_MAX:
        raise Refused(
            PAYLOAD_TOO_LARGE,
            f"the command takes {len(value)} bytes; {COMMAND_BYTES_MAX} fit",
            command_id=command_id,
        )
    found = command_from(_Unsent(value, headers))
    match found:
        case Asked():
            try:
                key = routing_key(found.command)
            except ValueError as error:
                raise Refused(
                    Rejection.JOB_NOT_FOUND, str(error), command_id=command_id, pointer="/job_id"
                ) from None
            return Checked(command_id, found.command, (key.encode(), value, headers))
        case Misshapen():
            raise Refused(
                Rejection.VALIDATION_FAILED,
                found.message,
                command_id=command_id,
                pointer=found.pointer or None,
                job_id=found.job_id,
            )
        case Unreadable():
            raise Refused(MALFORMED_JSON, found.reason, command_id=command_id)


class _Unsent:
    """A record as it would be read."""

    __slots__ = ("headers", "value")

    key: bytes | None = None
    topic = ""
    partition = 0
    offset = 0
    timestamp = 0

    def __init__(self, value: bytes, headers: list[Header]) -> None:
        self.value: bytes | None = value
        self.headers: list[ReadHeader] = list(headers)
