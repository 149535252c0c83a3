"""What became of a command that was not decided in time."""

from __future__ import annotations

from starlette.responses import Response

from api.answers import json_response
from api.bodies import CommandQuery
from api.operation import Answer, Ask, Operation
from api.problems import refused
from api.views import CommandView, command_view
from api.wire import Place
from projections.answers import Consumed


async def read_command(ask: Ask) -> Response:
    reads, command_id = ask.services.reads, ask.path["command_id"]
    place = _place(ask)
    # Asked for first: what was consumed by then has its row by then, if it has one.
    consumed = None if place is None else await reads.consumed(place.partition)
    outcome = await reads.command(command_id)
    if outcome is not None:
        return json_response(command_view(outcome), position=outcome.position)
    if place is None:
        raise refused("COMMAND_NOT_FOUND", f"no command {command_id[:128]} within the last hour")
    position = "" if consumed is None else f"{place.partition}:{consumed.offset}"
    if consumed is not None and _next(ask, consumed, place.topic) > place.offset:
        # Read past, without a row: an equal command had its outcome before.
        nothing_new = CommandView(command_id, "decided", "accepted", detail="nothing new")
        return json_response(nothing_new, position=position)
    return json_response(
        CommandView(command_id, "pending"), position=position, headers={"Retry-After": "1"}
    )


def _place(ask: Ask) -> Place | None:
    """Where it lies: as this process remembers, else as the caller was told."""
    query: CommandQuery = ask.query
    known = ask.services.gateway.place_of(ask.path["command_id"])
    if known is not None:
        return known
    topics = ask.services.settings.topics
    if query.topic is None or query.partition is None or query.offset is None:
        return None
    if query.topic not in (topics.commands, topics.requests):
        return None
    if query.partition >= ask.services.settings.partitions:
        return None
    return Place(query.topic, query.partition, query.offset)


def _next(ask: Ask, consumed: Consumed, topic: str) -> int:
    is_request = topic == ask.services.settings.topics.requests
    return consumed.requests if is_request else consumed.commands


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/commands/{command_id}",
        name="readCommand",
        tag="commands",
        summary="Read what became of a command, for an hour",
        endpoint=read_command,
        query=CommandQuery,
        is_read=True,
        answers={200: Answer(content=CommandView, description="Pending, or decided how")},
        codes=("COMMAND_NOT_FOUND",),
    ),
)
