"""How a job is cancelled: at once, or by asking whoever is at it to stop."""

from __future__ import annotations

from ledger.domain.events import CancelRequested, JobCancelled
from ledger.domain.ids import Micros
from ledger.domain.job import Job
from ledger.domain.leases import refuse_closed
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.steps import current_lease


def cancel(
    job: Job, reason: str, by: str, at: Micros
) -> tuple[JobCancelled | CancelRequested, ...] | Rejected:
    """With no step leased, running or waiting: at once. Else who is at it is asked to stop within
    the grace, and no other step is begun."""
    if refused := refuse_closed(job):
        return refused
    if not job.request.cancel_supported:
        return Rejected(
            Rejection.CANCEL_NOT_SUPPORTED, "the job's template allows no cancel", job.id
        )
    if job.cancel is not None:
        return ()
    if all(current_lease(step) is None for step in job.steps):
        return (JobCancelled(job.id, "at_once", reason, by),)
    return (CancelRequested(job.id, Micros(at + job.request.grace_us), reason, by),)
