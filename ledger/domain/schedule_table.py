"""The schedules of one queue, as the log tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.commands import Schedule
from ledger.domain.events import (
    ScheduleDeleted,
    ScheduleDisabled,
    ScheduleEnabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
    decoded,
)
from ledger.domain.ids import CommandId, JobId, Micros

ScheduleEvent = (
    SchedulePut
    | ScheduleDeleted
    | ScheduleEnabled
    | ScheduleDisabled
    | ScheduleFired
    | ScheduleSkipped
    | ScheduleStopped
)


DELETED_MAX = 1_000
"""Deleted schedules whose last occurrence is remembered."""


class Scheduled(Struct, frozen=True, gc=False):
    schedule: Schedule
    command_id: CommandId
    """Of the last put: ids of its occurrences' jobs derive from it."""
    next_at: Micros | None
    last_run_at: Micros | None = None
    last_job_id: JobId | None = None
    last_nominal_at: Micros | None = None
    """Of the last occurrence that was fired or passed over."""
    stopped: str | None = None
    """Why it is parked."""


class Schedules:
    __slots__ = ("_held", "deleted")

    def __init__(self) -> None:
        self._held: dict[str, Scheduled] = {}
        self.deleted: dict[str, Micros] = {}
        """The last occurrence of those deleted lately."""

    def get(self, name: str) -> Scheduled | None:
        return self._held.get(name)

    def items(self) -> list[tuple[str, Scheduled]]:
        return list(self._held.items())

    def put_back(
        self, held: Iterable[tuple[str, Scheduled]], deleted: Mapping[str, Micros]
    ) -> None:
        self._held.update(held)
        self.deleted.update(deleted)

    def __len__(self) -> int:
        return len(self._held)

    def apply(self, event: ScheduleEvent, at: Micros) -> bool:
        """False: it does not fit."""
        known = self._held.get(event.name)
        if isinstance(event, SchedulePut):
            return self._put(event, known)
        if known is None:
            return False
        match event:
            case ScheduleDeleted():
                self._delete(event.name, known)
                return True
            case ScheduleEnabled():
                schedule = replace(known.schedule, enabled=True)
                after = replace(known, schedule=schedule, next_at=event.next_at, stopped=None)
            case ScheduleDisabled():
                schedule = replace(known.schedule, enabled=False)
                after = replace(known, schedule=schedule, next_at=None)
            case ScheduleFired():
                after = replace(
                    known,
                    next_at=event.next_at,
                    last_run_at=at,
                    last_job_id=event.job_id or known.last_job_id,
                )
                if not event.manual:
                    after = replace(after, last_nominal_at=event.nominal_at)
            case ScheduleSkipped():
                after = replace(
                    known, next_at=event.next_at, last_nominal_at=Micros(event.until - 1)
                )
            case ScheduleStopped():
                after = replace(known, next_at=None, stopped=event.reason)
            case _:
                assert_never(event)
        self._held[event.name] = after
        return True

    def _delete(self, name: str, known: Scheduled) -> None:
        del self._held[name]
        self.deleted.pop(name, None)
        if known.last_nominal_at is not None:
            self.deleted[name] = known.last_nominal_at
        if len(self.deleted) > DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]

    def _put(self, event: SchedulePut, known: Scheduled | None) -> bool:
        schedule = decoded(event.schedule, Schedule)
        if schedule is None:
            return False
        fresh = Scheduled(schedule, event.command_id, event.next_at)
        if known is not None:
            fresh = replace(
                fresh,
                last_run_at=known.last_run_at,
                last_job_id=known.last_job_id,
                last_nominal_at=known.last_nominal_at,
            )
        self._held[event.name] = fresh
        return True
