"""Commands as records of the intakes: one strict parse each."""

from __future__ import annotations

from msgspec import Struct

from ledger.domain.commands import Asked, Command
from ledger.domain.ids import CommandId, JobId, Micros, QueueName
from ledger.log.records import Outgoing, Record
from ledger.log.topics import Topics


class Unreadable(Struct, frozen=True, gc=False):
    """For the dead-letter topic: no CloudEvents headers, or not strict JSON."""

    reason: str
    key: bytes | None


class Misshapen(Struct, frozen=True, gc=False):
    """A readable command without the form its type asks for: refused with VALIDATION_FAILED."""

    command_id: CommandId
    type: str
    message: str
    pointer: str
    """JSON pointer to what is wrong; empty: the whole."""
    job_id: JobId | None
    queue: QueueName | None
    reply_to: str
    actor: str = ""
    appended_at: Micros = Micros(0)


def command_from(record: Record) -> Asked | Misshapen | Unreadable:
    """Total: whatever lies in an intake is one of the three."""
    raise NotImplementedError


def topic_of(command: Command, topics: Topics) -> str: ...


def routing_key(command: Command) -> QueueName:
    """The queue whose partition decides the command. Raises ValueError for a malformed job id."""
    ...


def partition_for(command: Command, count: int) -> int:
    """By the routing key, or the one that the command names."""
    ...


def command_record(
    command: Command,
    command_id: CommandId,
    *,
    source: str,
    reply_to: str = "",
    sent_at: Micros | None = None,
    actor: str = "",
    traceparent: str = "",
) -> Outgoing: ...
