"""What answers look like, beside a job itself (`ledger.domain.job_view`)."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from ledger.domain.commands import Limit
from ledger.domain.events import Ref
from ledger.domain.ids import SECOND, Micros, rfc3339
from ledger.domain.job import Job
from ledger.domain.job_view import JobView, job_view
from ledger.domain.operator_views import (
    HeldLimitView,
    ModelView,
    PausedView,
    ScheduleView,
    TemplateView,
    held_limits,
    settings_view,
)
from projections.answers import (
    Attempt,
    CommandOutcome,
    HistoryEvent,
    Operation,
    QueueHeld,
    QueueState,
    RuntimeState,
)


class Paged(Struct, frozen=True, gc=False, kw_only=True):
    """Of a list asked for by `page` and `page_size`."""

    page: int
    page_size: int
    total: int
    total_pages: int
    total_exact: bool
    """False: `total` is an estimate."""


# --- Jobs ----------------------------------------------------------------------------------------
class JobList(Struct, frozen=True, gc=False):
    items: tuple[JobView, ...]
    next_cursor: str | None


class JobPage(Paged, frozen=True, gc=False, kw_only=True):
    items: tuple[JobView, ...]


class EventView(Struct, frozen=True, gc=False):
    """One event of a job's history."""

    seq: int
    type: str
    at: str
    actor: str
    cause: str
    data: Raw
    position: str
    hash: str
    """Hex, of the chain up to its entry; empty unless it is the entry's last record."""


class EventList(Struct, frozen=True, gc=False):
    items: tuple[EventView, ...]
    next_cursor: str | None


class EventPage(Paged, frozen=True, gc=False, kw_only=True):
    items: tuple[EventView, ...]


class AttemptView(Struct, frozen=True, gc=False):
    step: str
    attempt: int
    fence: int
    runtime_id: str
    granted_at: str
    started_at: str | None
    ended_at: str | None
    how: str | None
    """succeeded, failed, expired, released or cancelled; null: it has not ended."""
    code: str | None


class AttemptList(Struct, frozen=True, gc=False):
    items: tuple[AttemptView, ...]


class CollectedItem(Struct, frozen=True, gc=False):
    """Of a job that nobody knows `status` is null; of a result that has expired `output`."""

    id: str
    status: str | None = None
    output: Raw | None = None
    output_ref: Ref | None = None
    collected_at: str | None = None
    result_expires_at: str | None = None


class CollectedList(Struct, frozen=True, gc=False):
    items: tuple[CollectedItem, ...]


# --- Leases --------------------------------------------------------------------------------------
class LeaseGrantView(Struct, frozen=True, gc=False):
    """A step leased to the caller. `inputs` are outputs of the steps that it needs, by name."""

    job_id: str
    step: str
    attempt: int
    fence: int
    lease_expires_at: str
    job: JobView
    inputs: dict[str, Raw]


class ClaimView(Struct, frozen=True, gc=False):
    items: tuple[LeaseGrantView, ...]


class PollView(Struct, frozen=True, gc=False):
    items: tuple[JobView, ...]


class HeartbeatView(Struct, frozen=True, gc=False):
    lease_expires_at: str
    cancel_requested: bool
    cancel_reason: str | None
    cancel_deadline: str | None


# --- Commands and operations ---------------------------------------------------------------------
class AcceptedView(Struct, frozen=True, gc=False):
    """In the log, not decided yet; `Location` tells the outcome."""

    command_id: str
    topic: str
    partition: int
    offset: int


class CommandView(Struct, frozen=True, gc=False):
    """`status` is pending or decided; `outcome` accepted, duplicate or rejected."""

    command_id: str
    status: str
    outcome: str | None = None
    code: str | None = None
    detail: str = ""
    job_id: str | None = None
    operation_id: str | None = None
    at: str | None = None
    position: str | None = None


class StartedView(Struct, frozen=True, gc=False):
    operation_id: str


class BulkView(Struct, frozen=True, gc=False):
    """`operation_id` is null for a dry run; `matched` as the views showed it."""

    operation_id: str | None
    matched: int


class OperationView(Struct, frozen=True, gc=False):
    """`status` is running or ended."""

    operation_id: str
    kind: str
    status: str
    where: Raw
    reason: str
    by: str
    partitions: int
    confirmed: int
    matched: int
    started_at: str
    ended_at: str | None


# --- Queues and runtimes -------------------------------------------------------------------------
class QueueView(Struct, frozen=True, gc=False):
    name: str
    partition: int
    depth_max: int | None
    """Pending jobs; then QUEUE_FULL."""
    limits: tuple[Limit, ...]
    paused: PausedView | None
    counts: dict[str, int]
    """Jobs by status."""
    oldest_pending_at: str | None
    oldest_pending_age_seconds: float | None


class HeldQueueView(QueueView, frozen=True, gc=False):
    """With who holds which limit, be it the queue's own or a template's."""

    held_limits: tuple[HeldLimitView, ...]
    held_limits_exact: bool
    """False: more jobs than are looked at hold a lease."""


class QueueList(Struct, frozen=True, gc=False):
    items: tuple[QueueView, ...]
    next_cursor: str | None


class QueuePage(Paged, frozen=True, gc=False, kw_only=True):
    items: tuple[QueueView, ...]


class RuntimeView(Struct, frozen=True, gc=False):
    """The latest session of a runtime in one queue; `status` is live or ended."""

    runtime_id: str
    queue: str
    session: str
    status: str
    types: tuple[str, ...]
    period_seconds: float
    started_at: str
    ended_at: str | None
    ended_because: str | None


class RuntimeList(Struct, frozen=True, gc=False):
    items: tuple[RuntimeView, ...]
    next_cursor: str | None


class RuntimePage(Paged, frozen=True, gc=False, kw_only=True):
    items: tuple[RuntimeView, ...]


# --- What operators say ---------------------------------------------------------------------------
class TemplateList(Struct, frozen=True, gc=False):
    items: tuple[TemplateView, ...]
    next_cursor: str | None


class TemplatePage(Paged, frozen=True, gc=False, kw_only=True):
    items: tuple[TemplateView, ...]


class ScheduleList(Struct, frozen=True, gc=False):
    items: tuple[ScheduleView, ...]
    next_cursor: str | None


class SchedulePage(Paged, frozen=True, gc=False, kw_only=True):
    items: tuple[ScheduleView, ...]


class ModelList(Struct, frozen=True, gc=False):
    items: tuple[ModelView, ...]
    next_cursor: str | None


class ModelPage(Paged, frozen=True, gc=False, kw_only=True):
    items: tuple[ModelView, ...]


class DeletedView(Struct, frozen=True, gc=False):
    deleted: bool = True


# --- Health --------------------------------------------------------------------------------------
class HealthView(Struct, frozen=True, gc=False):
    status: str


class ReadinessView(Struct, frozen=True, gc=False):
    status: str
    checks: dict[str, str]


# --- From what the read side answers -------------------------------------------------------------
def event_view(event: HistoryEvent) -> EventView:
    return EventView(
        event.seq,
        event.type,
        rfc3339(event.at),
        event.actor,
        event.cause,
        event.data,
        event.position,
        event.hash,
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt.step,
        attempt.attempt,
        attempt.fence,
        attempt.runtime_id,
        rfc3339(attempt.granted_at),
        _instant(attempt.started_at),
        _instant(attempt.ended_at),
        attempt.how,
        attempt.code,
    )


def command_view(outcome: CommandOutcome) -> CommandView:
    return CommandView(
        outcome.command_id,
        "decided",
        outcome.outcome,
        outcome.code,
        outcome.detail,
        outcome.job_id,
        outcome.operation_id,
        rfc3339(outcome.at),
        outcome.position,
    )


def operation_view(operation: Operation) -> OperationView:
    return OperationView(
        operation.id,
        operation.kind,
        "running" if operation.ended_at is None else "ended",
        operation.where,
        operation.reason,
        operation.by,
        operation.partitions,
        operation.confirmed,
        operation.matched,
        rfc3339(operation.started_at),
        _instant(operation.ended_at),
    )


def queue_view(queue: QueueState, now: Micros) -> QueueView:
    return QueueView(**_of_queue(queue, now))


def held_queue_view(held: QueueHeld, now: Micros) -> HeldQueueView:
    holders = held_limits(held.state.settings.limits, held.limits, held.held)
    return HeldQueueView(
        **_of_queue(held.state, now), held_limits=holders, held_limits_exact=held.is_whole
    )


def _of_queue(queue: QueueState, now: Micros) -> dict[str, Any]:
    said = settings_view(queue.name, queue.settings, queue.paused)
    oldest = queue.oldest_pending_at
    return {
        "name": queue.name,
        "partition": queue.partition,
        "depth_max": said.depth_max,
        "limits": said.limits,
        "paused": said.paused,
        "counts": dict(queue.counts),
        "oldest_pending_at": _instant(oldest),
        "oldest_pending_age_seconds": (
            None if oldest is None else max(0.0, (now - oldest) / SECOND)
        ),
    }


def collected_item(job: Job, now: Micros) -> CollectedItem:
    """As the view has it. A result is gone with its time, be it cleaned away already or not."""
    view = job_view(job)
    expires = job.result_expires_at
    is_over = expires is not None and expires <= now
    result = None if is_over else view.result
    return CollectedItem(
        view.id,
        view.status,
        None if result is None else result.output,
        None if result is None else result.output_ref,
        view.collected_at,
        view.result_expires_at,
    )


def runtime_view(runtime: RuntimeState) -> RuntimeView:
    return RuntimeView(
        runtime.runtime_id,
        runtime.queue,
        runtime.session,
        "live" if runtime.ended_at is None else "ended",
        runtime.types,
        runtime.period_us / SECOND,
        rfc3339(runtime.started_at),
        _instant(runtime.ended_at),
        runtime.why,
    )


def _instant(at: Micros | None) -> str | None:
    return None if at is None else rfc3339(at)
