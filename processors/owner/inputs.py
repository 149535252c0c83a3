"""Records of the intakes, made ready for a turn: what must be acknowledged elsewhere before its
entry (a dead letter, a forwarded request) or asked outside (an offset) is done here."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from msgspec import Struct

from ledger.domain.commands import Asked, CancelPart, DeclareInputLost, RequestJob
from ledger.domain.events import InputQuarantined
from ledger.domain.ids import LEDGER_QUEUE, QueueName
from ledger.domain.intakes import Missing
from ledger.log.command_codec import (
    Misshapen,
    Unreadable,
    command_from,
    command_record,
    partition_for,
    topic_of,
)
from ledger.log.crash_points import reach
from ledger.log.records import Header, Outgoing, Record
from processors.owner.gaps import Gaps
from processors.owner.seams import Seams
from processors.owner.turn import Turn


class Forward(Struct, frozen=True):
    """A request that lies in the wrong partition."""

    asked: Asked
    queue: QueueName
    partition: int


class Part(Struct, frozen=True):
    asked: Asked
    command: CancelPart
    requests_end: int


class Lost(Struct, frozen=True):
    asked: Asked
    command: DeclareInputLost
    missing: Missing | None
    ahead: bool
    """It lies behind the gap that it speaks of: it is read again, in its turn."""


class Misplaced(Struct, frozen=True):
    asked: Asked
    detail: str


class Quarantine(Struct, frozen=True):
    event: InputQuarantined


Input = Asked | Forward | Part | Lost | Misplaced | Misshapen | Quarantine
Read = list[tuple[int, Input]]
"""(offset, what lies there), in order."""


async def read_inputs(seams: Seams, partition: int, records: Sequence[Record], gaps: Gaps) -> Read:
    """Raises LogUnavailable where a dead letter or a forwarded request is not acknowledged: nothing
    of these records has been decided then."""
    read: Read = []
    dead: list[Outgoing] = []
    forwards: dict[int, list[Outgoing]] = {}
    for record in records:
        found = command_from(record)
        if isinstance(found, Unreadable):
            read.append((record.offset, Quarantine(_quarantined(record, found))))
            dead.append(_dead_letter(record, found))
            continue
        if isinstance(found, Misshapen):
            read.append((record.offset, found))
            continue
        lies_in = _partition_of(found, seams.partitions)
        if lies_in == partition and record.topic == topic_of(found.command, seams.topics):
            read.append((record.offset, found))
        elif isinstance(found.command, RequestJob) and record.topic == seams.topics.requests:
            forward = Forward(found, found.command.queue, lies_in)
            read.append((record.offset, forward))
            forwards.setdefault(lies_in, []).append(_again(found, seams.source))
        else:
            detail = f"it belongs into {topic_of(found.command, seams.topics)}[{lies_in}]"
            read.append((record.offset, Misplaced(found, detail)))
    if dead:
        await seams.outbox.send(seams.topics.dead(records[0].topic), partition, dead)
        reach("owner.after_dead_letters")
    for target, outgoing in forwards.items():
        await seams.outbox.send(seams.topics.requests, target, outgoing)
        reach("owner.after_forwards")
    return await _with_facts(seams, partition, read, gaps)


def decide_inputs(turn: Turn, commands: Read, requests: Read) -> None:
    """Commands before requests: a burst of requests delays no result, beat or cancel."""
    for offset, found in commands:
        _decide(turn, found, offset + 1, turn.partition.requests)
    for offset, found in requests:
        _decide(turn, found, turn.partition.commands, offset + 1)


def _decide(turn: Turn, found: Input, commands: int, requests: int) -> None:
    match found:
        case Asked(command=RequestJob()):
            turn.read_request(found)
        case Asked():
            turn.read_command(found)
        case Forward():
            turn.forwarded(found.asked, found.queue, found.partition)
        case Part():
            turn.read_part(found.asked, found.command, found.requests_end)
        case Lost():
            turn.read_lost(found.asked, found.command, found.missing, ahead=found.ahead)
        case Misplaced():
            turn.misplaced(found.asked, found.detail, commands=commands, requests=requests)
        case Misshapen():
            turn.misshapen(found, commands=commands, requests=requests)
        case Quarantine():
            turn.quarantined(found.event, commands=commands, requests=requests)


async def _with_facts(seams: Seams, partition: int, read: Read, gaps: Gaps) -> Read:
    """What the log is asked for a command, after that was read: where the requests end that a part
    of a bulk operation covers, what is missing of an intake."""
    if not any(isinstance(f, Asked) and type(f.command) in _NEED_FACTS for _, f in read):
        return read
    end = await seams.offsets.end(seams.topics.requests, partition)
    found: Read = []
    for offset, each in read:
        match each:
            case Asked(command=CancelPart() as command):
                found.append((offset, Part(each, command, end)))
            case Asked(command=DeclareInputLost() as command):
                missing = await gaps.missing(command.topic)
                found.append((offset, Lost(each, command, missing, gaps.in_commands)))
            case _:
                found.append((offset, each))
    return found


_NEED_FACTS = (CancelPart, DeclareInputLost)


def _partition_of(asked: Asked, count: int) -> int:
    try:
        return partition_for(asked.command, count)
    except ValueError:  # A job id that names no queue: nobody's, so this owner refuses it.
        return -1


def _again(asked: Asked, source: str) -> Outgoing:
    return command_record(
        asked.command,
        asked.command_id,
        source=source,
        reply_to=asked.reply_to,
        sent_at=asked.sent_at or asked.appended_at,
        actor=asked.actor,
        traceparent=asked.traceparent,
    )


def _quarantined(record: Record, found: Unreadable) -> InputQuarantined:
    digest = sha256(record.value or b"").hexdigest()
    return InputQuarantined(LEDGER_QUEUE, record.topic, record.offset, found.reason[:500], digest)


def _dead_letter(record: Record, found: Unreadable) -> Outgoing:
    headers: list[Header] = [
        *((name, value or b"") for name, value in record.headers),
        ("ledger-reason", found.reason.encode()),
        ("ledger-source", f"{record.topic}[{record.partition}]@{record.offset}".encode()),
    ]
    return record.key, record.value, headers
