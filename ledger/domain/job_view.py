"""The JSON that a job looks like, everywhere: the owner's replies and the read side's answers."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from ledger.domain.events import Labels, Ref
from ledger.domain.failures import Failure, Retry
from ledger.domain.ids import SECOND, Micros, rfc3339
from ledger.domain.job import (
    Cancel,
    Job,
    Lease,
    Pending,
    Progress,
    Status,
    Step,
    held_lease,
    status,
    status_of,
    worker_type_of,
)


class RetryView(Struct, frozen=True, gc=False):
    max_attempts: int
    backoff_seconds: tuple[float, ...]
    jitter: float
    position: str
    retryable_codes: tuple[str, ...]
    fatal_codes: tuple[str, ...]


class ProgressView(Struct, frozen=True, gc=False):
    percent: float | None
    phase: str | None
    message: str | None
    at: str


class ErrorView(Struct, frozen=True, gc=False):
    code: str
    message: str
    retryable: bool
    attempt: int
    details: Raw | None


class StepView(Struct, frozen=True, gc=False):
    name: str
    status: str
    worker_type: str
    attempt: int
    percent: float | None
    runtime_id: str | None
    started_at: str | None
    finished_at: str | None
    error: ErrorView | None
    lease: LeaseView | None


class LeaseView(Struct, frozen=True, gc=False):
    runtime_id: str
    step: str
    fence: int
    since: str
    expires_at: str


class CancelView(Struct, frozen=True, gc=False):
    requested_at: str
    reason: str
    by: str
    deadline: str | None


class ResultView(Struct, frozen=True, gc=False):
    output: Raw | None
    output_ref: Ref | None
    output_hash: str
    attempt: int


class JobView(Struct, frozen=True, gc=False):
    """Times are RFC 3339 in UTC with milliseconds, durations seconds."""

    id: str
    type: str
    queue: str
    status: str
    payload: Raw
    payload_ref: Ref | None
    labels: Labels
    scope: str | None
    priority: int
    idempotency_key: str | None
    run_at: str | None
    delay_seconds: float | None
    start_timeout_seconds: float | None
    timeout_seconds: float
    lease_seconds: float
    retry: RetryView
    result_ttl_seconds: float | None
    failed_ttl_seconds: float | None
    template_version: int | None
    attempt: int
    max_attempts: int
    progress: ProgressView | None
    steps: tuple[StepView, ...]
    lease: LeaseView | None
    cancel: CancelView | None
    result: ResultView | None
    degraded: bool
    """Of a flow that went on without a step that had failed."""
    error: ErrorView | None
    retried_from: str | None
    replaced_by: str | None
    schedule: str | None
    created_at: str
    ready_at: str
    started_at: str | None
    finished_at: str | None
    collected_at: str | None
    result_expires_at: str | None
    version: int


_encoder = msgspec.json.Encoder()


def job_json(job: Job) -> bytes:
    return _encoder.encode(job_view(job))


def job_view(job: Job) -> JobView:
    asked = job.request
    where = status(job)
    is_flow = asked.flow is not None
    delayed = asked.ready_at > job.created_at
    return JobView(
        id=asked.job_id,
        type=asked.type,
        queue=asked.queue,
        status=where,
        payload=asked.payload,
        payload_ref=None if job.payload_withdrawn else asked.payload_ref,
        labels=asked.labels,
        scope=asked.scope,
        priority=asked.priority,
        idempotency_key=asked.idempotency_key,
        run_at=rfc3339(asked.ready_at) if delayed else None,
        delay_seconds=(asked.ready_at - job.created_at) / SECOND if delayed else None,
        start_timeout_seconds=_seconds(asked.start_timeout_us),
        timeout_seconds=asked.timeout_us / SECOND,
        lease_seconds=asked.lease_us / SECOND,
        retry=retry_view(asked.retry),
        result_ttl_seconds=_seconds(asked.result_ttl_us),
        failed_ttl_seconds=_seconds(asked.failed_ttl_us),
        template_version=asked.template_version,
        attempt=_passes(job) if is_flow else job.steps[0].attempt,
        max_attempts=asked.retry.max_attempts,
        progress=_progress_of_flow(job) if is_flow else _progress(job.steps[0].progress),
        steps=tuple(_step(step, worker_type_of(job, step)) for step in job.steps),
        lease=_oldest_lease(job),
        cancel=_cancel(job.cancel),
        result=_result(job),
        degraded=job.degraded,
        error=None if where is Status.SUCCEEDED else _latest_error(job),
        retried_from=asked.retried_from,
        replaced_by=job.replaced_by,
        schedule=asked.schedule,
        created_at=rfc3339(job.created_at),
        ready_at=rfc3339(_ready_at(job)),
        started_at=_instant(job.first_started_at if is_flow else job.steps[0].started_at),
        finished_at=_instant(job.finished_at),
        collected_at=_instant(job.collected_at),
        result_expires_at=_instant(job.result_expires_at),
        version=job.version,
    )


def _ready_at(job: Job) -> Micros:
    """Of the attempt that waits now, else of the first."""
    waits = [step.phase.ready_at for step in job.steps if type(step.phase) is Pending]
    return min(waits) if waits else job.request.ready_at


def _passes(job: Job) -> int:
    """A flow's attempts are its passes: 0 before the first lease."""
    return job.passes if job.fence else 0


def _instant(at: Micros | None) -> str | None:
    return None if at is None else rfc3339(at)


def _seconds(duration: int | None) -> float | None:
    return None if duration is None else duration / SECOND


@lru_cache(maxsize=256)
def retry_view(retry: Retry) -> RetryView:
    return RetryView(
        max_attempts=retry.max_attempts,
        backoff_seconds=tuple(b / SECOND for b in retry.backoff_us),
        jitter=retry.jitter,
        position=retry.position,
        retryable_codes=retry.retryable_codes,
        fatal_codes=retry.fatal_codes,
    )


def _progress(progress: Progress | None) -> ProgressView | None:
    if progress is None:
        return None
    return ProgressView(progress.percent, progress.phase, progress.message, rfc3339(progress.at))


def _progress_of_flow(job: Job) -> ProgressView | None:
    """How far the pass is, with the last word that a step said; else the step that is at work."""
    if job.percent is None and job.first_started_at is None:
        return None
    said = [step.progress for step in job.steps if step.progress is not None]
    last = max(said, key=lambda progress: progress.at, default=None)
    at = max((s.finished_at or s.started_at or 0 for s in job.steps), default=0)
    busy = next((step for step in job.steps if held_lease(step) is not None), None)
    phase = None if last is None or (busy is not None and busy.progress is None) else last.phase
    if phase is None and busy is not None:
        phase = busy.name
    return ProgressView(
        job.percent or 0.0,
        phase,
        None if last is None else last.message,
        rfc3339(Micros(max(at, 0 if last is None else last.at) or job.created_at)),
    )


def _error(failure: Failure | None) -> ErrorView | None:
    if failure is None:
        return None
    details = failure.details or None
    return ErrorView(failure.code, failure.message, failure.retryable, failure.attempt, details)


def _latest_error(job: Job) -> ErrorView | None:
    """Of a flow that failed what it failed with; of a new pass that is without, the last one's."""
    if job.failure is not None and job.end in (Status.FAILED, Status.EXPIRED):
        return _error(job.failure)
    return _error(next((s.failure for s in reversed(job.steps) if s.failure), job.failure))


def step_status(step: Step) -> str:
    return status_of(step.phase)


def _step(step: Step, job_type: str) -> StepView:
    lease = held_lease(step)
    return StepView(
        name=step.name,
        status=step_status(step),
        worker_type=job_type,
        attempt=step.attempt,
        percent=step.progress.percent if step.progress else None,
        runtime_id=lease.runtime_id if lease else None,
        started_at=_instant(step.started_at),
        finished_at=_instant(step.finished_at),
        error=_error(step.failure),
        lease=None if lease is None else lease_view(step, lease),
    )


def lease_view(step: Step, lease: Lease) -> LeaseView:
    return LeaseView(
        lease.runtime_id, step.name, lease.fence, rfc3339(lease.since), rfc3339(lease.until)
    )


def _oldest_lease(job: Job) -> LeaseView | None:
    if job.end is not None:
        return None
    held = [(lease.fence, step, lease) for step in job.steps if (lease := held_lease(step))]
    if not held:
        return None
    _, step, lease = min(held, key=lambda one: one[0])
    return lease_view(step, lease)


def _cancel(cancel: Cancel | None) -> CancelView | None:
    if cancel is None:
        return None
    return CancelView(
        rfc3339(cancel.requested_at), cancel.reason, cancel.by, _instant(cancel.deadline)
    )


def _result(job: Job) -> ResultView | None:
    result = job.result
    if result is None or job.withdrawn:
        return None
    return ResultView(result.output or None, result.output_ref, result.output_hash, result.attempt)
