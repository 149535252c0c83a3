"""Records of the replies topic: an owner's answer to whoever waits for a command."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
from msgspec import Raw, Struct

from ledger.domain.ids import CommandId, JobId
from ledger.domain.raw_fields import decoder_of
from ledger.domain.rejections import FieldError
from ledger.domain.strict_json import UNDECODABLE
from ledger.log.headers import cloud_event, text_header
from ledger.log.records import Outgoing, Record

Outcome = Literal["accepted", "duplicate", "rejected", "parked"]


class Reply(Struct, frozen=True, gc=False, omit_defaults=True):
    """A hint, not the truth: the outcome is in the log."""

    TYPE: ClassVar[str] = "ledger.command.replied.v1"
    command_id: CommandId
    outcome: Outcome
    """`parked`: a claim found nothing and waits in the owner's memory."""
    position: str
    """`partition:offset` up to which the answer is true."""
    code: str | None = None
    """Of the rejection."""
    detail: str = ""
    pointer: str | None = None
    job: Raw | None = None
    """The job's view, as `GET` gives it."""
    job_id: JobId | None = None
    job_status: str | None = None
    data: Raw | None = None
    """The answer of lock, claim, heartbeat."""
    errors: tuple[FieldError, ...] = ()
    """Of a rejection for more than one thing that is wrong."""
    replayed: bool = False
    """The same command, or an equal one, was answered before."""


_encode = msgspec.json.Encoder().encode
_decode = decoder_of(Reply)


def reply_record(reply: Reply, reply_to: str, *, source: str) -> tuple[int, Outgoing]:
    """Partition and record. Raises ValueError for what is not `<partition>/<address>`."""
    partition, address = parse_reply_to(reply_to)
    headers = cloud_event(record_id=reply.command_id, source=source, record_type=Reply.TYPE)
    return partition, (address.encode(), _encode(reply), headers)


def parse_reply_to(reply_to: str) -> tuple[int, str]:
    """Raises ValueError for what is not `<partition>/<address>`."""
    partition, slash, address = reply_to.partition("/")
    if not slash or not address or not (partition.isascii() and partition.isdecimal()):
        raise ValueError(f"{reply_to[:64]!r} is not <partition>/<address>")
    return int(partition), address


def reply_from(record: Record) -> Reply | None:
    """None for what is no reply of this version."""
    if text_header(record.headers, "ce_type") != Reply.TYPE or record.value is None:
        return None
    try:
        return _decode(record.value)
    except UNDECODABLE:
        return None
