"""The JSON that schedules, templates, models and queues look like: the owner's replies and the read
side's answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET, Raw, Struct

from ledger.domain.commands import (
    Limit,
    Model,
    OnFailAsk,
    QueueSettings,
    Schedule,
    StepAsk,
    Template,
)
from ledger.domain.cron import parsed
from ledger.domain.events import Labels
from ledger.domain.flow_design import needs_of, step_retry
from ledger.domain.ids import JobId, Micros, QueueName, StepName, rfc3339
from ledger.domain.job import Job
from ledger.domain.job_view import RetryView, retry_view
from ledger.domain.limits import value_of
from ledger.domain.models import retry_of
from ledger.domain.queues import Paused
from ledger.domain.retries import merged_retry
from ledger.domain.schedule_table import Scheduled
from ledger.domain.steps import held_lease
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
class CancelPolicyView(Struct, frozen=True, gc=False):
    supported: bool
    grace_seconds: float


class OnFailView(Struct, frozen=True, gc=False):
    goto: str | None
    max: int
    then: str
    codes: tuple[str, ...] | None
    """null: any."""


class TemplateStepView(Struct, frozen=True, gc=False):
    name: str
    worker_type: str | None
    """null: the job's type."""
    needs: tuple[StepName, ...]
    when: str | None
    each: str | None
    timeout_seconds: float | None
    """null: the job's."""
    retry: RetryView
    cancelable: bool
    progress: tuple[float, float] | None
    on_fail: OnFailView | None


class TemplateView(Struct, frozen=True, gc=False):
    """As put, with what was left out filled in: put again, it makes no other version."""

    queue: str
    type: str
    version: int
    title: str
    description: str
    enabled: bool
    payload_schema: Raw | None
    output_schema: Raw | None
    idempotency_scope: tuple[str, ...]
    idempotency_seconds: float
    timeout_seconds: float
    lease_seconds: float
    start_timeout_seconds: float | None
    priority: int
    retry: RetryView
    cancel: CancelPolicyView
    result_ttl_seconds: float | None
    failed_ttl_seconds: float | None
    exhausted_as: str | None
    repeatable: bool
    concurrency_policy: str
    dedupe_keys: tuple[str, ...]
    limits: tuple[Limit, ...]
    schedulable: bool
    steps: tuple[TemplateStepView, ...]
    success_when: str
    overridable: tuple[str, ...]
    put_at: str | None
    put_by: str | None


def template_view(
    queue: QueueName,
    job_type: str,
    version: int,
    template: Template,
    put_at: Micros | None = None,
    put_by: str | None = None,
) -> TemplateView:
    needs = needs_of(template.steps)
    return TemplateView(
        queue=queue,
        type=job_type,
        version=version,
        title=template.title,
        description=template.description,
        enabled=template.enabled,
        payload_schema=None if template.payload_schema is UNSET else template.payload_schema,
        output_schema=None if template.output_schema is UNSET else template.output_schema,
        idempotency_scope=template.idempotency_scope,
        idempotency_seconds=template.idempotency_seconds,
        timeout_seconds=template.timeout_seconds,
        lease_seconds=template.lease_seconds,
        start_timeout_seconds=template.start_timeout_seconds,
        priority=template.priority,
        retry=retry_view(merged_retry(template.retry, UNSET)),
        cancel=CancelPolicyView(template.cancel.supported, template.cancel.grace_seconds),
        result_ttl_seconds=template.result_ttl_seconds,
        failed_ttl_seconds=template.failed_ttl_seconds,
        exhausted_as=template.exhausted_as,
        repeatable=template.repeatable,
        concurrency_policy=template.concurrency_policy,
        dedupe_keys=template.dedupe_keys,
        limits=template.limits,
        schedulable=template.schedulable,
        steps=tuple(_step(template, step, needs[step.name]) for step in template.steps),
        success_when=template.success_when,
        overridable=template.overridable,
        put_at=_instant(put_at),
        put_by=put_by,
    )


def _step(template: Template, step: StepAsk, needs: tuple[StepName, ...]) -> TemplateStepView:
    return TemplateStepView(
        name=step.name,
        worker_type=step.worker_type,
        needs=needs,
        when=step.when,
        each=step.each,
        timeout_seconds=step.timeout_seconds,
        retry=retry_view(step_retry(template, step)),
        cancelable=step.cancelable,
        progress=step.progress,
        on_fail=_on_fail(step.on_fail),
    )


def _on_fail(rule: OnFailAsk | None) -> OnFailView | None:
    return None if rule is None else OnFailView(rule.goto, rule.max, rule.then, rule.codes)


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
    retry: RetryView
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
        retry=retry_view(merged_retry(retry_of(model), UNSET)),
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


class HolderView(Struct, frozen=True, gc=False):
    job_id: JobId
    step: StepName
    runtime_id: str


class HeldLimitView(Struct, frozen=True, gc=False):
    """A limit as far as live leases hold it. `value` is what its pointers find, in their order."""

    type: str | None
    """Whose template declares it; null: the queue itself."""
    key: tuple[str, ...]
    value: Raw
    max: int
    held: int
    holders: tuple[HolderView, ...]
    """At most 50."""


HOLDERS_MAX = 50
"""Of one limit that are told by name."""


def held_limits(
    own: tuple[Limit, ...], by_type: Mapping[str, tuple[Limit, ...]], jobs: Iterable[Job]
) -> tuple[HeldLimitView, ...]:
    """Who of these jobs holds which limit: the queue's own first, then by type."""
    holders: dict[tuple[str, int, bytes], list[HolderView]] = {}
    for job in jobs:
        asked = job.request
        held = [
            HolderView(job.id, step.name, lease.runtime_id)
            for step in job.steps
            if (lease := held_lease(step)) is not None
        ]
        for name, limits in (("", own), (asked.type, by_type.get(asked.type, ()))):
            for number, limit in enumerate(limits):
                value = value_of(asked, limit.key)
                if held and value is not None:
                    holders.setdefault((name, number, value), []).extend(held)
    return tuple(
        _held_limit(name, (by_type[name] if name else own)[number], value, its)
        for (name, number, value), its in sorted(holders.items())
    )


def _held_limit(name: str, limit: Limit, value: bytes, holders: list[HolderView]) -> HeldLimitView:
    return HeldLimitView(
        type=name or None,
        key=limit.key,
        value=Raw(value),
        max=limit.max,
        held=len(holders),
        holders=tuple(holders[:HOLDERS_MAX]),
    )


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
