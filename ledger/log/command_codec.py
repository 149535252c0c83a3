"""Commands as records of the intakes: one strict parse each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

import msgspec
from msgspec import Raw, Struct

from ledger.domain.commands import (
    TYPES,
    Asked,
    Beat,
    CancelJobs,
    CancelPart,
    Claim,
    Command,
    ConfirmPart,
    ConfirmRemoved,
    DeclareInputLost,
    DeleteModel,
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    GatewayBeat,
    PauseQueue,
    PutModel,
    PutQueue,
    PutSchedule,
    PutTemplate,
    RemoveObjects,
    Report,
    Reported,
    RequestJob,
    ResumeQueue,
    RunSchedule,
    Schedule,
    Template,
)
from ledger.domain.ids import (
    LEDGER_QUEUE,
    MODELS_QUEUE,
    QUEUE_PATTERN,
    CommandId,
    JobId,
    Micros,
    QueueName,
    parse_rfc3339,
    queue_of,
)
from ledger.domain.raw_fields import detach, raw_fields
from ledger.domain.strict_json import (
    MalformedJson,
    UnsafeInteger,
    check_integers,
    escaped,
    read,
)
from ledger.log.connection import COMMAND_BYTES_MAX
from ledger.log.headers import cloud_event
from ledger.log.partitions import partition_of
from ledger.log.records import Outgoing, Record
from ledger.log.replies import parse_reply_to
from ledger.log.topics import Topics

HEADER_BYTES_MAX = 2_048
"""Of one header's value."""


class Unreadable(Struct, frozen=True, gc=False):
    """For the dead-letter topic: no CloudEvents headers, or not strict JSON."""

    reason: str
    key: bytes | None


class Misshapen(Struct, frozen=True, gc=False):
    """A readable command without the form that its type asks for: refused with VALIDATION_FAILED.

    `type` may be one that this version does not know.
    """

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
    offset: int = -1


def command_from(record: Record) -> Asked | Misshapen | Unreadable:
    """Total: whatever lies in an intake is one of the three."""
    try:
        attributes = _attributes(record)
        sent_at = _sent_at(attributes)
        body, is_long = read(record.value or b"", bytes_max=COMMAND_BYTES_MAX)
    except MalformedJson as error:
        return Unreadable(str(error), record.key)
    kind = attributes["ce_type"]
    known = _DECODERS.get(kind)
    if known is None:
        return _misshapen(record, attributes, body, "no command is of this type", "")
    decoder, raw_names = known
    value = record.value or b""
    content = _BODIES.get(kind)
    is_flat = content is not None and isinstance(body, dict) and content not in body
    try:
        if is_long:
            check_integers(body)
        command = decoder.decode(_gathered(value, kind) if is_flat else value)
    except UnsafeInteger as error:
        return _misshapen(record, attributes, body, str(error), error.pointer)
    except msgspec.DecodeError as error:
        message, pointer = _explained(str(error))
        if is_flat:
            pointer = pointer.removeprefix(f"/{content}")
        return _misshapen(record, attributes, body, message, pointer)
    if raw_names:
        detach(command, raw_names)
    elif type(command) is Report:
        for reported in command.reports:
            detach(reported, _REPORTED_RAWS[type(reported)])
    elif type(command) is PutTemplate:
        detach(command.template, _TEMPLATE_RAWS)
    elif type(command) is PutSchedule:
        detach(command.schedule, _SCHEDULE_RAWS)
    return Asked(
        command,
        command_id=CommandId(attributes["ce_id"]),
        actor=attributes.get("ce_actor", ""),
        reply_to=attributes.get("ce_replyto", ""),
        sent_at=sent_at,
        appended_at=Micros(record.timestamp * 1000),
        offset=record.offset,
        traceparent=attributes.get("traceparent", ""),
    )


def _gathered(value: bytes, kind: str) -> bytes:
    """A put whose body stands beside its address, as the route has it over HTTP, with the body in
    the field that the command has for it."""
    content = _decode_fields(value)
    address = {name: content.pop(name) for name in _ADDRESSES[kind] if name in content}
    return _encode({**address, _BODIES[kind]: content})


def request_from(value: bytes) -> RequestJob:
    """Of what is known to be strict JSON. Raises `msgspec.DecodeError` for another form."""
    return _decode_request(value)


def topic_of(command: Command, topics: Topics) -> str:
    """The intake that a command goes to."""
    return topics.requests if type(command) is RequestJob else topics.commands


def routing_key(command: Command) -> QueueName:
    """The queue whose partition decides the command. Raises ValueError for a malformed job id.

    Of a claim over several queues: the first's; whoever sends it asks one partition at a time.
    """
    match command:
        case (
            RequestJob()
            | Beat()
            | Report()
            | PutTemplate()
            | PutQueue()
            | PauseQueue()
            | ResumeQueue()
            | PutSchedule()
            | DeleteSchedule()
            | EnableSchedule()
            | DisableSchedule()
            | RunSchedule()
        ):
            return command.queue
        case PutModel() | DeleteModel():
            return MODELS_QUEUE
        case Claim():
            return command.queues[0]
        case (
            CancelJobs()
            | ConfirmPart()
            | CancelPart()
            | DeclareInputLost()
            | RemoveObjects()
            | ConfirmRemoved()
            | GatewayBeat()
        ):
            return LEDGER_QUEUE
        case _:
            queue = queue_of(command.job_id)
            if queue is None:
                raise ValueError(f"{command.job_id!r} is no job id")
            return queue


def partition_for(command: Command, count: int) -> int:
    """By the routing key, or the one that the command names."""
    if type(command) is RequestJob:  # Hot: most are.
        return partition_of(command.queue, count)
    match command:
        case CancelPart() | DeclareInputLost() | GatewayBeat():
            return command.partition
        case _:
            return partition_of(routing_key(command), count)


def command_record(
    command: Command,
    command_id: CommandId,
    *,
    source: str,
    reply_to: str = "",
    sent_at: Micros | None = None,
    actor: str = "",
    traceparent: str = "",
) -> Outgoing:
    headers = cloud_event(
        record_id=command_id,
        source=source,
        record_type=command.TYPE,
        at=sent_at,
        reply_to=reply_to,
        actor=actor,
        traceparent=traceparent,
    )
    return routing_key(command).encode(), _encode(command), headers


def _attributes(record: Record) -> dict[str, str]:
    """The record's headers as texts. Raises `MalformedJson` unless it is a CloudEvent of ours."""
    attributes: dict[str, str] = {}
    for name, value in record.headers:
        if name not in _ATTRIBUTES:
            continue
        if name in attributes:
            raise MalformedJson(f"the header {name} stands twice")
        if value is None or len(value) > HEADER_BYTES_MAX:
            raise MalformedJson(f"the header {name} has no value, or one too long")
        try:
            attributes[name] = value.decode()
        except UnicodeDecodeError:
            raise MalformedJson(f"the header {name} is not UTF-8") from None
    for name in _REQUIRED:
        if not attributes.get(name):
            raise MalformedJson(f"no CloudEvents header {name}")
    said = "".join(attributes.values())
    if not said.isprintable() and _CONTROL.search(said):
        raise MalformedJson("a header holds control characters")
    if attributes["ce_specversion"] != "1.0":
        raise MalformedJson("the header ce_specversion is not 1.0")
    if len(attributes["ce_id"]) > COMMAND_ID_LENGTH_MAX:
        raise MalformedJson(f"the header ce_id is longer than {COMMAND_ID_LENGTH_MAX}")
    media = attributes.get("content-type", _JSON)
    if media != _JSON and media.partition(";")[0].strip().lower() != _JSON:
        raise MalformedJson(f"the header content-type is not {_JSON}")
    if "ce_replyto" in attributes:
        try:
            parse_reply_to(attributes["ce_replyto"])
        except ValueError as error:
            raise MalformedJson(f"the header ce_replyto: {error}") from None
    return attributes


def _sent_at(attributes: Mapping[str, str]) -> Micros | None:
    said = attributes.get("ce_time")
    try:
        return None if said is None else parse_rfc3339(said)
    except (ValueError, OverflowError) as error:
        raise MalformedJson(f"the header ce_time: {error}") from None


def _misshapen(
    record: Record, attributes: Mapping[str, str], body: object, message: str, pointer: str
) -> Misshapen:
    job_id = body.get("job_id") if isinstance(body, dict) else None
    queue = body.get("queue") if isinstance(body, dict) else None
    return Misshapen(
        command_id=CommandId(attributes["ce_id"]),
        type=attributes["ce_type"],
        message=message,
        pointer=pointer,
        job_id=JobId(job_id) if isinstance(job_id, str) and queue_of(job_id) else None,
        queue=QueueName(queue) if isinstance(queue, str) and _QUEUE.match(queue) else None,
        reply_to=attributes.get("ce_replyto", ""),
        actor=attributes.get("ce_actor", ""),
        appended_at=Micros(record.timestamp * 1000),
        offset=record.offset,
    )


def _explained(said: str) -> tuple[str, str]:
    """A msgspec message and its `$.a[0].b` as a message and the JSON pointer `/a/0/b`.

    Where a path goes through any key of a mapping (`[...]`), the pointer ends before it.
    """
    message, _, path = said.rpartition(" - at `")
    if not message:
        message, path = said, ""
    path = path.rstrip("`").removeprefix("key` in `").removeprefix("$").partition("[...]")[0]
    pointer = "".join(f"/{escaped(name or index)}" for name, index in _STEP.findall(path))
    if field := _FIELD.search(message):
        pointer += f"/{escaped(field.group(1))}"
    return message, pointer


COMMAND_ID_LENGTH_MAX = 256
_REQUIRED = ("ce_specversion", "ce_id", "ce_source", "ce_type")
_ATTRIBUTES = frozenset(
    (*_REQUIRED, "ce_time", "ce_replyto", "ce_actor", "content-type", "traceparent")
)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_FIELD = re.compile(r"(?:unknown|required) field `([^`]+)`")
_JSON = "application/json"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_QUEUE = re.compile(QUEUE_PATTERN)

_encode = msgspec.json.Encoder().encode
_DECODERS: dict[str, tuple[msgspec.json.Decoder[Command], tuple[str, ...]]] = {
    name: (msgspec.json.Decoder(kind), raw_fields(kind)) for name, kind in TYPES.items()
}
_decode_request = msgspec.json.Decoder(RequestJob).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_BODIES = {
    PutTemplate.TYPE: "template",
    PutSchedule.TYPE: "schedule",
    PutQueue.TYPE: "settings",
    PutModel.TYPE: "model",
}
"""Of commands that have an address and a body: the field of the body."""
_ADDRESSES = {
    kind: tuple(name for name in TYPES[kind].__struct_fields__ if name != content)
    for kind, content in _BODIES.items()
}
_TEMPLATE_RAWS = raw_fields(Template)
_SCHEDULE_RAWS = raw_fields(Schedule)
_REPORTED_RAWS = {kind: raw_fields(kind) for kind in get_args(Reported)}
