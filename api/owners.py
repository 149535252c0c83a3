"""Owners of objects: users, and their projects."""

from __future__ import annotations

from starlette.responses import Response

from api.answers import accepted_response, written_response
from api.decisions import data_of, decide, refuse_if_match
from api.gateway import Undecided
from api.jobs import ACCEPTED
from api.operation import Answer, Ask, Operation
from api.views import AcceptedView, StartedView
from ledger.domain.commands import RemoveObjects


async def remove_objects(ask: Ask) -> Response:
    refuse_if_match(ask)
    command = RemoveObjects(ask.path["user"], ask.path.get("project"))
    decision = await decide(ask, command)
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    started = data_of(decision, StartedView)
    return written_response(
        started,
        status=202,
        position=decision.position,
        replayed=decision.replayed,
        location=f"/v1/operations/{started.operation_id}",
    )


def _operation(path: str, name: str, summary: str) -> Operation:
    return Operation(
        method="DELETE",
        path=path,
        name=name,
        tag="owners",
        summary=summary,
        endpoint=remove_objects,
        is_command=True,
        answers={
            202: Answer(
                content=StartedView | AcceptedView,
                description="Started; `Location` tells how it goes",
                headers=ACCEPTED.headers,
            )
        },
    )


OPERATIONS = (
    _operation("/v1/owners/{user}", "removeOwnersObjects", "Remove all objects of a user"),
    _operation(
        "/v1/owners/{user}/projects/{project}",
        "removeProjectsObjects",
        "Remove all objects of a user's project",
    ),
)
