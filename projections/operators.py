"""What operators say of queues, schedules and models, as the statement that each fact comes to."""

from __future__ import annotations

from datetime import datetime
from typing import Any, LiteralString, assert_never

from ledger.domain.commands import Schedule
from ledger.domain.events import (
    ModelDeleted,
    ModelPut,
    QueuePaused,
    QueuePut,
    QueueResumed,
    ScheduleDeleted,
    ScheduleDisabled,
    ScheduleEnabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
    decoded,
)
from ledger.domain.ids import Micros
from projections.gathering import OperatorsRow
from projections.storable import instant, storable


def operators_change(row: OperatorsRow, partition: int) -> tuple[LiteralString, dict[str, Any]]:
    """The name of a statement in `sql/apply`, and its values."""
    event = row.event
    values: dict[str, Any] = {
        "queue": storable(event.queue),
        "partition": partition,
        "at": instant(row.at),
        "by": storable(row.by),
        "position": row.position,
    }
    match event:
        case QueuePut():
            return "apply/put_queue", values | {"settings": bytes(event.settings)}
        case QueuePaused():
            return "apply/pause_queue", values | {"reason": storable(event.reason, 16_384)}
        case QueueResumed():
            return "apply/resume_queue", values
        case ModelPut():
            name = storable(event.name)
            return "apply/put_model", values | {"name": name, "model": bytes(event.model)}
        case ModelDeleted():
            return "apply/delete_model", values | {"name": storable(event.name)}
        case _:
            pass
    values["name"] = storable(event.name)
    match event:
        case SchedulePut():
            schedule = decoded(event.schedule, Schedule)
            return "apply/put_schedule", values | {
                "schedule": bytes(event.schedule),
                "enabled": schedule is None or schedule.enabled,
                "command_id": storable(event.command_id),
                "next_at": _perhaps(event.next_at),
            }
        case ScheduleDeleted():
            return "apply/delete_schedule", values
        case ScheduleEnabled():
            return "apply/enable_schedule", values | {"next_at": _perhaps(event.next_at)}
        case ScheduleDisabled():
            return "apply/disable_schedule", values
        case ScheduleFired():
            return "apply/fire_schedule", values | {
                "next_at": _perhaps(event.next_at),
                "job_id": None if event.job_id is None else storable(event.job_id),
                "nominal_at": None if event.manual else instant(event.nominal_at),
            }
        case ScheduleSkipped():
            return "apply/skip_schedule", values | {
                "next_at": _perhaps(event.next_at),
                "nominal_at": instant(Micros(event.until - 1)),
            }
        case ScheduleStopped():
            return "apply/stop_schedule", values | {"reason": storable(event.reason, 16_384)}
        case _:
            assert_never(event)


def _perhaps(at: Micros | None) -> datetime | None:
    return None if at is None else instant(at)
