"""How one step of a job changes, and what does not fit."""

from __future__ import annotations

from typing import final

from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    JobEvent,
    JobProgressed,
    JobSucceeded,
    LeaseReleased,
    StepSucceeded,
    WaitStarted,
)
from ledger.domain.ids import StepName
from ledger.domain.job import Job, status
from ledger.domain.steps import (
    Blocked,
    Part,
    Settled,
    Status,
    Step,
    current_lease,
)


@final
class Misfit(Struct, frozen=True, gc=False):
    """History that no rule of this version writes. Counted by whoever folds; changes nothing."""

    event: str
    reason: str


SUCCEEDED = Settled(Status.SUCCEEDED)
FAILED = Settled(Status.FAILED)
SKIPPED = Settled(Status.SKIPPED)
CANCELLED = Settled(Status.CANCELLED)
BLOCKED = Blocked()
NO_PART = Part()


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


def named(job: Job, name: StepName) -> Step | None:
    for step in job.steps:
        if step.name == name:
            return step
    return None


def current(job: Job, event: OfAttempt) -> Step | None:
    """The step that an event names, if its fence is the one of the step's current attempt."""
    step = named(job, event.step)
    lease = None if step is None or job.end is not None else current_lease(step)
    return step if lease is not None and lease.fence == event.fence else None


def misfit(event: JobEvent, job: Job) -> Misfit:
    return Misfit(event.TYPE, f"the job is {status(job)}, the last fence {job.fence}")


def put(job: Job, old: Step, new: Step, **changes: object) -> Job:
    return replace(job, steps=with_step(job, old, new), version=job.version + 1, **changes)


def with_step(job: Job, old: Step, new: Step) -> tuple[Step, ...]:
    return (new,) if len(job.steps) == 1 else tuple(new if s is old else s for s in job.steps)
