"""What operators do to a queue as a whole."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ledger.domain.commands import Limit, PauseQueue, PutQueue, ResumeQueue
from ledger.domain.decisions import Decided, Decision
from ledger.domain.events import QueuePaused, QueuePut, QueueResumed
from ledger.domain.partition import Partition
from ledger.domain.pointers import is_pointer
from ledger.domain.rejections import Rejected, Rejection


def put(partition: Partition, command: PutQueue) -> Decision:
    if wrong := wrong_limits(command.settings.limits):
        return wrong
    queue = partition.queues.get(command.queue)
    if queue is not None and queue.is_put and queue.settings == command.settings:
        return Decided()
    return Decided((QueuePut(command.queue, Raw(msgspec.json.encode(command.settings))),))


def pause(partition: Partition, command: PauseQueue, actor: str) -> Decision:
    queue = partition.queues.get(command.queue)
    if queue is not None and queue.paused is not None:
        return Decided()
    return Decided((QueuePaused(command.queue, command.reason, actor),))


def resume(partition: Partition, command: ResumeQueue, actor: str) -> Decision:
    queue = partition.queues.get(command.queue)
    if queue is None or queue.paused is None:
        return Decided()
    return Decided((QueueResumed(command.queue, command.reason, actor),))


def wrong_limits(limits: tuple[Limit, ...]) -> Rejected | None:
    """Pointers are those of the body that declares them."""
    for number, limit in enumerate(limits):
        for index, pointer in enumerate(limit.key):
            if not is_pointer(pointer):
                return Rejected(
                    Rejection.VALIDATION_FAILED,
                    "no JSON pointer into a request",
                    pointer=f"/limits/{number}/key/{index}",
                )
    return None
