"""A job: the fold of its events. `evolve` is one step of the fold; `status` says where it stands."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, assert_never

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
    Extension,
    JobCancelled,
    JobCollected,
    JobEvent,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    Ref,
    RetryScheduled,
    WaitStarted,
)
from ledger.domain.failures import ENDED_BECAUSE, Failure
from ledger.domain.ids import MAIN, Fence, JobId, Micros, RuntimeId, Session, StepName


class Status(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    """Waits to be leased. Surprising: also while its `ready_at` lies ahead."""
    LEASED = "leased"
    """Given to a runtime that has not started it. Moved by start, or by its lease's end."""
    RUNNING = "running"
    WAITING = "waiting"
    """Given up for an external completion. Holds no lease, and its fence is still good."""
    CANCELLING = "cancelling"
    """Its runtime was asked to stop. Surprising: a result that arrives now still wins."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Ended by the clock: never started in time. An attempt that expires is only an event."""


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED})
EndStatus = Literal[Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED]


# --- Phases of a step: impossible combinations cannot be written ---------------------------------
class Lease(Struct, frozen=True, gc=False):
    runtime_id: RuntimeId
    session: Session
    number: int
    fence: Fence
    since: Micros
    until: Micros
    """Where it ends if nothing is heard; it ends by its event, never by the instant alone."""


class Pending(Struct, frozen=True, gc=False, tag="pending"):
    ready_at: Micros


class Leased(Struct, frozen=True, gc=False, tag="leased"):
    lease: Lease


class Running(Struct, frozen=True, gc=False, tag="running"):
    lease: Lease
    deadline: Micros


class Waiting(Struct, frozen=True, gc=False, tag="waiting"):
    lease: Lease
    """The one that was given up: who may complete, and under which fence."""
    until: Micros


class Settled(Struct, frozen=True, gc=False, tag="settled"):
    status: Status


Phase = Pending | Leased | Running | Waiting | Settled


class Progress(Struct, frozen=True, gc=False):
    percent: float | None
    phase: str | None
    message: str | None
    at: Micros


class Step(Struct, frozen=True, gc=False):
    """The unit of leasing. `attempt` counts grants not given back: 0 before the first."""

    name: StepName
    phase: Phase
    attempt: int = 0
    started_at: Micros | None = None
    """Of the latest attempt that started."""
    finished_at: Micros | None = None
    failure: Failure | None = None
    progress: Progress | None = None
    ended_fence: Fence = Fence(0)
    """Of the last attempt that ended by its runtime's own word, so that saying it again is no
    news. An attempt that expired leaves it alone: what its runtime still says is stale."""


class Cancel(Struct, frozen=True, gc=False):
    requested_at: Micros
    reason: str
    by: str
    deadline: Micros | None


class Result(Struct, frozen=True, gc=False):
    output_hash: str
    attempt: int
    output: Raw | None = None
    output_ref: Ref | None = None


class Job(Struct, frozen=True, gc=False):
    request: JobRequested
    created_at: Micros
    version: int
    """How many events it has had: its history's length, its ETag."""
    order: int
    """Where it waits among equal priority."""
    steps: tuple[Step, ...]
    fence: Fence = Fence(0)
    """The last one handed out."""
    releases: int = 0
    first_started_at: Micros | None = None
    cancel: Cancel | None = None
    finished_at: Micros | None = None
    end: Status | None = None
    result: Result | None = None
    collected_at: Micros | None = None
    result_expires_at: Micros | None = None
    extended: int = 0
    """How often a beat moved the end of the lease now held."""
    opaque: int = 0
    """Events of a later version in its history, which this reader cannot fold."""

    @property
    def id(self) -> JobId:
        return self.request.job_id


class Misfit(Struct, frozen=True, gc=False):
    """History that no rule of this version writes. Counted by whoever folds; changes nothing."""

    event: str
    reason: str


def status(job: Job) -> Status:
    if job.end is not None:
        return job.end
    if job.cancel is not None:
        return Status.CANCELLING
    phase = job.steps[0].phase
    match phase:
        case Pending():
            return Status.PENDING
        case Leased():
            return Status.LEASED
        case Running():
            return Status.RUNNING
        case Waiting():
            return Status.WAITING
        case Settled():
            return phase.status
        case _:
            assert_never(phase)


def held_lease(step: Step) -> Lease | None:
    """The lease that is live by the record; None while pending, waiting or settled."""
    return step.phase.lease if isinstance(step.phase, Leased | Running) else None


def quoted_step(job: Job, fence: Fence) -> Step | None:
    """The step whose current attempt `fence` names; a waiting one's is good, too."""
    for step in job.steps:
        phase = step.phase
        if isinstance(phase, Leased | Running | Waiting) and phase.lease.fence == fence:
            return step
    return None


# --- The fold ------------------------------------------------------------------------------------
def begin(event: JobRequested, at: Micros) -> Job:
    return Job(
        request=event,
        created_at=at,
        version=1,
        order=event.order,
        steps=(Step(MAIN, Pending(event.ready_at)),),
    )


def evolve(job: Job, event: JobEvent, at: Micros) -> Job | Misfit:
    """One fact later. Total: what does not fit is a `Misfit`, never an exception."""
    match event:
        case JobRequested():
            return Misfit(event.TYPE, "the job exists already")
        case LeaseGranted():
            return _with_step(job, event, _granted, at)
        case AttemptStarted():
            return _with_step(job, event, _started, at)
        case JobProgressed():
            return _with_step(job, event, _progressed, at)
        case LeaseReleased():
            return _with_step(job, event, _released, at)
        case WaitStarted():
            return _with_step(job, event, _gave_up, at)
        case AttemptFailed() | AttemptExpired():
            return _with_step(job, event, _went_wrong, at)
        case RetryScheduled():
            return _with_step(job, event, _waits_again, at)
        case JobSucceeded():
            return _with_step(job, event, _succeeded, at)
        case JobFailed():
            return _ended(job, Status.FAILED, at, event.code)
        case JobExpired():
            return _ended(job, Status.EXPIRED, at, event.code)
        case CancelRequested():
            cancel = Cancel(at, event.reason, event.by, event.deadline)
            return replace(job, cancel=cancel, version=job.version + 1)
        case JobCancelled():
            cancel = job.cancel or Cancel(at, event.reason, event.by, None)
            return _ended(replace(job, cancel=cancel), Status.CANCELLED, at)
        case JobCollected():
            if job.collected_at is not None:
                return replace(job, version=job.version + 1)  # The first one wins.
            expires = event.expires_at
            return replace(job, collected_at=at, result_expires_at=expires, version=job.version + 1)
        case _:
            assert_never(event)


def extend(job: Job, extension: Extension) -> Job | Misfit:
    """A beat moved the end of one of its leases; never to an earlier instant."""
    step = quoted_step(job, extension.fence)
    lease = held_lease(step) if step else None
    if step is None or lease is None:
        return Misfit("extension", f"no live lease under fence {extension.fence}")
    return _put(
        job,
        step,
        _with_lease(step, replace(lease, until=max(lease.until, extension.until))),
        extended=job.extended + 1,
    )


def fold(history: Iterable[tuple[JobEvent, Micros]], job: Job | None = None) -> Job | None:
    """All steps of one job's history; misfits are passed over."""
    for event, at in history:
        if job is None:
            job = begin(event, at) if isinstance(event, JobRequested) else None
            continue
        after = evolve(job, event, at)
        job = job if isinstance(after, Misfit) else after
    return job


def _with_step(job: Job, event: JobEvent, change: object, at: Micros) -> Job | Misfit:
    if job.end is not None:
        return Misfit(event.TYPE, "the job has ended")
    name = event.step  # type: ignore[union-attr]
    for step in job.steps:
        if step.name == name:
            return change(job, step, event, at)  # type: ignore[operator, no-any-return]
    return Misfit(event.TYPE, f"the job has no step {name}")


def _put(job: Job, old: Step, new: Step, **changes: object) -> Job:
    steps = (new,) if len(job.steps) == 1 else tuple(new if s is old else s for s in job.steps)
    return replace(job, steps=steps, version=job.version + 1, **changes)


def _granted(job: Job, step: Step, event: LeaseGranted, at: Micros) -> Job:
    lease = Lease(event.runtime_id, event.session, event.number, event.fence, at, event.until)
    after = Step(
        step.name,
        Leased(lease),
        event.attempt,
        step.started_at,
        None,
        step.failure,
        None,
        step.ended_fence,
    )
    return _put(job, step, after, fence=event.fence, extended=0)


def _started(job: Job, step: Step, event: AttemptStarted, at: Micros) -> Job | Misfit:
    if not isinstance(step.phase, Leased):
        return Misfit(event.TYPE, "the step is not leased")
    after = replace(step, phase=Running(step.phase.lease, event.deadline), started_at=at)
    first = at if job.first_started_at is None else job.first_started_at
    return _put(job, step, after, first_started_at=first)


def _progressed(job: Job, step: Step, event: JobProgressed, at: Micros) -> Job:
    progress = Progress(event.percent, event.phase, event.message, at)
    return _put(job, step, replace(step, progress=progress))


def _released(job: Job, step: Step, event: LeaseReleased, at: Micros) -> Job:
    attempt = step.attempt if event.spent else step.attempt - 1
    after = replace(
        step, phase=Pending(at), attempt=attempt, progress=None, ended_fence=event.fence
    )
    return _put(job, step, after, releases=job.releases + 1)


def _gave_up(job: Job, step: Step, event: WaitStarted, at: Micros) -> Job | Misfit:
    if not isinstance(step.phase, Leased | Running):
        return Misfit(event.TYPE, "the step holds no lease")
    return _put(job, step, replace(step, phase=Waiting(step.phase.lease, event.until)))


def _went_wrong(job: Job, step: Step, event: AttemptFailed | AttemptExpired, at: Micros) -> Job:
    details = event.details if isinstance(event, AttemptFailed) else None
    failure = Failure(event.code, event.message, event.retryable, event.attempt, details)
    ended = event.fence if isinstance(event, AttemptFailed) else step.ended_fence
    after = replace(
        step, phase=Settled(Status.FAILED), failure=failure, finished_at=at, ended_fence=ended
    )
    return _put(job, step, after)


def _waits_again(job: Job, step: Step, event: RetryScheduled, at: Micros) -> Job:
    after = replace(step, phase=Pending(event.ready_at), finished_at=None)
    return _put(job, step, after, order=event.order)


def _succeeded(job: Job, step: Step, event: JobSucceeded, at: Micros) -> Job:
    output = None if event.output is UNSET else event.output
    after = replace(step, phase=Settled(Status.SUCCEEDED), finished_at=at, ended_fence=event.fence)
    return _put(
        job,
        step,
        after,
        end=Status.SUCCEEDED,
        finished_at=at,
        result=Result(event.output_hash, event.attempt, output, event.output_ref),
    )


def _ended(job: Job, how: Status, at: Micros, code: str = "") -> Job | Misfit:
    if job.end is not None:
        return Misfit(how, "the job has ended")
    steps = tuple(
        step if isinstance(step.phase, Settled) else _settled(step, how, at, code)
        for step in job.steps
    )
    return replace(job, steps=steps, end=how, finished_at=at, version=job.version + 1)


def _settled(step: Step, how: Status, at: Micros, code: str) -> Step:
    """What a step becomes when its job ends around it. A step has no `expired`: it failed."""
    if how is Status.CANCELLED:
        return replace(step, phase=Settled(Status.CANCELLED), finished_at=at)
    failure = Failure(code, ENDED_BECAUSE.get(code, ""), False, step.attempt)
    return replace(step, phase=Settled(Status.FAILED), failure=failure, finished_at=at)


def _with_lease(step: Step, lease: Lease) -> Step:
    phase = step.phase
    changed = Running(lease, phase.deadline) if isinstance(phase, Running) else Leased(lease)
    return replace(step, phase=changed)
