"""Queues: what they hold."""

from __future__ import annotations

from starlette.responses import Response

from api.answers import json_response
from api.bodies import Paging
from api.decisions import caught_up
from api.operation import Answer, Ask, Operation
from api.paging import Numbered, after_cursor, page_of, total_pages
from api.positions import position_text
from api.problems import refused
from api.views import QueueList, QueuePage, QueueView, queue_view
from ledger.domain.ids import QueueName


async def list_queues(ask: Ask) -> Response:
    query: Paging = ask.query
    wanted = page_of(query)
    reads, now = ask.services.reads, ask.services.now()
    # Asked for first: the list is at least as new.
    position = position_text(await reads.positions())
    queues = sorted((queue_view(queue, now) for queue in await reads.queues()), key=_name)
    if isinstance(wanted, Numbered):
        page = QueuePage(
            items=tuple(queues[wanted.before : wanted.before + wanted.page_size]),
            page=wanted.page,
            page_size=wanted.page_size,
            total=len(queues),
            total_pages=total_pages(len(queues), wanted.page_size),
            total_exact=True,
        )
        return json_response(page, position=position)
    items, cursor = after_cursor(queues, _name, wanted)
    return json_response(QueueList(items, cursor), position=position)


def _name(queue: QueueView) -> str:
    return queue.name


async def read_queue(ask: Ask) -> Response:
    name = ask.path["queue"]
    reads = ask.services.reads
    queue = await reads.queue(name)
    if queue is None:
        partition = ask.services.partition_of(QueueName(name))
        await caught_up(ask, partition)
        queue = await reads.queue(name)
        if queue is None:
            offset = (await reads.positions()).get(partition, -1)
            raise refused(
                "QUEUE_NOT_FOUND",
                f"no queue {name} was ever used",
                headers={"Ledger-Position": f"{partition}:{offset}"},
            )
    position = f"{queue.partition}:{queue.offset}"
    return json_response(queue_view(queue, ask.services.now()), position=position)


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
        summary="Read what a queue holds",
        endpoint=read_queue,
        is_read=True,
        answers={200: Answer(content=QueueView, description="The queue")},
        codes=("QUEUE_NOT_FOUND",),
    ),
)
