"""A job: the fold of its events. `evolve` is one step of it, `status` says where the job stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, assert_never, final

import msgspec
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
    Ref,
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
from ledger.domain.failures import MESSAGES, SUCCESS_NOT_MET, Failure, Retry
from ledger.domain.flow_plan import Flow, StepPlan, base_of, instance_of
from ledger.domain.ids import MAIN, Fence, JobId, Micros, StepName
from ledger.domain.steps import Blocked as Blocked
from ledger.domain.steps import Lease as Lease
from ledger.domain.steps import Leased as Leased
from ledger.domain.steps import Part as Part
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
    passes: int = 1
    """Of a flow: how often it has begun from its start."""
    percent: float | None = None
    """Of a flow: how far this pass has come; it never goes back within one."""
    degraded: bool = False
    failure: Failure | None = None
    """Of a flow: why it failed, or else the pass before this one."""
    replaced_by: JobId | None = None
    withdrawn: bool = False
    """Its result is no more to be had."""
    payload_withdrawn: bool = False
    """Nor is its payload, which lay in the object store: both went with their owner."""
    erased: bool = False
    """Nor is the job itself; its events stay."""
    objects_deleted: bool = False
    """What it referred to, and nobody is given any more, is gone from the object store."""

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
    """A pure function of its steps. A flow between two steps is pending: it waits to be leased."""
    if job.end is not None:
        return job.end
    if job.cancel is not None:
        return Status.CANCELLING
    if job.request.flow is None:
        return status_of(job.steps[0].phase)
    found = {status_of(step.phase) for step in job.steps}
    for where in (Status.RUNNING, Status.LEASED, Status.WAITING):
        if where in found:
            return where
    return Status.PENDING


def status_of(phase: Phase) -> Status:
    match phase:
        case Pending() | Blocked():
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


def objects_to_delete(job: Job) -> tuple[str, ...]:
    """Keys in the object store that nobody is given any more, and that are still there."""
    if job.objects_deleted:
        return ()
    return (
        *(_payload_keys(job) if job.payload_withdrawn or job.erased else ()),
        *(output_keys(job) if job.withdrawn or job.erased else ()),
    )


def objects_of(job: Job) -> tuple[str, ...]:
    """Keys of all that it refers to in the object store, less what was deleted."""
    outputs = output_keys(job) if not (job.withdrawn or job.erased) else ()
    payload = _payload_keys(job) if not (job.payload_withdrawn or job.erased) else ()
    return (*outputs, *payload, *objects_to_delete(job))


def output_keys(job: Job) -> tuple[str, ...]:
    """Of its result and its steps' outputs, each once."""
    refs = [None if job.result is None else job.result.output_ref]
    refs += [None if step.part is None else step.part.output_ref for step in job.steps]
    return tuple(dict.fromkeys(ref.key for ref in refs if ref is not None))


def _payload_keys(job: Job) -> tuple[str, ...]:
    return () if job.request.payload_ref is None else (job.request.payload_ref.key,)


# --- What a step is to do: its plan's word in a flow, else the request's -------------------------
def worker_type_of(job: Job, step: Step) -> str:
    flow = job.request.flow
    return job.request.type if flow is None else flow.plan(step.name).worker_type


def timeout_of(job: Job, step: Step) -> int:
    flow = job.request.flow
    own = None if flow is None else flow.plan(step.name).timeout_us
    return job.request.timeout_us if own is None else own


def retry_of(job: Job, step: Step) -> Retry:
    flow = job.request.flow
    return job.request.retry if flow is None else flow.plan(step.name).retry


def cancel_of(job: Job, step: Step) -> Cancel | None:
    """What the step's runtime is told: one that is not cancelable finishes first."""
    flow = job.request.flow
    if job.cancel is None or flow is None or flow.plan(step.name).cancelable:
        return job.cancel
    return None


# --- The fold ------------------------------------------------------------------------------------
def begin(event: JobRequested, at: Micros) -> Job:
    flow = event.flow
    return Job(
        request=event,
        created_at=at,
        version=1,
        order=event.order,
        steps=(Step(MAIN, Pending(event.ready_at)),) if flow is None else _not_begun(flow),
    )


def _not_begun(flow: Flow) -> tuple[Step, ...]:
    return tuple(Step(plan.name, BLOCKED, part=NO_PART) for plan in flow.steps)


BLOCKED = Blocked()
NO_PART = Part()


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
            by = event.replaced_by
            return replace(job, cancel=cancel, replaced_by=by, version=job.version + 1)
        case JobCancelled():
            cancel = job.cancel or Cancel(at, event.reason, event.by, None)
            after = _ended(job, event, Status.CANCELLED, at)
            if isinstance(after, Misfit):
                return after
            return replace(after, cancel=cancel, replaced_by=event.replaced_by or job.replaced_by)
        case JobCollected():
            return _collected(job, event, at)
        case ResultWithdrawn():
            return _withdrawn(job, event)
        case JobErased():
            if job.end is None:
                return _misfit(event, job)
            # Now its payload's object is to go as well.
            deleted = job.objects_deleted and job.request.payload_ref is None
            return replace(job, erased=True, objects_deleted=deleted, version=job.version + 1)
        case ObjectsDeleted():
            if job.end is None:
                return _misfit(event, job)
            deleted = job.withdrawn or job.erased
            return replace(job, objects_deleted=deleted, version=job.version + 1)
        case StepQueued():
            return _step_of_flow(job, event, Blocked, phase=Pending(event.ready_at))
        case StepExpanded():
            return _expanded(job, event, at)
        case StepSucceeded():
            return _step_succeeded(job, event, at)
        case StepCarried():
            return _carried(job, event, at)
        case StepSkipped():
            return _step_of_flow(job, event, Blocked, phase=SKIPPED, finished_at=at)
        case StepFailed():
            failure = Failure(event.code, event.message, False, 0)
            changes = {"phase": FAILED, "failure": failure, "finished_at": at}
            return _step_of_flow(job, event, Blocked | Pending, **changes)
        case StepDegraded():
            return _degraded(job, event)
        case StepCancelled():
            return _step_cancelled(job, event, at)
        case SentBack():
            return _sent_back(job, event)
        case PassRestarted():
            return _restarted(job, event)
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
    | StepSucceeded
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
    after = replace(step, progress=progress)
    flow = job.request.flow
    if flow is None or event.percent is None or "[" in step.name:
        return _put(job, step, after)
    percent = max(job.percent or 0.0, mapped(flow.plan(step.name), event.percent))
    return _put(job, step, after, percent=percent)


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
    output = None if event.output is UNSET else event.output
    result = Result(event.output_hash, event.attempt, output, event.output_ref)
    if job.request.flow is not None:
        return _flow_succeeded(job, event, result, at)
    step = _current(job, event)
    if step is None:
        return _misfit(event, job)
    after = replace(
        step,
        phase=SUCCEEDED,
        finished_at=at,
        ended_fence=event.fence,
        ended_how="succeeded",
    )
    return _put(job, step, after, end=Status.SUCCEEDED, finished_at=at, result=result)


SUCCEEDED = Settled(Status.SUCCEEDED)
FAILED = Settled(Status.FAILED)
SKIPPED = Settled(Status.SKIPPED)
CANCELLED = Settled(Status.CANCELLED)


def _collected(job: Job, event: JobCollected, at: Micros) -> Job | Misfit:
    if job.end is not Status.SUCCEEDED:
        return _misfit(event, job)
    if job.collected_at is not None:
        return replace(job, version=job.version + 1)  # The first one wins.
    expires = event.expires_at
    return replace(job, collected_at=at, result_expires_at=expires, version=job.version + 1)


def _withdrawn(job: Job, event: ResultWithdrawn) -> Job | Misfit:
    """With its owner goes the payload, too; what was deleted before may be named once more."""
    if job.end is None:
        return _misfit(event, job)
    after = replace(job, withdrawn=True, version=job.version + 1)
    if event.why != "owner_removed" or job.payload_withdrawn:
        return after
    is_more = job.request.payload_ref is not None and not job.erased
    return replace(
        after, payload_withdrawn=True, objects_deleted=job.objects_deleted and not is_more
    )


def _ended(
    job: Job, event: JobFailed | JobExpired | JobCancelled, how: Status, at: Micros, code: str = ""
) -> Job | Misfit:
    if job.end is not None:
        return _misfit(event, job)
    steps = tuple(
        step if isinstance(step.phase, Settled) else _settled(step, how, at, code)
        for step in job.steps
    )
    failure = job.failure
    if job.request.flow is not None and code:
        failure = _why_failed(job, code)
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


# --- The steps of a flow -------------------------------------------------------------------------
OfFlow = StepQueued | StepSkipped | StepFailed | StepCancelled


def _step_of_flow(job: Job, event: OfFlow, fits: object, **changes: object) -> Job | Misfit:
    """The named step changes if its phase is among those that fit."""
    step = _named(job, event.step)
    if step is None or step.part is None or job.end is not None:
        return _misfit(event, job)
    if not isinstance(step.phase, fits):  # type: ignore[arg-type]
        return _misfit(event, job)
    return _put(job, step, replace(step, **changes))


def _step_cancelled(job: Job, event: StepCancelled, at: Micros) -> Job | Misfit:
    """Its runtime's own word is remembered; what a step that was cut off still says is stale."""
    step = _named(job, event.step)
    lease = None if step is None else current_lease(step)
    changes: dict[str, object] = {"phase": CANCELLED, "finished_at": at}
    if lease is not None and event.how == "acknowledged":
        changes |= {"ended_fence": lease.fence, "ended_how": "cancelled"}
    return _step_of_flow(job, event, Leased | Running | Waiting | Pending, **changes)


def _expanded(job: Job, event: StepExpanded, at: Micros) -> Job | Misfit:
    """Its instances stand in its place; of an empty list there is nothing to do."""
    step = _named(job, event.step)
    if step is None or step.part is None or job.end is not None:
        return _misfit(event, job)
    items = _items(event.items)
    if type(step.phase) is not Blocked or items is None:
        return _misfit(event, job)
    if not items:
        part = replace(step.part, output=event.items)
        done = replace(step, phase=SUCCEEDED, part=part, finished_at=at)
        return _put(job, step, done, percent=_percent_after(job, done))
    sent_back = step.part.sent_back
    instances = tuple(
        Step(instance_of(step.name, index), BLOCKED, part=Part(item=item, sent_back=sent_back))
        for index, item in enumerate(items)
    )
    place = job.steps.index(step)
    steps = job.steps[:place] + instances + job.steps[place + 1 :]
    return replace(job, steps=steps, version=job.version + 1)


def _items(array: Raw) -> list[Raw] | None:
    try:
        items = msgspec.json.decode(array, type=list[Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return [item.copy() for item in items]


def _step_succeeded(job: Job, event: StepSucceeded, at: Micros) -> Job | Misfit:
    step = _current(job, event)
    if step is None or step.part is None:
        return _misfit(event, job)
    after = replace(
        step,
        phase=SUCCEEDED,
        finished_at=at,
        ended_fence=event.fence,
        ended_how="succeeded",
        ended_hash=event.output_hash,
        part=_with_output(step.part, event),
    )
    return _put(job, step, after, percent=_percent_after(job, after))


def _with_output(part: Part, event: StepSucceeded | StepCarried) -> Part:
    return replace(
        part,
        output=None if event.output is UNSET else event.output,
        output_ref=event.output_ref,
        output_hash=event.output_hash,
        extract=None if event.extract is UNSET else event.extract,
    )


def _carried(job: Job, event: StepCarried, at: Micros) -> Job | Misfit:
    step = _named(job, event.step)
    if step is None or step.part is None or job.end is not None:
        return _misfit(event, job)
    if type(step.phase) is not Blocked:
        return _misfit(event, job)
    part = _with_output(step.part, event)
    after = replace(step, phase=SUCCEEDED, finished_at=at, part=part)
    return _put(job, step, after, percent=_percent_after(job, after))


def _degraded(job: Job, event: StepDegraded) -> Job | Misfit:
    step = _named(job, event.step)
    if step is None or step.part is None or step.phase != FAILED or job.end is not None:
        return _misfit(event, job)
    after = replace(step, part=replace(step.part, degraded=True))
    return _put(job, step, after, percent=_percent_after(job, after))


def _sent_back(job: Job, event: SentBack) -> Job | Misfit:
    """All from `to` on begins anew; how often each has sent it back is kept within the pass."""
    flow = job.request.flow
    step = _named(job, event.step)
    if flow is None or step is None or step.phase != FAILED or job.end is not None:
        return _misfit(event, job)
    again = behind(flow, event.to)
    if base_of(step.name) not in again:
        return _misfit(event, job)
    steps: dict[StepName, Step] = {}
    for one in job.steps:
        base = base_of(one.name)
        if base not in again:
            steps[one.name] = one
        elif base not in steps:
            steps[base] = _begun_anew(one, base)
        if one is step:
            steps[base] = replace(steps[base], part=Part(sent_back=event.count))
    return replace(job, steps=tuple(steps.values()), version=job.version + 1)


def _begun_anew(step: Step, name: StepName) -> Step:
    """What its runtime said last is still known, so that saying it again is no news."""
    sent_back = 0 if step.part is None else step.part.sent_back
    part = Part(sent_back=sent_back) if sent_back else NO_PART
    return Step(
        name,
        BLOCKED,
        ended_fence=step.ended_fence,
        ended_how=step.ended_how,
        ended_hash=step.ended_hash,
        part=part,
    )


def _restarted(job: Job, event: PassRestarted) -> Job | Misfit:
    flow = job.request.flow
    if flow is None or job.end is not None:
        return _misfit(event, job)
    said = {base_of(step.name): step for step in job.steps}
    steps = tuple(
        replace(_begun_anew(said[plan.name], plan.name), part=NO_PART) for plan in flow.steps
    )
    return replace(
        job,
        steps=steps,
        passes=event.number,
        order=event.order,
        percent=None,
        failure=_why_failed(job, None),
        version=job.version + 1,
    )


def _why_failed(job: Job, code: str | None) -> Failure:
    """The failure that a flow ends with, or a pass of it: of a step, if one failed so."""
    for step in reversed(job.steps):
        failure, part = step.failure, step.part
        if failure is None or step.phase != FAILED or (part is not None and part.degraded):
            continue
        if code is None or failure.code == code:
            return failure
    code = SUCCESS_NOT_MET if code is None else code
    return Failure(code, MESSAGES.get(code, ""), False, job.passes)


def _flow_succeeded(job: Job, event: JobSucceeded, result: Result, at: Micros) -> Job | Misfit:
    if job.end is not None or not all(type(step.phase) is Settled for step in job.steps):
        return _misfit(event, job)
    return replace(
        job,
        end=Status.SUCCEEDED,
        finished_at=at,
        result=result,
        percent=100.0,
        degraded=event.degraded,
        version=job.version + 1,
    )


def behind(flow: Flow, name: StepName) -> set[StepName]:
    """The step and all that need it, be it through others. Steps stand behind what they need."""
    found = {name}
    for plan in flow.steps:
        if not found.isdisjoint(plan.needs):
            found.add(plan.name)
    return found


def mapped(plan: StepPlan, percent: float) -> float:
    """A step's own 0-100 within the part of the flow's that it fills."""
    return plan.progress_from + (plan.progress_to - plan.progress_from) * percent / 100


def _percent_after(job: Job, step: Step) -> float | None:
    """How far a pass is once this step has ended. Of several instances each counts its share."""
    flow = job.request.flow
    if flow is None:
        return None
    plan = flow.plan(step.name)
    done = 100.0
    if "[" in step.name:
        same = [s for s in job.steps if base_of(s.name) == plan.name]
        ended = sum(1 for s in same if type(s.phase) is Settled or s.name == step.name)
        done = 100.0 * ended / len(same)
    return max(job.percent or 0.0, mapped(plan, done))
