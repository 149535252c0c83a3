"""Who is next: the jobs of one queue that may be leased now, by priority, then by their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from ledger.domain.ids import JobId

PRIORITIES = 10
Place = tuple[int, JobId]
"""(order, job): lower orders are sooner."""


class Lane:
    """Jobs of one type and priority. New ones come in order and go to a deque; one that comes back
    to an earlier place goes to a small heap. (At a million jobs a push and pop of a heap costs
    1-3 us, of a deque 0.04.)"""

    __slots__ = ("_again", "_first")

    def __init__(self) -> None:
        self._first: deque[Place] = deque()
        self._again: list[Place] = []

    def add(self, order: int, job_id: JobId) -> None:
        if self._first and order < self._first[-1][0]:
            heappush(self._again, (order, job_id))
        else:
            self._first.append((order, job_id))

    def head(self, is_ready: Callable[[Place], bool]) -> Place | None:
        """The first that is still ready; those before it that are not are dropped."""
        first, again = self._first, self._again
        while first and not is_ready(first[0]):
            first.popleft()
        while again and not is_ready(again[0]):
            heappop(again)
        if not again:
            return first[0] if first else None
        return again[0] if not first or again[0] < first[0] else first[0]

    def __iter__(self) -> Iterator[Place]:
        yield from self._first
        yield from self._again


class Ready:
    """All lanes of a queue. What it holds may have been leased or ended meanwhile: `is_ready` says,
    when its turn comes."""

    __slots__ = ("_is_ready", "_lanes")

    def __init__(self, is_ready: Callable[[Place], bool]) -> None:
        self._is_ready = is_ready
        self._lanes: dict[str, list[Lane]] = {}

    def add(self, job_type: str, priority: int, order: int, job_id: JobId) -> None:
        lanes = self._lanes.get(job_type)
        if lanes is None:
            lanes = self._lanes[job_type] = [Lane() for _ in range(PRIORITIES)]
        lanes[priority].add(order, job_id)

    def first(self, types: Iterable[str]) -> JobId | None:
        """The best job among these types; it stays here until it is no longer ready."""
        lanes = [found for job_type in types if (found := self._lanes.get(job_type))]
        for priority in range(PRIORITIES):
            heads = [
                head for lane in lanes if (head := lane[priority].head(self._is_ready)) is not None
            ]
            if heads:
                return min(heads)[1]
        return None
