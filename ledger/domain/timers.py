"""When something falls due, for very many of a kind: one armed timer each, in a heap."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from ledger.domain.ids import Micros

K = TypeVar("K")

STALE_MAX = 1024
"""So many dead entries are tolerated beside as many as live ones before the heap is cleaned."""


class Timers(Generic[K]):
    """A timer that is armed too early only asks again: arming for a later instant changes nothing,
    and whoever is told that something is due works out anew whether it is."""

    __slots__ = ("_armed", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[Micros, K]] = []
        self._armed: dict[K, Micros] = {}

    def arm(self, key: K, due: Micros) -> None:
        armed = self._armed.get(key)
        if armed is not None and armed <= due:
            return
        self._armed[key] = due
        heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._armed) + STALE_MAX:
            self._clean()

    def disarm(self, key: K) -> None:
        if self._armed.pop(key, None) is not None and (
            len(self._heap) > 2 * len(self._armed) + STALE_MAX
        ):
            self._clean()

    def comes_by(self, key: K, due: Micros) -> bool:
        """Whether to arm it for that instant would change nothing."""
        armed = self._armed.get(key)
        return armed is not None and armed <= due

    def next_due(self) -> Micros | None:
        """Never later than the first that is armed."""
        return self._heap[0][0] if self._heap else None

    def pop(self, at: Micros, many: int) -> list[K]:
        """At most `many` that are due at `at`, earliest first; they are no longer armed."""
        fallen: list[K] = []
        heap, armed = self._heap, self._armed
        while heap and heap[0][0] <= at and len(fallen) < many:
            due, key = heappop(heap)
            if armed.get(key) == due:
                del armed[key]
                fallen.append(key)
        return fallen

    def __len__(self) -> int:
        return len(self._armed)

    def __contains__(self, key: K) -> bool:
        return key in self._armed

    def _clean(self) -> None:
        self._heap = [(due, key) for key, due in self._armed.items()]
        heapify(self._heap)
