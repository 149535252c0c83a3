"""Who is next: the steps of one queue that may be leased now, by priority, then by their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import repeat
from operator import ge
from sys import intern
from typing import Any, TypeVar

from ledger.domain.ids import JobId, StepName

Place = tuple[int, JobId, StepName]
"""(order, job, step): lower orders are sooner."""
IsReady = Callable[[Place], bool]

PLACES_MIN = 1024
"""A lane is cleaned when it holds twice as many places as after its last cleaning, and so many."""


class Lane:
    """Steps of one worker type and priority. New ones come in order and go to deques; one that
    comes back to an earlier place goes to a small heap. (At a million jobs a push and pop of a heap
    costs 1-3 us, of a deque 0.04.)"""

    __slots__ = ("_again", "_full_at", "_jobs", "_orders", "_steps")

    def __init__(self) -> None:
        # Places side by side: a tuple for each would take three times the memory.
        self._orders: deque[int] = deque()
        self._jobs: deque[JobId] = deque()
        self._steps: deque[StepName] = deque()
        self._again: list[Place] = []
        self._full_at = PLACES_MIN

    def add(self, place: Place, is_ready: IsReady) -> None:
        orders = self._orders
        # Most come behind all others, which their order alone says.
        if (
            orders
            and place[0] <= orders[-1]
            and place < (orders[-1], self._jobs[-1], self._steps[-1])
        ):
            heappush(self._again, place)
        else:
            self._append(place)
        if len(self._orders) + len(self._again) > self._full_at:
            self._clean(is_ready)

    def extend(
        self, orders: Sequence[int], jobs: Sequence[JobId], step: StepName, is_ready: IsReady
    ) -> None:
        """That step of many jobs, all of which are ready."""
        is_behind = not self._orders or self._orders[-1] < orders[0]
        if not is_behind or any(map(ge, orders, orders[1:])):
            for order, job_id in zip(orders, jobs, strict=True):
                self.add((order, job_id, step), is_ready)
            return
        self._orders.extend(orders)
        self._jobs.extend(jobs)
        self._steps.extend(repeat(StepName(intern(step)), len(jobs)))
        self._full_at = max(self._full_at, 2 * len(self))

    def trim(self, is_ready: IsReady) -> bool:
        """Drop what is no longer ready from the front; whether anything is left."""
        orders, jobs, steps, again = self._orders, self._jobs, self._steps, self._again
        while orders and not is_ready((orders[0], jobs[0], steps[0])):
            orders.popleft()
            jobs.popleft()
            steps.popleft()
        while again and not is_ready(again[0]):
            heappop(again)
        return bool(orders or again)

    def __iter__(self) -> Iterator[Place]:
        """In order, ready or not. Not to be changed meanwhile."""
        first = self._in_order()
        return merge(first, ascending(self._again)) if self._again else first

    def __len__(self) -> int:
        return len(self._orders) + len(self._again)

    def _in_order(self) -> Iterator[Place]:
        return zip(self._orders, self._jobs, self._steps, strict=True)

    def _append(self, place: Place) -> None:
        order, job_id, step = place
        self._orders.append(order)
        self._jobs.append(job_id)
        self._steps.append(StepName(intern(step)))

    def _clean(self, is_ready: IsReady) -> None:
        """Jobs that ended while they waited, and nobody came for those before them."""
        left = dict.fromkeys(filter(is_ready, self._in_order()))
        self._orders, self._jobs, self._steps = deque(), deque(), deque()
        for place in left:
            self._append(place)
        self._again = list(set(filter(is_ready, self._again)))
        heapify(self._again)
        self._full_at = max(PLACES_MIN, 2 * len(self))


class Ready:
    """All lanes of a queue. What it holds may have been leased or ended meanwhile: `is_ready` says,
    when its turn comes."""

    __slots__ = ("_is_ready", "_lanes")

    def __init__(self, is_ready: IsReady) -> None:
        self._is_ready = is_ready
        self._lanes: dict[str, dict[int, Lane]] = {}

    def add(self, worker_type: str, priority: int, place: Place) -> None:
        self._lane(worker_type, priority).add(place, self._is_ready)

    def extend(
        self,
        worker_type: str,
        priority: int,
        orders: Sequence[int],
        jobs: Sequence[JobId],
        step: StepName,
    ) -> None:
        """That step of many jobs, all of which are ready."""
        self._lane(worker_type, priority).extend(orders, jobs, step, self._is_ready)

    def _lane(self, worker_type: str, priority: int) -> Lane:
        lanes = self._lanes.get(worker_type)
        if lanes is None:
            lanes = self._lanes[worker_type] = {}
        lane = lanes.get(priority)
        if lane is None:
            lane = lanes[priority] = Lane()
        return lane

    def any(self) -> bool:
        """Whether a step of any type is ready."""
        return any(self._trimmed(job_type) for job_type in list(self._lanes))

    def best(self, types: Iterable[str]) -> Iterator[Place]:
        """All ready steps among these types, the best first. They stay here, and nothing may be
        added while the iterator is in use."""
        is_ready = self._is_ready
        by_priority: dict[int, list[Lane]] = {}
        for job_type in dict.fromkeys(types):
            for priority, lane in self._trimmed(job_type):
                by_priority.setdefault(priority, []).append(lane)
        for priority in sorted(by_priority):
            lanes = by_priority[priority]
            last = None
            for place in lanes[0] if len(lanes) == 1 else merge(*lanes):
                # A job that was given back stands here twice, until its turn has come.
                if place != last and is_ready(place):
                    last = place
                    yield place

    def __len__(self) -> int:
        """Places, not jobs: what has been leased or ended meanwhile counts until it is dropped."""
        return sum(len(lane) for lanes in self._lanes.values() for lane in lanes.values())

    def _trimmed(self, job_type: str) -> list[tuple[int, Lane]]:
        lanes = self._lanes.get(job_type)
        if lanes is None:
            return []
        for priority in [p for p, lane in lanes.items() if not lane.trim(self._is_ready)]:
            del lanes[priority]
        if not lanes:
            del self._lanes[job_type]
        return list(lanes.items())


T = TypeVar("T", bound=tuple[Any, ...])


def ascending(heap: list[T]) -> Iterator[T]:
    """A heap's items in order, without taking them out: the next is a child of one seen."""
    frontier = [(heap[0], 0)]
    while frontier:
        place, index = heappop(frontier)
        yield place
        for child in (2 * index + 1, 2 * index + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))
