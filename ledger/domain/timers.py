"""When something falls due, for very many jobs: one armed timer a job, in a heap."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from ledger.domain.ids import JobId, Micros

STALE_MAX = 1024
"""So many dead entries are tolerated beside as many as live ones before the heap is cleaned."""


class Timers:
    """A timer that is armed too early only asks again: arming for a later instant changes nothing,
    and whoever is told that a job is due works out anew whether it is."""

    __slots__ = ("_armed", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[Micros, JobId]] = []
        self._armed: dict[JobId, Micros] = {}

    def arm(self, job_id: JobId, due: Micros) -> None:
        armed = self._armed.get(job_id)
        if armed is not None and armed <= due:
            return
        self._armed[job_id] = due
        heappush(self._heap, (due, job_id))
        self._clean()

    def disarm(self, job_id: JobId) -> None:
        if self._armed.pop(job_id, None) is not None:
            self._clean()

    def next_due(self) -> Micros | None:
        """Never later than the first that is armed."""
        return self._heap[0][0] if self._heap else None

    def pop(self, at: Micros, many: int) -> list[JobId]:
        """At most `many` that are due at `at`, earliest first; they are no longer armed."""
        fallen: list[JobId] = []
        heap, armed = self._heap, self._armed
        while heap and heap[0][0] <= at and len(fallen) < many:
            due, job_id = heappop(heap)
            if armed.get(job_id) == due:
                del armed[job_id]
                fallen.append(job_id)
        return fallen

    def __len__(self) -> int:
        return len(self._armed)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._armed

    def _clean(self) -> None:
        if len(self._heap) > 2 * len(self._armed) + STALE_MAX:
            self._heap = [(due, job_id) for job_id, due in self._armed.items()]
            heapify(self._heap)
