"""One step of a job's fold, and all of them: what each fact makes of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
    Extension,
    JobCancelled,
    JobCollected,
    JobErased,
    JobEvent,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    ObjectsDeleted,
    PassRestarted,
    ResultWithdrawn,
    RetryScheduled,
    SentBack,
    StepCancelled,
    StepCarried,
    StepDegraded,
    StepExpanded,
    StepFailed,
    StepQueued,
    StepSkipped,
    StepSucceeded,
    WaitStarted,
)
from ledger.domain.evolve_flow import (
    carried,
    degraded,
    expanded,
    flow_succeeded,
    mapped,
    not_begun,
    restarted,
    sent_back,
    step_cancelled,
    step_of_flow,
    step_succeeded,
    why_failed,
)
from ledger.domain.failures import MESSAGES, Failure
from ledger.domain.ids import MAIN, Micros
from ledger.domain.job import Cancel, Job, Result, quoted_step
from ledger.domain.step_changes import (
    CANCELLED,
    FAILED,
    SKIPPED,
    SUCCEEDED,
    Misfit,
    current,
    misfit,
    named,
    put,
    with_step,
)
from ledger.domain.steps import (
    Blocked,
    Lease,
    Leased,
    Pending,
    Progress,
    Running,
    Settled,
    Status,
    Step,
    Waiting,
    current_lease,
    held_lease,
)


# --- The fold ------------------------------------------------------------------------------------
def begin(event: JobRequested, at: Micros) -> Job:
    flow = event.flow
    return Job(
        request=event,
        created_at=at,
        version=1,
        order=event.order,
        steps=(Step(MAIN, Pending(event.ready_at)),) if flow is None else not_begun(flow),
    )


def evolve(job: Job, event: JobEvent, at: Micros) -> Job | Misfit:
    """One fact later, by its rule, see `RULES`. Total: what does not fit is a `Misfit`, never an
    exception. Whatever speaks of an attempt fits under the fence of the current one only."""
    return RULES[type(event)](job, event, at)


def extend(job: Job, extension: Extension) -> Job | Misfit:
    """A beat moved the end of one of its leases; never to an earlier instant."""
    step = quoted_step(job, extension.fence)
    lease = held_lease(step) if step else None
    if step is None or lease is None:
        return Misfit("extension", f"no live lease under fence {extension.fence}")
    lease = replace(lease, until=max(lease.until, extension.until))
    return put(job, step, _with_lease(step, lease), extended=job.extended + 1)


def fold(history: Iterable[tuple[JobEvent, Micros]], job: Job | None = None) -> Job | None:
    """All steps of one job's history; misfits are passed over."""
    for event, at in history:
        if job is None:
            job = begin(event, at) if isinstance(event, JobRequested) else None
            continue
        after = evolve(job, event, at)
        job = job if isinstance(after, Misfit) else after
    return job


def _granted(job: Job, event: LeaseGranted, at: Micros) -> Job | Misfit:
    step = named(job, event.step)
    fits = step is not None and type(step.phase) is Pending and event.fence > job.fence
    if step is None or not fits or job.end is not None:
        return misfit(event, job)
    lease = Lease(event.runtime_id, event.session, event.number, event.fence, at, event.until)
    leased = replace(step, phase=Leased(lease), attempt=event.attempt, progress=None)
    steps = with_step(job, step, leased)
    return replace(job, steps=steps, version=job.version + 1, fence=event.fence, extended=0)


def _started(job: Job, event: AttemptStarted, at: Micros) -> Job | Misfit:
    step = current(job, event)
    if step is None or type(step.phase) is not Leased:
        return misfit(event, job)
    after = replace(step, phase=Running(step.phase.lease, event.deadline), started_at=at)
    first = at if job.first_started_at is None else job.first_started_at
    steps = with_step(job, step, after)
    return replace(job, steps=steps, version=job.version + 1, first_started_at=first)


def _progressed(job: Job, event: JobProgressed, at: Micros) -> Job | Misfit:
    step = current(job, event)
    if step is None:
        return misfit(event, job)
    progress = Progress(event.percent, event.phase, event.message, at)
    after = replace(step, progress=progress)
    flow = job.request.flow
    if flow is None or event.percent is None or "[" in step.name:
        return put(job, step, after)
    percent = max(job.percent or 0.0, mapped(flow.plan(step.name), event.percent))
    return put(job, step, after, percent=percent)


def _released(job: Job, event: LeaseReleased, at: Micros) -> Job | Misfit:
    step = current(job, event)
    if step is None or isinstance(step.phase, Waiting):
        return misfit(event, job)
    after = replace(
        step,
        phase=Pending(at),
        attempt=step.attempt if event.spent else step.attempt - 1,
        progress=None,
        ended_fence=event.fence,
        ended_how="released",
    )
    return put(job, step, after, releases=job.releases + 1)


def _gave_up(job: Job, event: WaitStarted, at: Micros) -> Job | Misfit:
    step = current(job, event)
    lease = None if step is None else held_lease(step)
    if step is None or lease is None:
        return misfit(event, job)
    return put(job, step, replace(step, phase=Waiting(lease, event.until)))


def _went_wrong(job: Job, event: AttemptFailed | AttemptExpired, at: Micros) -> Job | Misfit:
    step = current(job, event)
    if step is None:
        return misfit(event, job)
    details = event.details if isinstance(event, AttemptFailed) else UNSET
    failure = Failure(event.code, event.message, event.retryable, event.attempt, details)
    after = replace(step, phase=Settled(Status.FAILED), failure=failure, finished_at=at)
    if isinstance(event, AttemptFailed):
        after = replace(after, ended_fence=event.fence, ended_how="failed")
    return put(job, step, after)


def _waits_again(job: Job, event: RetryScheduled, at: Micros) -> Job | Misfit:
    step = named(job, event.step)
    if step is None or not isinstance(step.phase, Settled) or job.end is not None:
        return misfit(event, job)
    after = replace(step, phase=Pending(event.ready_at), finished_at=None)
    return put(job, step, after, order=event.order)


def _succeeded(job: Job, event: JobSucceeded, at: Micros) -> Job | Misfit:
    result = Result(event.output_hash, event.attempt, event.output, event.output_ref)
    if job.request.flow is not None:
        return flow_succeeded(job, event, result, at)
    step = current(job, event)
    if step is None:
        return misfit(event, job)
    after = replace(
        step,
        phase=SUCCEEDED,
        finished_at=at,
        ended_fence=event.fence,
        ended_how="succeeded",
    )
    return replace(
        job,
        steps=with_step(job, step, after),
        version=job.version + 1,
        end=Status.SUCCEEDED,
        finished_at=at,
        result=result,
    )


def _collected(job: Job, event: JobCollected, at: Micros) -> Job | Misfit:
    if job.end is not Status.SUCCEEDED:
        return misfit(event, job)
    if job.collected_at is not None:
        return replace(job, version=job.version + 1)  # The first one wins.
    expires = event.expires_at
    return replace(job, collected_at=at, result_expires_at=expires, version=job.version + 1)


def _withdrawn(job: Job, event: ResultWithdrawn, at: Micros) -> Job | Misfit:
    """With its owner goes the payload, too; what was deleted before may be named once more."""
    if job.end is None:
        return misfit(event, job)
    after = replace(job, withdrawn=True, version=job.version + 1)
    if event.why != "owner_removed" or job.payload_withdrawn:
        return after
    is_more = job.request.payload_ref is not None and not job.erased
    return replace(
        after, payload_withdrawn=True, objects_deleted=job.objects_deleted and not is_more
    )


def _cancel_requested(job: Job, event: CancelRequested, at: Micros) -> Job | Misfit:
    if job.end is not None or job.cancel is not None:
        return misfit(event, job)
    cancel = Cancel(at, event.reason, event.by, event.deadline)
    by = event.replaced_by
    return replace(job, cancel=cancel, replaced_by=by, version=job.version + 1)


def _cancelled(job: Job, event: JobCancelled, at: Micros) -> Job | Misfit:
    cancel = job.cancel or Cancel(at, event.reason, event.by, None)
    after = _ended(job, event, Status.CANCELLED, at)
    if isinstance(after, Misfit):
        return after
    return replace(after, cancel=cancel, replaced_by=event.replaced_by or job.replaced_by)


def _failed(job: Job, event: JobFailed, at: Micros) -> Job | Misfit:
    return _ended(job, event, Status.FAILED, at, event.code)


def _expired(job: Job, event: JobExpired, at: Micros) -> Job | Misfit:
    return _ended(job, event, Status.EXPIRED, at, event.code)


def _erased(job: Job, event: JobErased, at: Micros) -> Job | Misfit:
    if job.end is None:
        return misfit(event, job)
    # Now its payload's object is to go as well.
    deleted = job.objects_deleted and job.request.payload_ref is None
    return replace(job, erased=True, objects_deleted=deleted, version=job.version + 1)


def _objects_deleted(job: Job, event: ObjectsDeleted, at: Micros) -> Job | Misfit:
    if job.end is None:
        return misfit(event, job)
    deleted = job.withdrawn or job.erased
    return replace(job, objects_deleted=deleted, version=job.version + 1)


def _ended(
    job: Job, event: JobFailed | JobExpired | JobCancelled, how: Status, at: Micros, code: str = ""
) -> Job | Misfit:
    if job.end is not None:
        return misfit(event, job)
    steps = tuple(
        step if isinstance(step.phase, Settled) else _settled(step, how, at, code)
        for step in job.steps
    )
    failure = job.failure
    if job.request.flow is not None and code:
        failure = why_failed(job, code)
    return replace(
        job, steps=steps, end=how, finished_at=at, failure=failure, version=job.version + 1
    )


def _settled(step: Step, how: Status, at: Micros, code: str) -> Step:
    """What a step becomes when its job ends around it. A step has no `expired`: it failed. In a
    flow another step is the one that failed: this one is stopped, or was never begun."""
    if how is Status.CANCELLED:
        return replace(step, phase=CANCELLED, finished_at=at)
    if step.part is not None:
        begun = step.phase if current_lease(step) is not None else None
        return replace(step, phase=SKIPPED if begun is None else CANCELLED, finished_at=at)
    failure = Failure(code, MESSAGES.get(code, ""), False, step.attempt)
    return replace(step, phase=FAILED, failure=failure, finished_at=at)


def _with_lease(step: Step, lease: Lease) -> Step:
    phase = step.phase
    changed = Running(lease, phase.deadline) if isinstance(phase, Running) else Leased(lease)
    return replace(step, phase=changed)


# --- Steps of a flow that begin, or end without an attempt ---------------------------------------
def _step_queued(job: Job, event: StepQueued, at: Micros) -> Job | Misfit:
    return step_of_flow(job, event, Blocked, phase=Pending(event.ready_at))


def _step_skipped(job: Job, event: StepSkipped, at: Micros) -> Job | Misfit:
    return step_of_flow(job, event, Blocked, phase=SKIPPED, finished_at=at)


def _step_failed(job: Job, event: StepFailed, at: Micros) -> Job | Misfit:
    failure = Failure(event.code, event.message, False, 0)
    return step_of_flow(
        job, event, Blocked | Pending, phase=FAILED, failure=failure, finished_at=at
    )


def _requested_again(job: Job, event: JobRequested, at: Micros) -> Misfit:
    return misfit(event, job)


Rule = Callable[[Job, Any, Micros], Job | Misfit]
RULES: dict[type[JobEvent], Rule] = {
    JobRequested: _requested_again,
    LeaseGranted: _granted,
    AttemptStarted: _started,
    JobProgressed: _progressed,
    LeaseReleased: _released,
    WaitStarted: _gave_up,
    AttemptFailed: _went_wrong,
    AttemptExpired: _went_wrong,
    RetryScheduled: _waits_again,
    JobSucceeded: _succeeded,
    JobFailed: _failed,
    JobExpired: _expired,
    CancelRequested: _cancel_requested,
    JobCancelled: _cancelled,
    JobCollected: _collected,
    ResultWithdrawn: _withdrawn,
    JobErased: _erased,
    ObjectsDeleted: _objects_deleted,
    StepQueued: _step_queued,
    StepExpanded: expanded,
    StepSucceeded: step_succeeded,
    StepCarried: carried,
    StepSkipped: _step_skipped,
    StepFailed: _step_failed,
    StepDegraded: degraded,
    StepCancelled: step_cancelled,
    SentBack: sent_back,
    PassRestarted: restarted,
}
"""What each fact makes of a job, by its type; all types, as a test says. A table, since the last
case of a `match` over so many took 5 us to find."""
