"""A job, and where it stands: values and lookups. What makes it is in `evolve`."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from ledger.domain.events import (
    JobRequested,
    Ref,
)
from ledger.domain.failures import Failure, Retry
from ledger.domain.ids import Fence, JobId, Micros
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
    output: Raw | UnsetType = UNSET
    output_ref: Ref | None = None


class Job(Struct, frozen=True, gc=False, omit_defaults=True):
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


def status(job: Job) -> Status:
    """A pure function of its steps. A flow between two steps is pending: it waits to be leased."""
    if job.end is not None:
        return job.end
    if job.cancel is not None:
        return Status.CANCELLING
    if job.request.flow is None:
        return status_of(job.steps[0].phase)
    where = Status.PENDING
    for step in job.steps:
        kind = type(step.phase)
        if kind is Running:
            return Status.RUNNING
        if kind is Leased:
            where = Status.LEASED
        elif kind is Waiting and where is Status.PENDING:
            where = Status.WAITING
    return where


def status_of(phase: Phase) -> Status:
    return phase.status if type(phase) is Settled else _STATUS[type(phase)]


_STATUS: dict[type[Phase], Status] = {
    Pending: Status.PENDING,
    Blocked: Status.PENDING,
    Leased: Status.LEASED,
    Running: Status.RUNNING,
    Waiting: Status.WAITING,
}
"""By phase, where it does not say so itself."""


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
