"""Schedules: when jobs of a type are to be, by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.answers import accepted_response, json_response, written_response
from api.bodies import SchedulesQuery
from api.decisions import Decided, data_of, decide, found, job_answer, refuse_if_match, shown
from api.gateway import Undecided
from api.input import checked_inline
from api.jobs import ACCEPTED, EARLIER, NEW, OF_REQUESTS, created
from api.lists import list_response
from api.operation import Answer, Ask, Operation
from api.problems import refused
from api.views import DeletedView, ScheduleList, SchedulePage
from ledger.domain.commands import (
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    PutSchedule,
    RunSchedule,
    Schedule,
)
from ledger.domain.ids import QueueName
from ledger.domain.operator_views import ScheduleView, schedule_view
from projections.answers import ScheduleState


class _Said(Struct, frozen=True, gc=False):
    """What the owner says of a schedule after a command."""

    schedule: Raw
    created: bool


# --- Read ----------------------------------------------------------------------------------------
async def list_schedules(ask: Ask) -> Response:
    query: SchedulesQuery = ask.query
    await shown(ask)
    all_ = await ask.services.reads.schedules(query.queue, query.type, query.enabled)
    return list_response(
        query,
        map(_view, all_.items),
        _place,
        all_.positions,
        listed=ScheduleList,
        paged=SchedulePage,
    )


def _view(stored: ScheduleState) -> ScheduleView:
    return schedule_view(stored.queue, stored.name, stored.its)


def _place(schedule: ScheduleView) -> str:
    return f"{schedule.queue} {schedule.name}"


async def read_schedule(ask: Ask) -> Response:
    queue, name = _named(ask)
    read = partial(ask.services.reads.schedule, queue, name)
    partition = ask.services.partition_of(queue)
    what = f"there is no schedule {name} in {queue}"
    stored = await found(ask, partition, read, "SCHEDULE_NOT_FOUND", what)
    return json_response(_view(stored), position=f"{stored.partition}:{stored.offset}")


# --- Changed -------------------------------------------------------------------------------------
async def put_schedule(ask: Ask) -> Response:
    refuse_if_match(ask)
    schedule: Schedule = ask.body
    if schedule.payload is not UNSET:
        schedule = replace(schedule, payload=checked_inline(ask.value, "payload", schedule.payload))
    decision = await decide(ask, PutSchedule(*_named(ask), schedule))
    return _said(ask, decision)


async def enable_schedule(ask: Ask) -> Response:
    refuse_if_match(ask)
    return _said(ask, await decide(ask, EnableSchedule(*_named(ask))))


async def disable_schedule(ask: Ask) -> Response:
    refuse_if_match(ask)
    return _said(ask, await decide(ask, DisableSchedule(*_named(ask))))


def _said(ask: Ask, decision: Decided | Undecided) -> Response:
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    if decision.data is None:
        raise refused("SCHEDULE_NOT_FOUND", "answered before; the schedule was deleted since")
    said = data_of(decision, _Said)
    return written_response(
        said.schedule,
        status=201 if said.created else 200,
        position=decision.position,
        replayed=decision.replayed,
        location=ask.request.url.path if said.created else "",
    )


async def delete_schedule(ask: Ask) -> Response:
    refuse_if_match(ask)
    decision = await decide(ask, DeleteSchedule(*_named(ask)))
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    return written_response(DeletedView(), position=decision.position, replayed=decision.replayed)


async def run_schedule(ask: Ask) -> Response:
    refuse_if_match(ask)
    return await job_answer(ask, await decide(ask, RunSchedule(*_named(ask))), created)


def _named(ask: Ask) -> tuple[QueueName, str]:
    return QueueName(ask.path["queue"]), ask.path["name"]


# --- The table -----------------------------------------------------------------------------------
_PATH = "/v1/queues/{queue}/schedules/{name}"
_SCHEDULE = Answer(content=ScheduleView, description="The schedule")
_CODES = ("SCHEDULE_NOT_FOUND", "QUEUE_NOT_FOUND")


def _post(
    word: str, name: str, summary: str, endpoint: Any, *codes: str, **answers: Answer
) -> Operation:
    return Operation(
        method="POST",
        path=f"{_PATH}/{word}",
        name=name,
        tag="schedules",
        summary=summary,
        endpoint=endpoint,
        is_command=True,
        answers={int(status[1:]): answer for status, answer in answers.items()} | {202: ACCEPTED},
        codes=(*_CODES, *codes),
        unknown="SCHEDULE_NOT_FOUND",
    )


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/schedules",
        name="listSchedules",
        tag="schedules",
        summary="List schedules",
        endpoint=list_schedules,
        query=SchedulesQuery,
        is_read=True,
        answers={200: Answer(content=ScheduleList | SchedulePage, description="By queue and name")},
    ),
    Operation(
        method="GET",
        path=_PATH,
        name="readSchedule",
        tag="schedules",
        summary="Read a schedule, and when it comes next",
        endpoint=read_schedule,
        is_read=True,
        answers={200: _SCHEDULE},
        codes=_CODES,
        unknown="SCHEDULE_NOT_FOUND",
    ),
    Operation(
        method="PUT",
        path=_PATH,
        name="putSchedule",
        tag="schedules",
        summary="Say when jobs of a type are to be",
        endpoint=put_schedule,
        body=Schedule,
        is_command=True,
        answers={
            200: _SCHEDULE,
            201: Answer(content=ScheduleView, description="A new schedule", headers=("Location",)),
            202: ACCEPTED,
        },
        codes=("INVALID_SCHEDULE", "NOT_SCHEDULABLE", "QUEUE_NOT_FOUND", "ENTRY_TOO_LARGE"),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        name="deleteSchedule",
        tag="schedules",
        summary="Delete a schedule; its jobs stay",
        endpoint=delete_schedule,
        is_command=True,
        answers={200: Answer(content=DeletedView, description="It is gone"), 202: ACCEPTED},
        codes=_CODES,
        unknown="SCHEDULE_NOT_FOUND",
    ),
    _post(
        "enable",
        "enableSchedule",
        "Let it come again, from now on",
        enable_schedule,
        "INVALID_SCHEDULE",
        _200=_SCHEDULE,
    ),
    _post("disable", "disableSchedule", "Let it rest", disable_schedule, _200=_SCHEDULE),
    _post(
        "run",
        "runSchedule",
        "Make its job now, whatever the time; also of a disabled one",
        run_schedule,
        *OF_REQUESTS,
        "NOT_SCHEDULABLE",
        "MODEL_NOT_FOUND",
        _200=EARLIER,
        _201=NEW,
    ),
)
