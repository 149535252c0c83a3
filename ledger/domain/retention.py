"""How long results are kept: collected, withdrawn, erased. The clock of this is the read model's:
a cleaner finds what is due and asks; the rules say whether it is."""

from __future__ import annotations

from msgspec import Struct

from ledger.domain.commands import Closing, CollectJob, ConfirmDeleted, WithdrawResult
from ledger.domain.events import (
    JobCollected,
    JobErased,
    JobEvent,
    ObjectsDeleted,
    ResultWithdrawn,
)
from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job, objects_of, objects_to_delete, status
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected, Rejection, not_found
from ledger.domain.remembered import Late
from ledger.domain.steps import Status

Decision = tuple[JobEvent, ...] | Rejected
CONFIRMED_MAX = 200
"""Keys that a confirmation names, at most; all of the job's are deleted before it."""
FAILED_FOR_GOOD = frozenset({Status.FAILED, Status.EXPIRED})
"""Such a job is removed once its `failed_ttl_seconds` are over."""


class Kept(Struct, frozen=True, gc=False):
    """What of an ended job its retention depends on, remembered or brought along."""

    job_id: JobId
    status: Status
    finished_at: Micros
    result_ttl_us: int | None
    failed_ttl_us: int | None
    collected_at: Micros | None
    result_expires_at: Micros | None
    withdrawn: bool
    payload_withdrawn: bool
    erased: bool


def collect(partition: Partition, command: CollectJob, at: Micros) -> Decision:
    """The first one sets the expiry; whoever asks again is told the same."""
    kept = _kept(partition, command.job_id, command.closing)
    if isinstance(kept, Rejected):
        return kept
    if kept.erased:
        return not_found(command.job_id)
    if kept.status is not Status.SUCCEEDED or kept.collected_at is not None:
        return ()
    ttl = kept.result_ttl_us
    return (JobCollected(kept.job_id, None if ttl is None else Micros(at + ttl)),)


def withdraw(partition: Partition, command: WithdrawResult, at: Micros) -> Decision:
    """Never before its time, whatever the asker's clock says."""
    kept = _kept(partition, command.job_id, command.closing)
    if isinstance(kept, Rejected):
        return kept
    if command.why == "owner_removed":
        if kept.payload_withdrawn or kept.erased:
            return ()
        return (ResultWithdrawn(kept.job_id, "owner_removed"),)
    if kept.status in FAILED_FOR_GOOD and kept.failed_ttl_us is not None:
        is_due = at >= kept.finished_at + kept.failed_ttl_us
        return (JobErased(kept.job_id),) if is_due and not kept.erased else ()
    expires = kept.result_expires_at
    if kept.withdrawn or expires is None or at < expires:
        return ()
    return (ResultWithdrawn(kept.job_id, "expired"),)


def confirm_deleted(partition: Partition, command: ConfirmDeleted) -> Decision:
    job = partition.job(command.job_id)
    if job is not None and job.end is None:
        return Rejected(Rejection.JOB_NOT_CLOSED, "the job is open", job.id, status(job))
    keys = () if job is None else objects_to_delete(job)
    if job is not None and not set(keys[:CONFIRMED_MAX]) <= set(command.keys):
        missing = "not all that is to be deleted: look at the job again"
        return Rejected(Rejection.VALIDATION_FAILED, missing, job.id, status(job), "/keys")
    if job is not None and not keys:
        return ()
    return (ObjectsDeleted(command.job_id, command.keys),)


def are_in_use(job: Job, keys: tuple[str, ...]) -> bool:
    """Whether somebody may still be given one of these objects of an ended job."""
    return not set(objects_of(job)).isdisjoint(keys) and not objects_to_delete(job)


def _finished(job: Job) -> Micros:
    return job.finished_at or job.created_at


def closing_of(job: Job) -> Closing:
    """Of a job that has ended: for an owner who has forgotten it."""
    assert job.end is not None
    return Closing(
        status=job.end.value,  # type: ignore[arg-type]
        finished_at=_finished(job),
        result_ttl_us=job.request.result_ttl_us,
        failed_ttl_us=job.request.failed_ttl_us,
        collected_at=job.collected_at,
        result_expires_at=job.result_expires_at,
        withdrawn=job.withdrawn,
        payload_withdrawn=job.payload_withdrawn,
        erased=job.erased,
    )


def _kept(partition: Partition, job_id: JobId, closing: Closing | None) -> Kept | Rejected:
    job = partition.job(job_id)
    if job is not None and job.end is None:
        return Rejected(Rejection.JOB_NOT_CLOSED, "the job has not ended", job_id, status(job))
    if job is not None:
        return _of_job(job)
    if closing is None:
        return not_found(job_id)
    late = partition.late.get(job_id, Late())
    return Kept(
        job_id,
        Status(closing.status),
        closing.finished_at,
        closing.result_ttl_us,
        closing.failed_ttl_us,
        late.collected_at if closing.collected_at is None else closing.collected_at,
        late.result_expires_at if closing.collected_at is None else closing.result_expires_at,
        late.withdrawn or closing.withdrawn,
        late.payload_withdrawn or closing.payload_withdrawn,
        late.erased or closing.erased,
    )


def _of_job(job: Job) -> Kept:
    assert job.end is not None
    return Kept(
        job.id,
        job.end,
        _finished(job),
        job.request.result_ttl_us,
        job.request.failed_ttl_us,
        job.collected_at,
        job.result_expires_at,
        job.withdrawn,
        job.payload_withdrawn,
        job.erased,
    )
