"""Jobs that a full limit keeps from being leased, out of their lanes: no search looks at them while
the limit is full, and the next one finds the best of them as soon as it is not.

Jobs of one worker type that are under the same limits form a class: either all of them may be
leased, or none. A class is *blocked* on one full limit, or *open*. Whenever something changes under
a limit that has room, the best class that is blocked on it is opened; a search blocks again what it
finds full. So an event costs as much as one class, however many jobs, or classes, wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import heapify, heappop, heappush

from ledger.domain.ready import PLACES_MIN, IsReady, Place, ascending

Key = tuple[str, int, bytes]
"""(type, or "" for the queue's own; number of the limit there; the values, canonical)."""
Class = tuple[str, tuple[Key, ...]]
"""(worker type, all limits that its jobs are under)."""
Rank = tuple[int, Place]
"""(priority, place): lower is sooner."""
FullOf = Callable[[tuple[Key, ...]], Key | None]
"""The first of these limits that is full; None: each has room."""
Heads = list[tuple[int, Place, Class]]
"""A heap of classes by their best job. What is not true any more is dropped when its turn comes."""


class Parked:
    """Of one queue. `full_of` speaks of leases on record."""

    __slots__ = (
        "_blocked",
        "_blocked_on",
        "_full_at",
        "_full_of",
        "_is_live",
        "_open",
        "_rows",
        "places",
    )

    def __init__(self, is_live: IsReady, full_of: FullOf) -> None:
        self._is_live = is_live
        self._full_of = full_of
        self._rows: dict[Class, list[Rank]] = {}
        """Heaps."""
        self._blocked_on: dict[Class, Key] = {}
        """A class that is in none is open."""
        self._blocked: dict[Key, dict[str, Heads]] = {}
        """By worker type, too: a class for which nobody comes must not stand before another."""
        self._open: dict[str, Heads] = {}
        self._full_at = PLACES_MIN
        self.places: set[Place] = set()

    def add(self, of: Class, priority: int, place: Place, key: Key) -> None:
        """A job of that class was found, and `key` is full."""
        row = self._rows.setdefault(of, [])
        if place not in self.places:
            self.places.add(place)
            heappush(row, (priority, place))
        if self._blocked_on.get(of) != key or row[0][1] == place:
            self._block(of, key)

    def wake(self, key: Key) -> None:
        """Something has changed under `key`, which has room."""
        by_type = self._blocked.get(key)
        if by_type is None:
            return
        for worker_type, heads in list(by_type.items()):
            if (of := self._best_blocked(heads, key)) is not None:
                del self._blocked_on[of]
                heappush(self._open.setdefault(worker_type, []), (*self._rows[of][0], of))
            if not heads:
                del by_type[worker_type]
        if not by_type:
            del self._blocked[key]

    def best(
        self, types: Iterable[str], may_be_leased: Callable[[Class], bool]
    ) -> Generator[Place, None, None]:
        """Those of open classes, the best first; of a class only as long as one more of it may be
        leased. To be closed before anything else is done here but `add`."""
        types = tuple(dict.fromkeys(types))
        begun: dict[Class, tuple[int, Place, Class]] = {}
        under_way: list[tuple[int, Place, Class, Iterator[Rank]]] = []
        try:
            while True:
                heads = min(filter(None, map(self._open.get, types)), default=None)
                if heads is not None and (not under_way or heads[0] < under_way[0][:3]):
                    head = heappop(heads)
                    of = head[2]
                    if of not in begun and self._is_open(heads, head):
                        begun[of] = head
                        rest = ascending(self._rows[of])
                        next(rest)
                        heappush(under_way, (*head, rest))
                    continue
                if not under_way:
                    return
                _, place, of, rest = heappop(under_way)
                if not may_be_leased(of):
                    continue
                yield place
                following = next((rank for rank in rest if self._is_live(rank[1])), None)
                if following is not None:
                    heappush(under_way, (*following, of, rest))
        finally:
            for head in begun.values():
                heappush(self._open[head[2][0]], head)

    def clean(self) -> None:
        """Drop jobs that ended while they waited, and nobody came for those before them."""
        if len(self.places) <= self._full_at:
            return
        rows, blocked_on = self._rows, self._blocked_on
        self.reset()
        for of, row in rows.items():
            left = [rank for rank in row if self._is_live(rank[1])]
            if not left:
                continue
            heapify(left)
            self._rows[of] = left
            self.places.update(place for _, place in left)
            key = blocked_on.get(of)
            if key is None:
                heappush(self._open.setdefault(of[0], []), (*left[0], of))
            else:
                self._block(of, key)
        self._full_at = max(PLACES_MIN, 2 * len(self.places))

    def reset(self) -> list[tuple[str, int, Place]]:
        """Forget all; who waited: (worker type, priority, place)."""
        waited = [(of[0], *rank) for of, row in self._rows.items() for rank in row]
        self._rows, self._blocked_on, self._blocked, self._open = {}, {}, {}, {}
        self.places = set()
        return waited

    # --- Classes ---------------------------------------------------------------------------------
    def _block(self, of: Class, key: Key) -> None:
        was_open = of not in self._blocked_on
        self._blocked_on[of] = key
        heads = self._blocked.setdefault(key, {}).setdefault(of[0], [])
        heappush(heads, (*self._rows[of][0], of))
        if was_open:
            # What it might have had elsewhere is another's now.
            for other in of[1]:
                if other != key and self._full_of((other,)) is None:
                    self.wake(other)

    def _is_open(self, heads: Heads, head: tuple[int, Place, Class]) -> bool:
        """Whether the class is open, and this its best; what is known better is put right."""
        of = head[2]
        if of in self._blocked_on or self._head(of) is None:
            return False
        if self._rows[of][0] != head[:2]:
            heappush(heads, (*self._rows[of][0], of))
            return False
        full = self._full_of(of[1])
        if full is not None:
            self._block(of, full)
        return full is None

    def _best_blocked(self, heads: Heads, key: Key) -> Class | None:
        while heads:
            priority, place, of = heappop(heads)
            if self._blocked_on.get(of) != key or (head := self._head(of)) is None:
                continue
            if head == (priority, place):
                return of
            if head > (priority, place):  # Else another entry has it.
                heappush(heads, (*head, of))
        return None

    def _head(self, of: Class) -> Rank | None:
        """The best of the class; None: nobody waits, and there is no such class any more."""
        row = self._rows.get(of)
        while row and not self._is_live(row[0][1]):
            self.places.discard(heappop(row)[1])
        if row:
            return row[0]
        self._rows.pop(of, None)
        self._blocked_on.pop(of, None)
        return None
