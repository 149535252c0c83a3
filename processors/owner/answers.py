"""What a command's sender is told: replies, built from the partition right after its entry."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ledger.domain.commands import Asked, CancelJobs, Claim, Heartbeat, LockJob, PutTemplate
from ledger.domain.decide import Decided
from ledger.domain.events import LeaseGranted, Ref
from ledger.domain.flows import inputs_of
from ledger.domain.ids import rfc3339
from ledger.domain.job import cancel_of, held_lease, quoted_step
from ledger.domain.job_view import job_json
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected
from ledger.log.replies import Reply

_encode = msgspec.json.Encoder().encode


class Locked(Struct, frozen=True, gc=False):
    """The answer of `lock`, and each item of `claim`'s."""

    job_id: str
    step: str
    attempt: int
    fence: int
    lease_expires_at: str
    job: Raw
    inputs: dict[str, Raw] = {}
    """Outputs of the steps that this one needs, by name."""
    input_refs: dict[str, Ref] = {}
    """Where those lie that are kept in the object store."""
    item: Raw | None = None
    """Of a step that is done once for each item of a list."""


class Claimed(Struct, frozen=True, gc=False):
    items: tuple[Locked, ...]


class HeartbeatAnswer(Struct, frozen=True, gc=False):
    lease_expires_at: str
    cancel_requested: bool
    cancel_reason: str | None
    cancel_deadline: str | None


class TemplateAnswer(Struct, frozen=True, gc=False):
    version: int
    created: bool


class OperationAnswer(Struct, frozen=True, gc=False):
    operation_id: str


def refusal(asked: Asked, refused: Rejected) -> Reply:
    return Reply(
        command_id=asked.command_id,
        outcome="rejected",
        position="",
        code=refused.code,
        detail=refused.detail,
        pointer=refused.pointer,
        job_id=refused.job_id,
        job_status=refused.job_status,
    )


def parked(asked: Asked) -> Reply:
    return Reply(command_id=asked.command_id, outcome="parked", position="")


def acceptance(partition: Partition, asked: Asked, decided: Decided) -> Reply:
    """`position` is filled in once the entry is proven."""
    job = partition.job(decided.job_id) if decided.job_id else None
    data = _data(partition, asked, decided)
    return Reply(
        command_id=asked.command_id,
        outcome="duplicate" if decided.deduplicated else "accepted",
        position="",
        job=None if job is None or data is not None else Raw(job_json(job)),
        job_id=decided.job_id,
        data=None if data is None else Raw(_encode(data)),
        replayed=decided.replayed,
    )


def _data(partition: Partition, asked: Asked, decided: Decided) -> Struct | None:
    match asked.command:
        case LockJob():
            return _locked(partition, decided.grants[0]) if decided.grants else None
        case Claim():
            return Claimed(tuple(_locked(partition, grant) for grant in decided.grants))
        case Heartbeat(fence=fence):
            job = partition.job(asked.command.job_id)
            step = quoted_step(job, fence) if job else None
            lease = held_lease(step) if step else None
            if job is None or lease is None:
                return None
            cancel = cancel_of(job, step) if step is not None else None
            deadline = cancel.deadline if cancel else None
            return HeartbeatAnswer(
                rfc3339(lease.until),
                cancel is not None,
                cancel.reason if cancel else None,
                rfc3339(deadline) if deadline is not None else None,
            )
        case PutTemplate():
            return TemplateAnswer(decided.template_version or 0, bool(decided.events))
        case CancelJobs():
            return OperationAnswer(decided.operation_id or "")
        case _:
            return None


def _locked(partition: Partition, grant: LeaseGranted) -> Locked:
    job = partition.job(grant.job_id)
    view = Raw(job_json(job)) if job is not None else Raw(b"null")
    until = rfc3339(grant.until)
    locked = Locked(grant.job_id, grant.step, grant.attempt, grant.fence, until, view)
    step = quoted_step(job, grant.fence) if job is not None else None
    if job is None or step is None or step.part is None:
        return locked
    inputs, refs = inputs_of(job, step)
    return replace(locked, inputs=inputs, input_refs=refs, item=step.part.item)
