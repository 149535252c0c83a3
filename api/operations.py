"""Operations over many jobs: started, and watched until every partition has confirmed."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.responses import Response

from api.answers import accepted_response, json_response
from api.bodies import BulkCancel
from api.decisions import await_position, caught_up, decide, refuse_if_match
from api.gateway import Undecided
from api.operation import Answer, Ask, Operation
from api.positions import position_text
from api.problems import invalid, refused
from api.views import AcceptedView, BulkView, OperationView, operation_view
from ledger.domain.commands import CancelJobs, Where


class _Started(Struct, frozen=True, gc=False):
    operation_id: str


async def cancel_jobs(ask: Ask) -> Response:
    refuse_if_match(ask)
    body: BulkCancel = ask.body
    if _is_empty(body.where):
        raise invalid("/where", "say which jobs: an empty `where` names none")
    if body.dry_run:
        await await_position(ask)
    reads = ask.services.reads
    positions = await reads.positions()
    matched = await reads.count_matching(body.where)
    if body.dry_run:
        return json_response(BulkView(None, matched), position=position_text(positions))
    decision = await decide(ask, CancelJobs(body.where, body.reason))
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    started = msgspec.json.decode(decision.data or b"{}", type=_Started)
    headers = {"Location": f"/v1/operations/{started.operation_id}"}
    if decision.replayed:
        headers["Idempotency-Replayed"] = "true"
    return json_response(
        BulkView(started.operation_id, matched),
        status=202,
        position=decision.position,
        headers=headers,
    )


def _is_empty(where: Where) -> bool:
    """Labels without one label ask for nothing, and so would match every job there is."""
    return where.queue is None and where.types is None and where.scope is None and not where.labels


async def read_operation(ask: Ask) -> Response:
    reads, operation_id = ask.services.reads, ask.path["operation_id"]
    partition = ask.ledger_partition
    positions = await reads.positions()
    operation = await reads.operation(operation_id)
    if operation is None:
        await caught_up(ask, partition)
        positions = await reads.positions()
        operation = await reads.operation(operation_id)
    position = f"{partition}:{positions.get(partition, -1)}"
    if operation is None:
        raise refused(
            "OPERATION_NOT_FOUND",
            f"the ledger knows no operation {operation_id[:128]}",
            headers={"Ledger-Position": position},
        )
    return json_response(operation_view(operation), position=position)


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/jobs/cancel",
        name="cancelJobs",
        tag="operations",
        summary="Cancel all jobs that match, on every queue",
        endpoint=cancel_jobs,
        body=BulkCancel,
        is_command=True,
        answers={
            200: Answer(content=BulkView, description="A dry run: how many match"),
            202: Answer(
                content=BulkView | AcceptedView,
                description="Started; `Location` tells how it goes",
                headers=("Location",),
            ),
        },
    ),
    Operation(
        method="GET",
        path="/v1/operations/{operation_id}",
        name="readOperation",
        tag="operations",
        summary="Read how an operation goes",
        endpoint=read_operation,
        is_read=True,
        answers={200: Answer(content=OperationView, description="The operation")},
        codes=("OPERATION_NOT_FOUND",),
    ),
)
