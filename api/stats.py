"""The ledger at a glance: jobs by status, runtimes that live, outcomes a minute."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from api.answers import json_response
from api.operation import Answer, Ask, Operation
from api.positions import position_text
from ledger.domain.ids import QUEUE_PATTERN, rfc3339

MINUTES = 15


class StatsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    queue: Annotated[str, Meta(pattern=rf"{QUEUE_PATTERN}(?!\n)")] | None = None
    """Only of this one."""
    minutes: Annotated[int, Meta(ge=1, le=1440)] = MINUTES


class RateView(Struct, frozen=True, gc=False):
    minute: str
    counts: dict[str, int]
    """By outcome."""


class StatsView(Struct, frozen=True, gc=False):
    queues: int
    paused: int
    jobs: dict[str, int]
    """By status."""
    runtimes: int
    """That live."""
    rates: tuple[RateView, ...]
    """The oldest minute first; one in which nothing happened is left out."""


async def read_stats(ask: Ask) -> Response:
    query: StatsQuery = ask.query
    names = () if query.queue is None else (query.queue,)
    reads = ask.services.reads
    queues = await reads.queues(names)
    runtimes = await reads.runtimes(names)
    jobs: Counter[str] = Counter()
    for queue in queues.items:
        jobs.update(queue.counts)
    by_minute: dict[str, dict[str, int]] = {}
    for rate in await reads.rates(query.minutes, query.queue):
        by_minute.setdefault(rfc3339(rate.minute), {})[rate.outcome] = rate.count
    view = StatsView(
        queues=len(queues.items),
        paused=sum(queue.paused is not None for queue in queues.items),
        jobs=dict(jobs),
        runtimes=sum(runtime.ended_at is None for runtime in runtimes.items),
        rates=tuple(RateView(minute, counts) for minute, counts in by_minute.items()),
    )
    return json_response(view, position=position_text(queues.positions))


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/stats",
        name="readStats",
        tag="queues",
        summary="The ledger at a glance",
        endpoint=read_stats,
        query=StatsQuery,
        is_read=True,
        answers={200: Answer(content=StatsView, description="Counts and rates")},
    ),
)
