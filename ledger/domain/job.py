"""A job: the fold of its events. `evolve` is one step of it, `status` says where the job stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, assert_never, final

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
from ledger.domain.failures import MESSAGES, Failure
from ledger.domain.ids import MAIN, Fence, JobId, Micros, StepName
from ledger.domain.steps import Lease as Lease
from ledger.domain.steps import Leased as Leased
from ledger.domain.steps import Pending as Pending
from ledger.domain.steps import Phase as Phase
from ledger.domain.steps import Progress as Progress
from ledger.domain.steps import Running as Running
from ledger.domain.steps import Settled as Settled
from ledger.domain.steps import Status as Status
from ledger.domain.steps import Step as Step
from ledger.domain.steps import Waiting as Waiting
from ledger.domain.steps import current_lease
from ledger.domain.steps import held_lease as held_lease

TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED})
EndStatus = Literal[Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED]


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

    def with_opaque(self) -> Job:
        """One more event that this reader cannot fold."""
        return replace(self, opaque=self.opaque + 1, version=self.version + 1)


@final
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


def quoted_step(job: Job, fence: Fence) -> Step | None:
    """The step whose current attempt `fence` names; a waiting one's is good, too."""
    for step in job.steps:
        lease = current_lease(step)
        if lease is not None and lease.fence == fence:
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
    """One fact later. Total: what does not fit is a `Misfit`, never an exception. Whatever speaks
    of an attempt fits under the fence of the current one only.

    Hot: 2 us. The three of every job are told by their type, see `steps.current_lease`.
    """
    if type(event) is LeaseGranted:
        return _granted(job, event, at)
    if type(event) is AttemptStarted:
        return _started(job, event, at)
    if type(event) is JobSucceeded:
        return _succeeded(job, event, at)
    match event:
        case JobProgressed():
            return _progressed(job, event, at)
        case AttemptFailed() | AttemptExpired():
            return _went_wrong(job, event, at)
        case RetryScheduled():
            return _waits_again(job, event)
        case JobFailed():
            return _ended(job, event, Status.FAILED, at, event.code)
        case JobExpired():
            return _ended(job, event, Status.EXPIRED, at, event.code)
        case LeaseReleased():
            return _released(job, event, at)
        case WaitStarted():
            return _gave_up(job, event)
        case CancelRequested():
            if job.end is not None or job.cancel is not None:
                return _misfit(event, job)
            cancel = Cancel(at, event.reason, event.by, event.deadline)
            return replace(job, cancel=cancel, version=job.version + 1)
        case JobCancelled():
            cancel = job.cancel or Cancel(at, event.reason, event.by, None)
            after = _ended(job, event, Status.CANCELLED, at)
            return after if isinstance(after, Misfit) else replace(after, cancel=cancel)
        case JobCollected():
            return _collected(job, event, at)
        case JobRequested():
            return _misfit(event, job)
        case _:
            assert_never(event)


def extend(job: Job, extension: Extension) -> Job | Misfit:
    """A beat moved the end of one of its leases; never to an earlier instant."""
    step = quoted_step(job, extension.fence)
    lease = held_lease(step) if step else None
    if step is None or lease is None:
        return Misfit("extension", f"no live lease under fence {extension.fence}")
    lease = replace(lease, until=max(lease.until, extension.until))
    return _put(job, step, _with_lease(step, lease), extended=job.extended + 1)


def fold(history: Iterable[tuple[JobEvent, Micros]], job: Job | None = None) -> Job | None:
    """All steps of one job's history; misfits are passed over."""
    for event, at in history:
        if job is None:
            job = begin(event, at) if isinstance(event, JobRequested) else None
            continue
        after = evolve(job, event, at)
        job = job if isinstance(after, Misfit) else after
    return job


OfAttempt = (
    AttemptStarted
    | JobProgressed
    | LeaseReleased
    | WaitStarted
    | AttemptFailed
    | AttemptExpired
    | JobSucceeded
)


def _named(job: Job, name: StepName) -> Step | None:
    for step in job.steps:
        if step.name == name:
            return step
    return None


def _current(job: Job, event: OfAttempt) -> Step | None:
    """The step that an event names, if its fence is the one of the step's current attempt."""
    step = _named(job, event.step)
    if step is None or job.end is not None:
        return None
    lease = current_lease(step)
    return step if lease is not None and lease.fence == event.fence else None


def _misfit(event: JobEvent, job: Job) -> Misfit:
    return Misfit(event.TYPE, f"the job is {status(job)}, the last fence {job.fence}")


def _put(job: Job, old: Step, new: Step, **changes: object) -> Job:
    steps = (new,) if len(job.steps) == 1 else tuple(new if s is old else s for s in job.steps)
    return replace(job, steps=steps, version=job.version + 1, **changes)


def _granted(job: Job, event: LeaseGranted, at: Micros) -> Job | Misfit:
    step = _named(job, event.step)
    fits = step is not None and type(step.phase) is Pending and event.fence > job.fence
    if step is None or not fits or job.end is not None:
        return _misfit(event, job)
    lease = Lease(event.runtime_id, event.session, event.number, event.fence, at, event.until)
    leased = replace(step, phase=Leased(lease), attempt=event.attempt, progress=None)
    return _put(job, step, leased, fence=event.fence, extended=0)


def _started(job: Job, event: AttemptStarted, at: Micros) -> Job | Misfit:
    step = _current(job, event)
    if step is None or not isinstance(step.phase, Leased):
        return _misfit(event, job)
    after = replace(step, phase=Running(step.phase.lease, event.deadline), started_at=at)
    first = at if job.first_started_at is None else job.first_started_at
    return _put(job, step, after, first_started_at=first)


def _progressed(job: Job, event: JobProgressed, at: Micros) -> Job | Misfit:
    step = _current(job, event)
    if step is None:
        return _misfit(event, job)
    progress = Progress(event.percent, event.phase, event.message, at)
    return _put(job, step, replace(step, progress=progress))


def _released(job: Job, event: LeaseReleased, at: Micros) -> Job | Misfit:
    step = _current(job, event)
    if step is None or isinstance(step.phase, Waiting):
        return _misfit(event, job)
    after = replace(
        step,
        phase=Pending(at),
        attempt=step.attempt if event.spent else step.attempt - 1,
        progress=None,
        ended_fence=event.fence,
        ended_how="released",
    )
    return _put(job, step, after, releases=job.releases + 1)


def _gave_up(job: Job, event: WaitStarted) -> Job | Misfit:
    step = _current(job, event)
    lease = None if step is None else held_lease(step)
    if step is None or lease is None:
        return _misfit(event, job)
    return _put(job, step, replace(step, phase=Waiting(lease, event.until)))


def _went_wrong(job: Job, event: AttemptFailed | AttemptExpired, at: Micros) -> Job | Misfit:
    step = _current(job, event)
    if step is None:
        return _misfit(event, job)
    details = event.details if isinstance(event, AttemptFailed) else None
    failure = Failure(event.code, event.message, event.retryable, event.attempt, details)
    after = replace(step, phase=Settled(Status.FAILED), failure=failure, finished_at=at)
    if isinstance(event, AttemptFailed):
        after = replace(after, ended_fence=event.fence, ended_how="failed")
    return _put(job, step, after)


def _waits_again(job: Job, event: RetryScheduled) -> Job | Misfit:
    step = _named(job, event.step)
    if step is None or not isinstance(step.phase, Settled) or job.end is not None:
        return _misfit(event, job)
    after = replace(step, phase=Pending(event.ready_at), finished_at=None)
    return _put(job, step, after, order=event.order)


def _succeeded(job: Job, event: JobSucceeded, at: Micros) -> Job | Misfit:
    step = _current(job, event)
    if step is None:
        return _misfit(event, job)
    output = None if event.output is UNSET else event.output
    after = replace(
        step,
        phase=SUCCEEDED,
        finished_at=at,
        ended_fence=event.fence,
        ended_how="succeeded",
    )
    result = Result(event.output_hash, event.attempt, output, event.output_ref)
    return _put(job, step, after, end=Status.SUCCEEDED, finished_at=at, result=result)


SUCCEEDED = Settled(Status.SUCCEEDED)


def _collected(job: Job, event: JobCollected, at: Micros) -> Job | Misfit:
    if job.end is not Status.SUCCEEDED:
        return _misfit(event, job)
    if job.collected_at is not None:
        return replace(job, version=job.version + 1)  # The first one wins.
    expires = event.expires_at
    return replace(job, collected_at=at, result_expires_at=expires, version=job.version + 1)


def _ended(
    job: Job, event: JobFailed | JobExpired | JobCancelled, how: Status, at: Micros, code: str = ""
) -> Job | Misfit:
    if job.end is not None:
        return _misfit(event, job)
    steps = tuple(
        step if isinstance(step.phase, Settled) else _settled(step, how, at, code)
        for step in job.steps
    )
    return replace(job, steps=steps, end=how, finished_at=at, version=job.version + 1)


def _settled(step: Step, how: Status, at: Micros, code: str) -> Step:
    """What a step becomes when its job ends around it. A step has no `expired`: it failed."""
    if how is Status.CANCELLED:
        return replace(step, phase=Settled(Status.CANCELLED), finished_at=at)
    failure = Failure(code, MESSAGES.get(code, ""), False, step.attempt)
    return replace(step, phase=Settled(Status.FAILED), failure=failure, finished_at=at)


def _with_lease(step: Step, lease: Lease) -> Step:
    phase = step.phase
    changed = Running(lease, phase.deadline) if isinstance(phase, Running) else Leased(lease)
    return replace(step, phase=changed)
