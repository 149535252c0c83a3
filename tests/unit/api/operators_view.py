"""What operators said, as a view of the log shows it: a fold like the real one, without tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ledger.domain.commands import Model, QueueSettings, Template
from ledger.domain.events import (
    Event,
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
    TemplatePut,
)
from ledger.domain.ids import Micros, QueueName
from ledger.domain.queues import Paused
from ledger.domain.schedule_table import Schedules
from projections.answers import ModelState, ScheduleState, TemplateVersion

OPERATORS = (
    TemplatePut,
    QueuePut,
    QueuePaused,
    QueueResumed,
    SchedulePut,
    ScheduleDeleted,
    ScheduleEnabled,
    ScheduleDisabled,
    ScheduleFired,
    ScheduleSkipped,
    ScheduleStopped,
    ModelPut,
    ModelDeleted,
)


@dataclass
class Said:
    event: Event
    at: Micros
    by: str
    partition: int
    offset: int


class OperatorsView:
    """Of what was said; `ends` is how far each partition is viewed."""

    def __init__(self, said: Iterable[Said], ends: dict[int, int]) -> None:
        self._ends = ends
        self.versions: dict[tuple[QueueName, str], list[TemplateVersion]] = {}
        self.settings: dict[QueueName, QueueSettings] = {}
        self.paused: dict[QueueName, Paused | None] = {}
        self.used: dict[QueueName, int] = {}
        """Queues by their partition."""
        self._schedules: dict[QueueName, Schedules] = {}
        self._models: dict[str, ModelState] = {}
        for one in said:
            if one.offset <= ends[one.partition]:
                self._apply(one)

    def _apply(self, one: Said) -> None:
        event: Any = one.event
        queue = event.queue
        self.used[queue] = one.partition
        end = self._ends[one.partition]
        match event:
            case TemplatePut():
                template = msgspec.json.decode(event.template, type=Template)
                version = TemplateVersion(
                    queue, event.type, event.version, template, one.at, one.by, one.partition, end
                )
                self.versions.setdefault((queue, event.type), []).append(version)
            case QueuePut():
                self.settings[queue] = msgspec.json.decode(event.settings, type=QueueSettings)
            case QueuePaused():
                self.paused[queue] = Paused(one.at, event.reason, event.by)
            case QueueResumed():
                self.paused[queue] = None
            case ModelPut():
                model = msgspec.json.decode(event.model, type=Model)
                self._models[event.name] = ModelState(event.name, model, one.partition, end)
            case ModelDeleted():
                del self._models[event.name]
            case _:
                assert self._schedules.setdefault(queue, Schedules()).apply(event, one.at)

    def newest(self) -> tuple[TemplateVersion, ...]:
        return tuple(versions[-1] for _, versions in sorted(self.versions.items()))

    def schedules(self) -> tuple[ScheduleState, ...]:
        return tuple(
            ScheduleState(queue, name, its, self.used[queue], self._ends[self.used[queue]])
            for queue, schedules in sorted(self._schedules.items())
            for name, its in sorted(schedules.items())
        )

    def models(self) -> tuple[ModelState, ...]:
        return tuple(model for _, model in sorted(self._models.items()))
