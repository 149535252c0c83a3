"""Who waits for a runtime, told a second time: to see who was passed over (I16).

A plain job waits as one step. A step of a flow waits among those of its own worker type, in its
job's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice

from ledger.domain.events import LeaseGranted
from ledger.domain.flow_traces import FlowTrace
from ledger.domain.ids import JobId
from ledger.domain.ready import PLACES_MIN, ascending
from ledger.domain.traces import Trace

LOOKED_AT_MAX = 100
"""Steps that a full limit holds back, passed over in looking for one that none does."""
AnyTrace = Trace | FlowTrace
Place = tuple[int, int, JobId, str]
"""(priority, order, job, step): lower is sooner."""
HeldBack = Callable[[JobId], bool]
"""Whether a limit that is full keeps the job from being leased."""


class Waiting:
    """Steps of one worker type and queue, best first. Some may have been leased meanwhile, or have
    gone: that shows when their turn comes."""

    __slots__ = ("_full_at", "_heap", "_later", "_traces")

    def __init__(self, traces: Mapping[JobId, AnyTrace]) -> None:
        self._traces = traces
        self._heap: list[Place] = []
        self._later: list[tuple[int, Place]] = []
        self._full_at = PLACES_MIN

    def add(self, place: Place, ready_at: int) -> None:
        heappush(self._later, (ready_at, place))
        if len(self._later) + len(self._heap) > self._full_at:
            self._clean()

    def best(self, ready_by: int, held_back: HeldBack) -> Place | None:
        """Of those that had been ready at `ready_by`, and that no limit holds back."""
        first = self._first(ready_by)
        if first is None or not held_back(first[2]):
            return first
        for place in islice(ascending(self._heap), LOOKED_AT_MAX):
            if self._waits(place, ready_by) and not held_back(place[2]):
                return place
        return None

    def _first(self, ready_by: int) -> Place | None:
        while self._later and self._later[0][0] <= ready_by:
            ready_at, place = heappop(self._later)
            if self._ready_at(place) == ready_at:
                heappush(self._heap, place)
        while self._heap:
            if self._waits(self._heap[0], ready_by):
                return self._heap[0]
            heappop(self._heap)
        return None

    def _waits(self, place: Place, ready_by: int) -> bool:
        ready_at = self._ready_at(place)
        return ready_at is not None and ready_at <= ready_by

    def _ready_at(self, place: Place) -> int | None:
        """None: it waits there no more."""
        trace = self._traces.get(place[2])
        if trace is None or trace.opaque or trace.order != place[1]:
            return None
        return trace.waits_until(place[3])

    def _clean(self) -> None:
        self._later = [one for one in self._later if self._ready_at(one[1]) == one[0]]
        self._heap = [place for place in self._heap if self._ready_at(place) is not None]
        heapify(self._later)
        heapify(self._heap)
        self._full_at = max(PLACES_MIN, 2 * len(self))

    def __len__(self) -> int:
        return len(self._heap) + len(self._later)


class WaitingTraces:
    """Of one partition."""

    def __init__(self, traces: Mapping[JobId, AnyTrace]) -> None:
        self._traces = traces
        self._waiting: dict[tuple[str, str], Waiting] = {}

    def follow(self, trace: AnyTrace) -> None:
        """What a fact on the job has put in line."""
        asked = trace.asked
        for worker_type, step, ready_at in trace.put_in_line():
            key = (asked.queue, worker_type)
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = Waiting(self._traces)
            waiting.add((asked.priority, trace.order, asked.job_id, step), ready_at)

    def passed_over(
        self,
        event: LeaseGranted,
        trace: AnyTrace,
        *,
        types: Iterable[str],
        ready_by: int,
        held_back: HeldBack,
    ) -> Iterator[Place]:
        """Who waited before the step that is leased to a runtime of these types: the best of each
        type."""
        asked = trace.asked
        place = (asked.priority, trace.order, asked.job_id, event.step)
        for worker_type in types:
            waiting = self._waiting.get((asked.queue, worker_type))
            best = None if waiting is None else waiting.best(ready_by, held_back)
            if best is not None and best < place:
                yield best

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))
