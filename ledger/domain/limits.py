"""At most so many live leases among jobs that are equal in something: who holds which, derived from
the leases on record, and who waits for one to be free.

A limit is a list of pointers into the request; jobs for which each of them finds the same value
share it. A pointer that finds nothing never matches: such a job is under no limit, unless the limit
says that it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from ledger.domain.canonical import canonical
from ledger.domain.commands import Limit
from ledger.domain.events import JobRequested
from ledger.domain.ids import JobId
from ledger.domain.job import Job
from ledger.domain.parked import Class, Parked
from ledger.domain.parked import Key as Key
from ledger.domain.pointers import point
from ledger.domain.ready import IsReady, Place
from ledger.domain.steps import held_lease

_ordered = msgspec.json.Encoder(order="deterministic")


class Limits:
    """Of one queue. A job that cannot be leased for one leaves its lane and is parked here."""

    __slots__ = ("_by_type", "_keys", "_max", "_parked", "holders")

    def __init__(self, is_live: IsReady) -> None:
        """`is_live`: whether the job at a place could be leased, but for limits."""
        self._by_type: dict[str, tuple[Limit, ...]] = {}
        self._max: dict[tuple[str, int], int] = {}
        self._keys: dict[JobId, tuple[Key, ...]] = {}
        self.holders: dict[Key, set[Place]] = {}
        self._parked = Parked(is_live, self._full_of)

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

    def reset(self) -> list[tuple[str, int, Place]]:
        """Forgets what is derived; all who waited: (worker type, priority, place)."""
        self._keys.clear()
        self.holders.clear()
        return self._parked.reset()

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
        return self._full_of(self.keys(job), more)

    def is_recorded(self, key: Key) -> bool:
        """Whether the limit is reached by the leases on record alone."""
        return len(self.holders.get(key, ())) >= self.max_of(key)

    def park(self, key: Key, job: Job, worker_type: str, place: Place) -> None:
        """The job waits until there is room under that limit."""
        self._parked.add((worker_type, self.keys(job)), job.request.priority, place, key)

    def is_parked(self, place: Place) -> bool:
        return place in self._parked.places

    def waiting(self, types: Iterable[str], more: Counter[Key]) -> Generator[Place, None, None]:
        """Parked jobs that may be leased now, beside those in `more`, the best first."""

        def may_be_leased(of: Class) -> bool:
            return self._full_of(of[1], more) is None

        yield from self._parked.best(types, may_be_leased)

    def clean(self) -> None:
        self._parked.clean()

    def _full_of(self, keys: tuple[Key, ...], more: Counter[Key] | None = None) -> Key | None:
        for key in keys:
            held = len(self.holders.get(key, ())) + (more[key] if more else 0)
            if held >= self.max_of(key):
                return key
        return None

    # --- Leases that begin and end ---------------------------------------------------------------
    def moved(self, before: Job, after: Job) -> None:
        """The job has changed."""
        keys = self.keys(after)
        if after.end is not None:
            self._keys.pop(after.id, None)
        had, has = _held(before), _held(after)
        for key in keys:
            holders = self.holders.setdefault(key, set())
            holders -= had - has
            holders |= has
            if not holders:
                del self.holders[key]
            if not self.is_recorded(key):
                self._parked.wake(key)

    def hold(self, job: Job) -> None:
        """A job whose leases were not counted yet."""
        for place in _held(job):
            for key in self.keys(job):
                self.holders.setdefault(key, set()).add(place)


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
        return _ordered.encode(values)  # A number beyond what RFC 8785 can say.


def _held(job: Job) -> set[Place]:
    if job.end is not None:
        return set()
    return {(0, job.id, step.name) for step in job.steps if held_lease(step) is not None}
