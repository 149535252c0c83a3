"""What operators have said, read: templates, schedules, models, queues. Rows whose content is of a
later version's form are passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, LiteralString, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.commands import Model, QueueSettings, Schedule, Template
from ledger.domain.job import Status
from ledger.domain.queues import Paused
from ledger.domain.schedule_table import Scheduled
from projections.answers import (
    ModelState,
    QueueHeld,
    QueueState,
    ScheduleState,
    TemplateVersion,
)
from projections.storable import storable
from projections.unpacking import stored_job
from projections.writing import STATUSES

Row = tuple[Any, ...]
Fetch = Callable[[LiteralString, dict[str, Any]], Awaitable[list[Row]]]
"""A named statement with its values, in one snapshot."""
S = TypeVar("S", bound=Struct)

HELD_JOBS_MAX = 1_000
"""Jobs with a live lease that are looked at, to say who holds which limit."""
_LEASING = (Status.LEASED.value, Status.RUNNING.value, Status.CANCELLING.value)


# --- Queues --------------------------------------------------------------------------------------
async def queues(fetch: Fetch, names: Sequence[str]) -> tuple[QueueState, ...]:
    rows = await fetch("queries/queues", {"names": _texts(names)})
    return tuple(map(_queue, rows))


async def queue_held(fetch: Fetch, name: str) -> QueueHeld | None:
    """None: never used."""
    found = await queues(fetch, (name,))
    if not found:
        return None
    state = found[0]
    newest = await templates(fetch, (name,))
    limits = {one.type: one.template.limits for one in newest if one.template.limits}
    leased = sum(state.counts[status] for status in _LEASING)
    if not leased or not (limits or state.settings.limits):
        return QueueHeld(state, limits, (), True)
    values = {
        "queue": storable(name),
        "statuses": list(_LEASING),
        "many": HELD_JOBS_MAX + 1,
    }
    jobs = tuple(stored_job(*row) for row in await fetch("queries/leased", values))
    return QueueHeld(state, limits, jobs[:HELD_JOBS_MAX], len(jobs) <= HELD_JOBS_MAX)


def _queue(row: Row) -> QueueState:
    name, partition, *counts, oldest, offset, content, paused_at, reason, by = row
    settings = None if content is None else _decoded(content, QueueSettings)
    return QueueState(
        name,
        partition,
        dict(zip(STATUSES, counts, strict=True)),
        oldest,
        offset,
        settings or QueueSettings(),
        None if paused_at is None else Paused(paused_at, reason, by),
    )


# --- Templates -----------------------------------------------------------------------------------
async def template(
    fetch: Fetch, queue: str, job_type: str, version: int | None
) -> TemplateVersion | None:
    values = {"queue": storable(queue), "type": storable(job_type), "version": version}
    rows = await fetch("queries/template", values)
    return _template(rows[0]) if rows else None


async def templates(
    fetch: Fetch, queues: Sequence[str], types: Sequence[str] = ()
) -> tuple[TemplateVersion, ...]:
    """The newest of each."""
    values = {"queues": _texts(queues), "types": _texts(types)}
    rows = await fetch("queries/templates", values)
    return tuple(found for row in rows if (found := _template(row)))


def _template(row: Row) -> TemplateVersion | None:
    queue, job_type, version, content, *rest = row
    found = _decoded(content, Template)
    return None if found is None else TemplateVersion(queue, job_type, version, found, *rest)


# --- Schedules -----------------------------------------------------------------------------------
async def schedules(
    fetch: Fetch,
    queues: Sequence[str] = (),
    types: Sequence[str] = (),
    enabled: bool | None = None,
    name: str | None = None,
) -> tuple[ScheduleState, ...]:
    """By queue and name."""
    values = {
        "queues": _texts(queues),
        "enabled": enabled,
        "name": None if name is None else storable(name),
    }
    found = map(_schedule, await fetch("queries/schedules", values))
    return tuple(one for one in found if one and (not types or one.its.schedule.type in types))


def _schedule(row: Row) -> ScheduleState | None:
    queue, name, content, enabled, command_id, *instants, stopped, partition, offset = row
    schedule = _decoded(content, Schedule)
    if schedule is None:
        return None
    next_at, last_run_at, last_job_id, last_nominal_at = instants
    its = Scheduled(
        replace(schedule, enabled=enabled),
        command_id,
        next_at,
        last_run_at,
        last_job_id,
        last_nominal_at,
        stopped,
    )
    return ScheduleState(queue, name, its, partition, offset)


# --- Models --------------------------------------------------------------------------------------
async def models(fetch: Fetch, name: str | None = None) -> tuple[ModelState, ...]:
    """By name."""
    values = {"name": None if name is None else storable(name)}
    rows = await fetch("queries/models", values)
    return tuple(
        ModelState(name, model, partition, offset)
        for name, content, partition, offset in rows
        if (model := _decoded(content, Model)) is not None
    )


def _decoded(content: bytes, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError:
        return None


def _texts(texts: Sequence[str]) -> list[str] | None:
    return [storable(text) for text in texts] or None
