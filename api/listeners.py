"""Those that listen to changes: what each is told, its bounded queue, and how it ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from api.server_sent import message
from api.views import event_view
from ledger.domain.job import Job
from ledger.domain.job_view import job_json
from projections.answers import HistoryEvent, JobFilter
from projections.change_feed import ChangedJob, Place, history_event
from projections.unpacking import folded

QUEUE_MAX = 256
"""Events that wait for one listener."""
TURN_EVENTS = 64
"""Put into queues before their readers get a turn: a quarter of what fits."""

TAKEN_MAX = 32
"""Of these, out of the queue at once."""

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


# --- How listening ends --------------------------------------------------------------------------
class Ending(Struct, frozen=True, gc=False):
    """Why somebody is told nothing more, for programs and for people."""

    code: str
    detail: str


TOO_SLOW = Ending("TOO_SLOW", f"more than {QUEUE_MAX} events waited to be read; resume")
STOPPING = Ending("STOPPING", "this server stops; resume with another")
FAILED = Ending("FAILED", "the feed of changes failed; resume")


class Ended(Exception):
    """Nothing more is told."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.detail)
        self.ending = ending


# --- What is told --------------------------------------------------------------------------------
class Told:
    """One event, encoded when the first listener sends it."""

    def __init__(self, id: str, event: HistoryEvent, place: Place) -> None:
        self._id = id
        self._event = event
        self.place = place
        self.partition = event.partition

    @cached_property
    def frame(self) -> bytes:
        return message(_encode(event_view(self._event)), id=self._id)


class Step:
    """One event of a followed job, and the job after it."""

    def __init__(self, event: HistoryEvent, job: Job, *, is_end: bool) -> None:
        self._event = event
        self.job = job
        self.seq = event.seq
        self.is_end = is_end
        """The job has ended, and this is the last that is known of it."""

    @cached_property
    def frame(self) -> bytes:
        return job_frame(self._event)

    @cached_property
    def state(self) -> str:
        """The job, as GET gives it."""
        return job_json(self.job).decode()


def job_frame(event: HistoryEvent) -> bytes:
    return message(_encode(event_view(event)), id=str(event.seq))


class Listener(Generic[T]):
    """The queue of one reader."""

    def __init__(self, drop: Callable[[], None]) -> None:
        self._waiting: deque[T] = deque()
        self._stirred = asyncio.Event()
        self._drop = drop
        self.ending: Ending | None = None

    def offer(self, item: T) -> None:
        if self.ending is not None:
            return
        if len(self._waiting) >= QUEUE_MAX:
            self._waiting.clear()
            self.end(TOO_SLOW)
            self._drop()
            return
        self._waiting.append(item)
        self._stirred.set()

    def end(self, ending: Ending) -> None:
        self.ending = self.ending or ending
        self._stirred.set()

    async def take(self, seconds_max: float) -> list[T]:
        """Of what waits the oldest; empty if nothing came in time. Raises `Ended`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._stirred.wait()
        self._stirred.clear()
        if not self._waiting and self.ending is not None:
            raise Ended(self.ending)
        items = [self._waiting.popleft() for _ in range(min(len(self._waiting), TAKEN_MAX))]
        if self._waiting or self.ending is not None:
            self._stirred.set()
        return items


class Followed:
    """One job, as its listeners know it."""

    def __init__(self, job: Job, partition: int) -> None:
        self.job = job
        self.partition = partition
        self.listeners: set[Listener[Step]] = set()

    async def go_on(self, changed: ChangedJob) -> None:
        last = changed.events[-1].seq if changed.events else 0
        for number, logical in enumerate(changed.events, 1):
            if logical.seq <= self.job.version:
                continue
            is_last = logical.seq == last
            after = changed.job if is_last else folded(self.job, logical.event, logical.at)
            if after is None:
                continue
            step = Step(
                history_event(logical, changed.partition),
                after,
                is_end=is_last and after.end is not None,
            )
            self.job = after
            for listener in self.listeners:
                listener.offer(step)
            if number % TURN_EVENTS == 0:
                await asyncio.sleep(0)


class Group:
    """Listeners to all events under one filter."""

    def __init__(self, where: JobFilter, partitions: frozenset[int]) -> None:
        self.where = where
        self.partitions = partitions
        self.listeners: set[Listener[Told]] = set()
