"""What a client sends, checked before it is sent by the decoder that the owner reads it with: what
passes here is no dead letter there, and never of a shape that its type does not have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

from msgspec import Struct

from ledger.client.clock import wall_clock
from ledger.client.errors import Refused
from ledger.client.json_values import hash_of, json_bytes
from ledger.domain.commands import Asked, RequestJob
from ledger.domain.ids import INLINE_BYTES_MAX, CommandId
from ledger.domain.rejections import Rejection
from ledger.domain.strict_json import MalformedJson, UnsafeInteger
from ledger.log.command_codec import Misshapen, Unreadable, command_from, routing_key
from ledger.log.connection import COMMAND_BYTES_MAX
from ledger.log.headers import cloud_event
from ledger.log.records import Header, Outgoing, ReadHeader

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
    template_version: int


class Checked(Struct, frozen=True, gc=False):
    """Ready to be sent."""

    asked: Asked
    record: Outgoing

    @property
    def command_id(self) -> CommandId:
        return self.asked.command_id


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

    `payload_hash` is made here only where a key needs it.
    """
    body = dict(fields)
    payload = body.pop("payload", {})
    data = _encoded(payload, command_id, "/payload")
    if len(data) > INLINE_BYTES_MAX:
        raise Refused(
            PAYLOAD_TOO_LARGE,
            f"the payload takes {len(data)} bytes; {INLINE_BYTES_MAX} fit",
            command_id=command_id,
            pointer="/payload",
        )
    if body.get("idempotency_key") is not None and "payload_hash" not in body:
        body["payload_hash"] = hash_of(payload, data)
    value = _encoded(body, command_id, "")[:-1] + b',"payload":' + data + b"}"
    headers = cloud_event(
        record_id=command_id,
        source=source,
        record_type=RequestJob.TYPE,
        at=wall_clock(),
        reply_to=reply_to,
        actor=actor,
        traceparent=traceparent,
    )
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
    headers = cloud_event(
        record_id=command_id,
        source=source,
        record_type=record_type,
        at=wall_clock(),
        reply_to=reply_to,
        actor=actor,
    )
    return _checked(_encoded(body, command_id, ""), headers, command_id)


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
            return Checked(found, (key.encode(), value, headers))
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
