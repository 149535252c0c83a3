"""What a command's sender is told: replies, built from the partition right after its entry."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct

from ledger.domain.commands import (
    Asked,
    CancelJobs,
    Claim,
    CollectJob,
    DeleteModel,
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    Heartbeat,
    Limits,
    LockJob,
    PauseQueue,
    PutModel,
    PutQueue,
    PutSchedule,
    PutTemplate,
    RemoveObjects,
    RequestJob,
    RerunJob,
    ResumeQueue,
    Template,
)
from ledger.domain.decide import Decided
from ledger.domain.events import Labels, LeaseGranted, Ref
from ledger.domain.flows import stored_outputs
from ledger.domain.ids import MODELS_QUEUE, QueueName, StepName, rfc3339
from ledger.domain.job import cancel_of, held_lease, quoted_step
from ledger.domain.job_view import job_json
from ledger.domain.lease_views import LeaseView, lease_view
from ledger.domain.operator_views import (
    CollectedView,
    ModelView,
    ScheduleView,
    collected_view,
    model_view,
    schedule_view,
    settings_view,
)
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.remembered import Late
from ledger.log.replies import Reply

_encode = msgspec.json.Encoder().encode


class Claimed(Struct, frozen=True, gc=False):
    items: tuple[LeaseView, ...]


class HeartbeatAnswer(Struct, frozen=True, gc=False):
    lease_expires_at: str
    cancel_requested: bool
    cancel_reason: str | None
    cancel_deadline: str | None


class TemplateAnswer(Struct, frozen=True, gc=False):
    version: int
    created: bool
    """The command made that version."""
    put_at: str | None = None
    put_by: str | None = None
    """Of a version that was made just now."""


class ScheduleAnswer(Struct, frozen=True, gc=False):
    schedule: ScheduleView
    created: bool
    """There was none of that name before."""


class ModelAnswer(Struct, frozen=True, gc=False):
    model: ModelView
    created: bool
    """There was none of that name before."""


class Deleted(Struct, frozen=True, gc=False):
    deleted: bool = True


class OperationAnswer(Struct, frozen=True, gc=False):
    operation_id: str


class InForce(Struct, frozen=True, gc=False, omit_defaults=True):
    """For whoever moved a payload without knowing the newest template: by what to check it."""

    version: int
    template: Template | None
    limits: Limits


def refusal(partition: Partition, asked: Asked, refused: Rejected) -> Reply:
    command = asked.command
    data = None
    if refused.code is Rejection.VIEW_BEHIND and isinstance(command, RequestJob):
        data = Raw(_encode(_in_force(partition, command)))
    if refused.pointer in ("/payload", "/output_refs") and isinstance(command, RerunJob):
        data = _to_copy(partition, command)
    return Reply(
        data=data,
        command_id=asked.command_id,
        outcome="rejected",
        position="",
        code=refused.code,
        detail=refused.detail,
        pointer=refused.pointer,
        errors=refused.errors,
        job_id=refused.job_id,
        job_status=refused.job_status,
        replayed=refused.replayed,
    )


class ToCopy(Struct, frozen=True, gc=False):
    """For whoever reruns a job that lies in the object store, or in part: what to copy."""

    payload_ref: Ref | None
    queue: QueueName
    labels: Labels
    """Of the new job: they say where the copies lie."""
    output_refs: dict[StepName, Ref]
    """Of steps that are to be taken over, by their names."""


def _to_copy(partition: Partition, command: RerunJob) -> Raw | None:
    job = partition.job(command.job_id)
    if job is None:
        return None
    asked = job.request
    ref = None if job.payload_withdrawn or command.payload is not UNSET else asked.payload_ref
    takes_over = command.from_failed and command.output_refs is UNSET and not job.withdrawn
    outputs = stored_outputs(job) if takes_over else {}
    if ref is None and not outputs:
        return None
    labels = asked.labels if command.labels is UNSET else command.labels
    return Raw(_encode(ToCopy(ref, asked.queue, labels, outputs)))


def _in_force(partition: Partition, request: RequestJob) -> InForce:
    queue = partition.queue(request.queue)
    newest = queue.template(request.type)
    governing = newest
    if request.template_version is not None:
        governing = queue.template(request.type, request.template_version)
    limits = queue.settings.limits
    return InForce(
        0 if newest is None else newest.version,
        None if governing is None else governing.template,
        limits if newest is None else (*newest.template.limits, *limits),
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
        job=None if job is None or job.erased or data is not None else Raw(job_json(job)),
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
            return _template(partition, asked, decided)
        case PutSchedule() | EnableSchedule() | DisableSchedule():
            return _schedule(partition, asked.command, created=decided.created)
        case DeleteSchedule() | DeleteModel():
            return Deleted()
        case PutQueue() | PauseQueue() | ResumeQueue():
            queue = partition.queue(asked.command.queue)
            return settings_view(queue.name, queue.settings, queue.paused)
        case PutModel(name=name):
            model = partition.queue(MODELS_QUEUE).models.get(name)
            return None if model is None else ModelAnswer(model_view(name, model), decided.created)
        case CollectJob():
            return _collected(partition, asked.command)
        case CancelJobs() | RemoveObjects():
            return OperationAnswer(decided.operation_id or "")
        case _:
            return None


def _template(partition: Partition, asked: Asked, decided: Decided) -> TemplateAnswer:
    command = asked.command
    assert isinstance(command, PutTemplate)
    if decided.events:
        at, by = rfc3339(partition.at), asked.actor
        return TemplateAnswer(decided.template_version or 0, True, at, by)
    if decided.template_version is not None:
        return TemplateAnswer(decided.template_version, decided.replayed)
    newest = partition.queue(command.queue).template(command.type)  # Of a repeat that made none.
    return TemplateAnswer(0 if newest is None else newest.version, False)


def _schedule(
    partition: Partition,
    command: PutSchedule | EnableSchedule | DisableSchedule,
    *,
    created: bool,
) -> ScheduleAnswer | None:
    its = partition.queue(command.queue).schedules.get(command.name)
    if its is None:
        return None
    return ScheduleAnswer(schedule_view(command.queue, command.name, its), created)


def _collected(partition: Partition, command: CollectJob) -> CollectedView:
    """What stands, whoever collected it first."""
    job = partition.job(command.job_id)
    if job is not None:
        return collected_view(job.id, job.collected_at, job.result_expires_at)
    brought, late = command.closing, partition.late.get(command.job_id, Late())
    if brought is not None and brought.collected_at is not None:
        return collected_view(command.job_id, brought.collected_at, brought.result_expires_at)
    return collected_view(command.job_id, late.collected_at, late.result_expires_at)


def _locked(partition: Partition, grant: LeaseGranted) -> LeaseView:
    return lease_view(partition.job(grant.job_id), grant)
