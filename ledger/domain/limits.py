"""At most so many live leases among jobs that are equal in something: who holds which, derived from
the leases on record, and who waits for one to be free.

A limit is a list of pointers into the request; jobs for which each of them finds the same value
share it. A pointer that finds nothing never matches: such a job is under no limit.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import Any

import msgspec
from msgspec import UNSET

from ledger.domain.canonical import canonical
from ledger.domain.commands import Limit
from ledger.domain.events import JobRequested
from ledger.domain.ids import JobId
from ledger.domain.job import Job
from ledger.domain.pointers import point
from ledger.domain.ready import Place
from ledger.domain.steps import Pending, held_lease

Key = tuple[str, int, bytes]
"""(type, or "" for the queue's own; number of the limit there; the values, canonical)."""
Waiting = tuple[int, Place, str]
"""(priority, place, worker type): lower is sooner."""
Heaps = dict[str, list[Waiting]]
"""By worker type: those of one may be all that a runtime can take."""


class Limits:
    """Of one queue. A job that cannot be leased for one leaves its lane and waits here, so that
    nobody looks at it again before a lease under that limit ends."""

    __slots__ = ("_by_type", "_keys", "_max", "_waiting", "holders", "parked")

    def __init__(self) -> None:
        self._by_type: dict[str, tuple[Limit, ...]] = {}
        self._max: dict[tuple[str, int], int] = {}
        self._keys: dict[JobId, tuple[Key, ...]] = {}
        self.holders: dict[Key, set[Place]] = {}
        self._waiting: dict[Key, Heaps] = {}
        """With places that are dead by now: those are not `parked`."""
        self.parked: set[Place] = set()
        """Places of jobs that wait here."""

    def __bool__(self) -> bool:
        return bool(self._by_type)

    # --- What is declared ------------------------------------------------------------------------
    def declare(self, job_type: str, limits: tuple[Limit, ...]) -> bool:
        """The newest word on a type (or, by "", on the queue). Whether anything is new: then all
        that is derived is to be derived anew, from `reset` on."""
        if self._by_type.get(job_type, ()) == limits:
            return False
        if limits:
            self._by_type[job_type] = limits
        else:
            del self._by_type[job_type]
        self._max = {
            (name, number): limit.max
            for name, its in self._by_type.items()
            for number, limit in enumerate(its)
        }
        return True

    def reset(self) -> list[Waiting]:
        """Forgets what is derived; all who waited."""
        heaps = [heap for by_type in self._waiting.values() for heap in by_type.values()]
        waiting = [one for heap in heaps for one in heap]
        self._keys.clear()
        self.holders.clear()
        self._waiting.clear()
        self.parked.clear()
        return waiting

    def max_of(self, key: Key) -> int:
        return self._max[key[0], key[1]]

    # --- Under which limits a job is -------------------------------------------------------------
    def keys(self, job: Job) -> tuple[Key, ...]:
        if "" not in self._by_type and job.request.type not in self._by_type:
            return ()
        found = self._keys.get(job.id)
        if found is None:
            found = self._keys[job.id] = tuple(self._keys_of(job.request))
        return found

    def _keys_of(self, asked: JobRequested) -> list[Key]:
        keys: list[Key] = []
        for name in ("", asked.type):
            for number, limit in enumerate(self._by_type.get(name, ())):
                value = value_of(asked, limit.key)
                if value is not None:
                    keys.append((name, number, value))
        return keys

    # --- Who may be leased -----------------------------------------------------------------------
    def full(self, job: Job, more: Counter[Key] | None = None) -> Key | None:
        """The limit that keeps the job from being leased; `more`: leases about to be recorded."""
        for key in self.keys(job):
            held = len(self.holders.get(key, ())) + (more[key] if more else 0)
            if held >= self.max_of(key):
                return key
        return None

    def is_recorded(self, key: Key) -> bool:
        """Whether the limit is reached by the leases on record alone."""
        return len(self.holders.get(key, ())) >= self.max_of(key)

    def park(self, key: Key, priority: int, place: Place, worker_type: str) -> None:
        """The job waits until a lease under that limit ends."""
        if place not in self.parked:
            self.parked.add(place)
            heaps = self._waiting.setdefault(key, {})
            heappush(heaps.setdefault(worker_type, []), (priority, place, worker_type))

    # --- Leases that begin and end ---------------------------------------------------------------
    def moved(self, before: Job, after: Job) -> list[Waiting]:
        """The job has changed. Those who may take their places in their lanes again."""
        keys = self.keys(after)
        if not keys:
            return []
        if self.parked:
            self.parked -= _pending(before) - _pending(after)
        had, has = _held(before), _held(after)
        for key in keys:
            holders = self.holders.setdefault(key, set())
            holders -= had - has
            holders |= has
            if not holders:
                del self.holders[key]
        freed: list[Waiting] = []
        # Also where one that had been told to take its place again did not: it ended, is cancelled
        # or, in a flow, is done anew from before it.
        if after.end is not None or not has or after.request.flow is not None:
            for key in keys:
                freed += self._free(key)
        if after.end is not None:
            self._keys.pop(after.id, None)
        return freed

    def hold(self, job: Job) -> None:
        """A job whose leases were not counted yet."""
        for place in _held(job):
            for key in self.keys(job):
                self.holders.setdefault(key, set()).add(place)

    def _free(self, key: Key) -> list[Waiting]:
        """As many of each worker type as there is room for: who comes for them is not known."""
        heaps = self._waiting.get(key)
        freed: list[Waiting] = []
        room = self.max_of(key) - len(self.holders.get(key, ()))
        if heaps is None or room <= 0:
            return freed
        for worker_type, heap in list(heaps.items()):
            left = room
            while heap and left:
                waiting = heappop(heap)
                if waiting[1] in self.parked:
                    self.parked.discard(waiting[1])
                    freed.append(waiting)
                    left -= 1
            if not heap:
                del heaps[worker_type]
        if not heaps:
            del self._waiting[key]
        return freed


def value_of(asked: JobRequested, pointers: tuple[str, ...]) -> bytes | None:
    """What the pointers find, as one canonical text; None if any finds nothing."""
    values: list[Any] = []
    for pointer in pointers:
        found = point(asked, pointer)
        if found is UNSET:
            return None
        values.append(found)
    try:
        return canonical(values)
    except ValueError:
        return msgspec.json.encode(values)  # A number beyond what RFC 8785 can say.


def _pending(job: Job) -> set[Place]:
    if job.end is not None or job.cancel is not None:
        return set()
    order, job_id = job.order, job.id
    return {(order, job_id, step.name) for step in job.steps if type(step.phase) is Pending}


def _held(job: Job) -> set[Place]:
    if job.end is not None:
        return set()
    return {(0, job.id, step.name) for step in job.steps if held_lease(step) is not None}
