"""What the clock does to a job: when something falls due, and what happens then.

A deadline of silence (lease, grace, wait) is moved by a change of owner, who has heard nobody
yet: `floor` is the instant of the last take-over, and no such deadline that was set before it ends
sooner than one full period after it. What is recorded stays as it was recorded.
"""

from __future__ import annotations

from typing import Any, assert_never

from ledger.domain.events import (
    AttemptExpired,
    JobCancelled,
    JobEvent,
    JobExpired,
    JobFailed,
    RetryScheduled,
    StepCancelled,
)
from ledger.domain.failures import (
    BY_THE_CLOCK,
    JOB_TIMEOUT,
    LEASE_EXPIRED,
    MESSAGES,
    START_TIMEOUT,
    WAIT_TIMEOUT,
    is_retryable,
    retry_at,
)
from ledger.domain.flows import follow
from ledger.domain.ids import Micros
from ledger.domain.job import (
    Blocked,
    Job,
    Lease,
    Leased,
    Pending,
    Running,
    Settled,
    Step,
    Waiting,
    cancel_of,
    retry_of,
)
from ledger.domain.steps import current_lease

NEVER = Micros(1 << 62)


def due(job: Job, floor: Micros, at: Micros) -> Micros | None:
    """The next instant at which the clock may have something to say of the job; None: never.

    A job that is ready already waits for a runtime, not for the clock.
    """
    if job.end is not None:
        return None
    asked = job.request
    when = NEVER
    if asked.start_timeout_us is not None and (start_by := _start_deadline(job)) is not None:
        when = start_by
    if job.cancel is not None:
        when = min(when, _grace_end(job, floor))
    for step in job.steps:
        phase: Any = step.phase
        kind = type(phase)
        if kind is Leased or kind is Running or kind is Waiting:
            lease: Lease = phase.lease
            end: Micros = phase.until if kind is Waiting else lease.until
            if lease.since < floor:
                end = _silence_end(lease.since, end, floor, asked.lease_us)
            if kind is Running and phase.deadline < end:
                end = phase.deadline
        elif kind is Pending and phase.ready_at > at:
            end = phase.ready_at
        else:
            end = NEVER
        if end < when:
            when = end
    return None if when == NEVER else when


def expire(job: Job, at: Micros, floor: Micros, order: int, now: Micros) -> tuple[JobEvent, ...]:
    """What the clock says of what had ended at `at`; nothing where it comes early, late or twice.

    A retry counts from `now`; `order` is the place behind all that wait then, for one at the tail.
    """
    if job.end is not None:
        return ()
    start_by = _start_deadline(job)
    if start_by is not None and at >= start_by:
        if job.request.exhausted_as == "failed":
            return (JobFailed(job.id, START_TIMEOUT),)
        return (JobExpired(job.id, START_TIMEOUT),)
    if job.cancel is not None and at >= _grace_end(job, floor):
        return follow(job, _grace_ended(job), now, order)
    for step in job.steps:
        if code := _lapsed(job, step, at, floor):
            return follow(job, _expire_attempt(job, step, code, now, order), now, order)
    return ()


def _grace_ended(job: Job) -> tuple[JobEvent, ...]:
    """A step of a flow that is not cancelable runs on, to its own time-out."""
    assert job.cancel is not None
    if job.request.flow is None:
        return (JobCancelled(job.id, "grace_ended", job.cancel.reason, job.cancel.by),)
    return tuple(
        StepCancelled(job.id, step.name, "grace_ended")
        for step in job.steps
        if _is_graced(job, step)
    )


def _is_graced(job: Job, step: Step) -> bool:
    return current_lease(step) is not None and cancel_of(job, step) is not None


def _lapsed(job: Job, step: Step, at: Micros, floor: Micros) -> str | None:
    period = job.request.lease_us
    match step.phase:
        case Running(deadline=deadline) if at >= deadline:
            return JOB_TIMEOUT
        case Leased(lease=lease) | Running(lease=lease):
            silent = _silence_end(lease.since, lease.until, floor, period)
            return LEASE_EXPIRED if at >= silent else None
        case Waiting(lease=lease, until=until):
            return WAIT_TIMEOUT if at >= _silence_end(lease.since, until, floor, period) else None
        case Blocked() | Pending() | Settled():
            return None
        case _:
            assert_never(step.phase)


def _expire_attempt(
    job: Job, step: Step, code: str, at: Micros, order: int
) -> tuple[JobEvent, ...]:
    phase = step.phase
    assert isinstance(phase, Leased | Running | Waiting)
    retryable = is_retryable(retry_of(job, step), code, None)
    expired = AttemptExpired(
        job.id, step.name, phase.lease.fence, step.attempt, code, MESSAGES[code], retryable
    )
    return (expired, *after_attempt(job, step, code, retryable, at, order))


def after_attempt(
    job: Job,
    step: Step,
    code: str,
    retryable: bool,
    at: Micros,
    order: int,
    after_us: int = 0,
) -> tuple[RetryScheduled | JobFailed | JobExpired | JobCancelled, ...]:
    """What follows an attempt that went wrong: another one, or the end of the job. What follows
    from a step's end in a flow is `flows.follow`'s to say."""
    flow = job.request.flow
    if job.cancel is not None:
        if flow is not None:
            return ()
        return (JobCancelled(job.id, "attempt_ended", job.cancel.reason, job.cancel.by),)
    retry = retry_of(job, step)
    if retryable and step.attempt < retry.max_attempts:
        ready_at = retry_at(retry, job.id, step.attempt, at, after_us)
        place = order if retry.position == "tail" else job.order
        return (RetryScheduled(job.id, step.name, ready_at, place),)
    if flow is not None:
        return ()
    if code in BY_THE_CLOCK and job.request.exhausted_as == "expired":
        return (JobExpired(job.id, code),)
    return (JobFailed(job.id, code),)


def _start_deadline(job: Job) -> Micros | None:
    allowed = job.request.start_timeout_us
    if allowed is None or job.first_started_at is not None or job.cancel is not None:
        return None
    return Micros(job.request.ready_at + allowed)


def _grace_end(job: Job, floor: Micros) -> Micros:
    cancel = job.cancel
    if cancel is None or cancel.deadline is None:
        return NEVER
    if job.request.flow is not None and not any(_is_graced(job, step) for step in job.steps):
        return NEVER
    return _silence_end(cancel.requested_at, cancel.deadline, floor, job.request.grace_us)


def _silence_end(set_at: Micros, end: Micros, floor: Micros, period: int) -> Micros:
    return end if set_at >= floor else Micros(max(end, floor + period))
