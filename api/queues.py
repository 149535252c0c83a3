"""Queues: what they hold, what operators say of them."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from api.answers import accepted_response, json_response, written_response
from api.bodies import Paging, Reason
from api.decisions import decide, found, refuse_if_match, shown
from api.gateway import Undecided
from api.jobs import ACCEPTED
from api.lists import list_response
from api.operation import Answer, Ask, Operation
from api.views import HeldQueueView, QueueList, QueuePage, QueueView, held_queue_view, queue_view
from ledger.domain.commands import PauseQueue, PutQueue, QueueSettings, ResumeQueue
from ledger.domain.ids import QueueName
from ledger.domain.operator_views import QueueSettingsView


async def list_queues(ask: Ask) -> Response:
    query: Paging = ask.query
    await shown(ask)
    queues, now = await ask.services.reads.queues(), ask.services.now()
    return list_response(
        query,
        (queue_view(queue, now) for queue in queues.items),
        _name,
        queues.positions,
        listed=QueueList,
        paged=QueuePage,
    )


def _name(queue: QueueView) -> str:
    return queue.name


async def read_queue(ask: Ask) -> Response:
    name = ask.path["queue"]
    read = partial(ask.services.reads.queue, name)
    partition = ask.services.partition_of(QueueName(name))
    held = await found(ask, partition, read, "QUEUE_NOT_FOUND", f"no queue {name} was ever used")
    view = held_queue_view(held, ask.services.now())
    return json_response(view, position=f"{held.state.partition}:{held.state.offset}")


# --- What operators say --------------------------------------------------------------------------
async def put_queue(ask: Ask) -> Response:
    return await _say(ask, PutQueue(QueueName(ask.path["queue"]), ask.body))


async def pause_queue(ask: Ask) -> Response:
    return await _say(ask, PauseQueue(QueueName(ask.path["queue"]), ask.body.reason))


async def resume_queue(ask: Ask) -> Response:
    return await _say(ask, ResumeQueue(QueueName(ask.path["queue"]), ask.body.reason))


async def _say(ask: Ask, command: PutQueue | PauseQueue | ResumeQueue) -> Response:
    refuse_if_match(ask)
    decision = await decide(ask, command)
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    return written_response(decision.data, position=decision.position, replayed=decision.replayed)


# --- The table -----------------------------------------------------------------------------------
_SETTINGS = Answer(content=QueueSettingsView, description="What holds for the queue now")

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/queues",
        name="listQueues",
        tag="queues",
        summary="List queues",
        endpoint=list_queues,
        query=Paging,
        is_read=True,
        answers={200: Answer(content=QueueList | QueuePage, description="Queues by name")},
    ),
    Operation(
        method="GET",
        path="/v1/queues/{queue}",
        name="readQueue",
        tag="queues",
        summary="Read what a queue holds, and who holds its limits",
        endpoint=read_queue,
        is_read=True,
        answers={200: Answer(content=HeldQueueView, description="The queue")},
        codes=("QUEUE_NOT_FOUND",),
    ),
    Operation(
        method="PUT",
        path="/v1/queues/{queue}",
        name="putQueue",
        tag="queues",
        summary="Say how much a queue may hold, and under which limits its jobs are leased",
        endpoint=put_queue,
        body=QueueSettings,
        is_command=True,
        answers={200: _SETTINGS, 202: ACCEPTED},
        codes=("QUEUE_NOT_FOUND",),
    ),
    Operation(
        method="POST",
        path="/v1/queues/{queue}/pause",
        name="pauseQueue",
        tag="queues",
        summary="Lease nothing of it any more; it goes on to accept jobs",
        endpoint=pause_queue,
        body=Reason,
        is_command=True,
        answers={200: _SETTINGS, 202: ACCEPTED},
        codes=("QUEUE_NOT_FOUND",),
    ),
    Operation(
        method="POST",
        path="/v1/queues/{queue}/resume",
        name="resumeQueue",
        tag="queues",
        summary="Lease its jobs again",
        endpoint=resume_queue,
        body=Reason,
        is_command=True,
        answers={200: _SETTINGS, 202: ACCEPTED},
        codes=("QUEUE_NOT_FOUND",),
    ),
)
