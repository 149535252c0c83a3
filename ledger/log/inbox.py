"""Records of a queue's inbox topic: what the owner tells runtimes that read Kafka.

Keyed by runtime id; a record without a key is for every runtime. Times left are durations: a
runtime counts them on its own monotonic clock, from when it asked.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from ledger.domain.brief import Brief
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId, Session, StepName
from ledger.domain.strict_json import UNDECODABLE
from ledger.log.headers import cloud_event, text_header
from ledger.log.records import Outgoing, Record


class AssignedItem(Struct, frozen=True, gc=False, omit_defaults=True):
    """One assignment. A void one only fills its number, and has no `job`: the lease has ended."""

    number: int
    """Gapless per session and queue; a runtime takes only the last one + 1."""
    job_id: JobId
    step: StepName
    attempt: int
    fence: Fence
    lease_since: str
    lease_expires_at: str
    lease_seconds: float
    """What was left of it when this was sent."""
    beat: int
    """The runtime's beat on which it was granted."""
    job: Brief | None = None
    void: bool = False


class Assigned(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.runtime.assigned.v1"
    session: Session
    queue: QueueName
    items: tuple[AssignedItem, ...]


class LeaseLeft(Struct, frozen=True, gc=False, omit_defaults=True):
    job_id: JobId
    fence: Fence
    expires_in_seconds: float
    lease_expires_at: str


class LeaseDropped(Struct, frozen=True, gc=False, omit_defaults=True):
    job_id: JobId
    fence: Fence


class CancelAsked(Struct, frozen=True, gc=False, omit_defaults=True):
    job_id: JobId
    fence: Fence
    deadline_in_seconds: float
    reason: str = ""


class ReportRefused(Struct, frozen=True, gc=False, omit_defaults=True):
    job_id: JobId
    fence: Fence
    code: str
    detail: str = ""


class BeatAnswered(Struct, frozen=True, gc=False, omit_defaults=True):
    """The recorded end of each lease, never more; what to stop; what was refused."""

    TYPE: ClassVar[str] = "ledger.runtime.beat_answered.v1"
    session: Session
    queue: QueueName
    beat: int
    leases: tuple[LeaseLeft, ...] = ()
    drop: tuple[LeaseDropped, ...] = ()
    cancel: tuple[CancelAsked, ...] = ()
    refused: tuple[ReportRefused, ...] = ()


class OwnerChanged(Struct, frozen=True, gc=False, omit_defaults=True):
    """A new owner knows no free slots and no waiting claims: beat and claim again."""

    TYPE: ClassVar[str] = "ledger.runtime.owner_changed.v1"
    queue: QueueName
    partition: int


InboxRecord = Assigned | BeatAnswered | OwnerChanged

_DECODERS: dict[str, msgspec.json.Decoder[InboxRecord]] = {
    kind.TYPE: msgspec.json.Decoder(kind) for kind in (Assigned, BeatAnswered, OwnerChanged)
}
_encode = msgspec.json.Encoder().encode


def inbox_record(
    content: InboxRecord, *, record_id: str, source: str, runtime_id: RuntimeId | None
) -> Outgoing:
    """`runtime_id` None: for every runtime of the queue."""
    key = None if runtime_id is None else runtime_id.encode()
    headers = cloud_event(record_id=record_id, source=source, record_type=content.TYPE)
    return key, _encode(content), headers


def inbox_from(record: Record) -> InboxRecord | None:
    """None for what is no inbox record of this version: a runtime passes over it."""
    decoder = _DECODERS.get(text_header(record.headers, "ce_type"))
    if decoder is None or record.value is None:
        return None
    try:
        content = decoder.decode(record.value)
    except UNDECODABLE:
        return None
    if type(content) is Assigned:
        for item in content.items:
            if item.job is not None:
                _detach(item.job)
    return content


def _detach(brief: Brief) -> None:
    """Give its JSON bytes of its own: they would keep the record of all assignments alive."""
    force_setattr(brief, "payload", brief.payload.copy())
    if brief.inputs:
        inputs = {name: output.copy() for name, output in brief.inputs.items()}
        force_setattr(brief, "inputs", inputs)
    if isinstance(brief.item, Raw):
        force_setattr(brief, "item", brief.item.copy())
    if isinstance(brief.output_schema, Raw):
        force_setattr(brief, "output_schema", brief.output_schema.copy())
