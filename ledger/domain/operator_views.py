"""The JSON that schedules, templates, models and queues look like: the owner's replies and the read
side's answers."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct

from ledger.domain.commands import Limit, Model, QueueSettings, RetryAsk, Schedule, Template
from ledger.domain.cron import parsed
from ledger.domain.events import Labels
from ledger.domain.ids import JobId, Micros, QueueName, rfc3339
from ledger.domain.queues import Paused
from ledger.domain.schedule_table import Scheduled
from ledger.domain.wrong import Wrong

RUNS_MAX = 5
"""Next runs that are told."""


# --- Schedules -----------------------------------------------------------------------------------
class ScheduleView(Struct, frozen=True, gc=False):
    queue: str
    name: str
    cron: str
    timezone: str
    enabled: bool
    type: str
    payload: Raw
    labels: Labels
    scope: str | None
    catch_up: str
    next_run_at: str | None
    next_runs: tuple[str, ...]
    last_run_at: str | None
    last_job_id: str | None
    stopped: str | None
    """Why it is parked until it is put anew."""


def schedule_view(queue: QueueName, name: str, its: Scheduled) -> ScheduleView:
    schedule = its.schedule
    return ScheduleView(
        queue=queue,
        name=name,
        cron=schedule.cron,
        timezone=schedule.timezone,
        enabled=schedule.enabled,
        type=schedule.type,
        payload=Raw(b"{}") if schedule.payload is UNSET else schedule.payload,
        labels={} if schedule.labels is UNSET else schedule.labels,
        scope=None if schedule.scope is UNSET else schedule.scope,
        catch_up=schedule.catch_up,
        next_run_at=_instant(its.next_at),
        next_runs=_next_runs(schedule, its.next_at),
        last_run_at=_instant(its.last_run_at),
        last_job_id=its.last_job_id,
        stopped=its.stopped,
    )


def _next_runs(schedule: Schedule, next_at: Micros | None) -> tuple[str, ...]:
    times = parsed(schedule.cron, schedule.timezone)
    if next_at is None or isinstance(times, Wrong):
        return ()
    return tuple(map(rfc3339, (next_at, *times.next_runs(next_at, RUNS_MAX - 1))))


# --- Templates -----------------------------------------------------------------------------------
class TemplateView(Struct, frozen=True, gc=False):
    """`template` as put, defaults filled in."""

    queue: str
    type: str
    version: int
    template: Template
    put_at: str | None = None
    put_by: str | None = None


# --- Models --------------------------------------------------------------------------------------
class ModelView(Struct, frozen=True, gc=False):
    """Less its key."""

    name: str
    base_url: str
    route: str
    method: str
    api_key_header: str | None
    has_api_key: bool
    timeout_seconds: float
    max_concurrency: int | None
    retry: RetryAsk
    start_timeout_seconds: float | None
    result_ttl_seconds: float | None
    failed_ttl_seconds: float | None


def model_view(name: str, model: Model) -> ModelView:
    return ModelView(
        name=name,
        base_url=model.base_url,
        route=model.route,
        method=model.method,
        api_key_header=model.api_key_header,
        has_api_key=isinstance(model.api_key, str),
        timeout_seconds=model.timeout_seconds,
        max_concurrency=model.max_concurrency,
        retry=model.retry,
        start_timeout_seconds=model.start_timeout_seconds,
        result_ttl_seconds=model.result_ttl_seconds,
        failed_ttl_seconds=model.failed_ttl_seconds,
    )


# --- Queues --------------------------------------------------------------------------------------
class PausedView(Struct, frozen=True, gc=False):
    at: str
    reason: str
    by: str


class QueueSettingsView(Struct, frozen=True, gc=False):
    """What operators said of a queue."""

    name: str
    depth_max: int | None
    limits: tuple[Limit, ...]
    paused: PausedView | None


def settings_view(
    name: QueueName, settings: QueueSettings, paused: Paused | None
) -> QueueSettingsView:
    view = None if paused is None else PausedView(rfc3339(paused.at), paused.reason, paused.by)
    return QueueSettingsView(name, settings.depth_max, settings.limits, view)


# --- Results -------------------------------------------------------------------------------------
class CollectedView(Struct, frozen=True, gc=False):
    """When a result was collected, and until when it is kept."""

    id: JobId
    collected_at: str | None
    result_expires_at: str | None


def collected_view(
    job_id: JobId, collected_at: Micros | None, expires_at: Micros | None
) -> CollectedView:
    return CollectedView(job_id, _instant(collected_at), _instant(expires_at))


def _instant(at: Micros | None) -> str | None:
    return None if at is None else rfc3339(at)
