"""A partition's state in parts that are written and read back one by one, each a piece of JSON.

What follows from the parts is derived anew: lanes, timers, who holds and who waits for a limit,
which versions of a template are held. A word of progress that no entry records is left out, as a
take-over leaves it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.commands import Model, QueueSettings, Template
from ledger.domain.creation import pinned
from ledger.domain.ids import JobId, Micros, QueueName, RuntimeId
from ledger.domain.job import Job
from ledger.domain.open_jobs import Alike, Packed, alike, job_of, labels_and_dedupe
from ledger.domain.operations import Bulk, BulkPart
from ledger.domain.partition import Outcome, Partition
from ledger.domain.queues import Paused, Queue, RuntimeSession
from ledger.domain.raw_fields import detach, raw_fields
from ledger.domain.remembered import KeyHolder, Late
from ledger.domain.schedule_table import Scheduled
from ledger.domain.sizes import size_of_waiting

FOLD = 1
"""Of the rules by which entries become state. Raise it when they change and no field does: states
that were written by others are then folded anew. `tests/golden` notices."""
ROWS_MAX = 1_000
"""Of one part: a millisecond's work."""


class Head(Struct, frozen=True, gc=False, tag="head"):
    entry: int
    at: Micros
    now: Micros
    floor: Micros
    commands: int
    requests: int
    order: int
    partitions: int
    misfits: int
    unknown: int


class QueueState(Struct, frozen=True, gc=False, tag="queue", omit_defaults=True):
    name: QueueName
    templates: tuple[tuple[str, int, Micros, Template], ...] = ()
    sessions: dict[RuntimeId, RuntimeSession] = {}
    settings: QueueSettings = QueueSettings()
    is_put: bool = False
    paused: Paused | None = None
    schedules: tuple[tuple[str, Scheduled], ...] = ()
    deleted_schedules: dict[str, Micros] = {}
    models: dict[str, Model] = {}


class OpenJobs(Struct, frozen=True, gc=False, tag="open"):
    rows: tuple[Job, ...]


class WaitingJobs(Struct, frozen=True, gc=False, tag="waiting"):
    """Those that wait for a runtime and nothing else, as they are held, with the size of each
    group. To read one back takes 3 us, a whole job 14."""

    groups: tuple[tuple[Alike, int], ...]


class ClosedJobs(Struct, frozen=True, gc=False, tag="closed"):
    rows: tuple[Job, ...]


OutcomeRow = tuple[str, Micros, Outcome | JobId]


class Outcomes(Struct, frozen=True, gc=False, tag="outcomes"):
    rows: tuple[OutcomeRow, ...]


class Keys(Struct, frozen=True, gc=False, tag="keys"):
    """Of one window, each with whether it is the one that answers for its key."""

    window: int
    rows: tuple[tuple[KeyHolder, bool], ...]


class Done(Struct, frozen=True, gc=False, tag="done"):
    rows: tuple[tuple[str, JobId], ...]


class DoneCounts(Struct, frozen=True, gc=False, tag="done_counts"):
    rows: tuple[tuple[tuple[QueueName, str], int], ...]


class Refused(Struct, frozen=True, gc=False, tag="refused"):
    rows: tuple[tuple[tuple[str, ...], Micros], ...]


class LateFacts(Struct, frozen=True, gc=False, tag="late"):
    rows: tuple[tuple[JobId, Late], ...]


class Operations(Struct, frozen=True, gc=False, tag="operations"):
    all: dict[str, Bulk]
    parts: dict[str, BulkPart]
    done: dict[str, int]
    ended: tuple[str, ...]


Part = (
    Head
    | QueueState
    | OpenJobs
    | WaitingJobs
    | ClosedJobs
    | Outcomes
    | Keys
    | Done
    | DoneCounts
    | Refused
    | LateFacts
    | Operations
)
R = TypeVar("R")


def layout() -> str:
    """A digest of every field that a part may have, with `FOLD`: who does not have the same reads
    no part."""
    (_, components) = msgspec.json.schema_components([Part])
    return sha256(msgspec.json.encode((FOLD, components), order="deterministic")).hexdigest()


# --- Taking --------------------------------------------------------------------------------------
class Taken:
    """The state at one instant: references to values that never change, so it costs little to take
    (20 ms for a million jobs) and the partition goes on meanwhile."""

    def __init__(self, partition: Partition) -> None:
        self._head = Head(
            partition.entry,
            partition.at,
            partition.now,
            partition.floor,
            partition.commands,
            partition.requests,
            partition.order,
            partition.partitions,
            partition.misfits,
            partition.unknown,
        )
        self._queues = [_queue_state(queue) for queue in partition.queues.values()]
        self._open = partition.jobs.copy()
        self._closed = partition.closed.copy()
        self._outcomes = partition.outcomes.rows()
        self._keys = partition.keys.windows()
        self._done, self._done_counts = partition.dedupe.done_for_ever()
        self._refused = partition.refused_at.copy()
        self._late = partition.late.copy()
        operations = partition.operations
        self._operations = Operations(
            operations.all.copy(),
            operations.parts.copy(),
            operations.done.copy(),
            tuple(operations.ended),
        )
        self.rows = len(self._open) + len(self._closed) + len(partition.outcomes) + len(self._done)

    def parts(self) -> Iterator[Part]:
        """In the order in which `Restored` wants them."""
        yield self._head
        yield from self._queues
        for held in _cut(self._open.items()):
            yield from _open_parts(held, self._head.at)
        yield from map(ClosedJobs, _cut(self._closed.values()))
        yield from map(Outcomes, _cut(self._outcomes))
        for window, holders in self._keys:
            for rows in _cut(holders):
                yield Keys(window, rows)
        yield from map(Done, _cut(self._done.items()))
        yield from map(DoneCounts, _cut(self._done_counts.items()))
        yield from map(Refused, _cut(self._refused.items()))
        yield from map(LateFacts, _cut(self._late.items()))
        yield self._operations


def _cut(rows: Iterable[R]) -> Iterator[tuple[R, ...]]:
    left = iter(rows)
    while chunk := tuple(islice(left, ROWS_MAX)):
        yield chunk


def _open_parts(rows: Iterable[tuple[JobId, Job | Packed]], at: Micros) -> Iterator[Part]:
    waiting: list[tuple[JobId, Packed]] = []
    others: list[Job] = []
    sizes: dict[int, int] = defaultdict(int)
    for job_id, held in rows:
        if type(held) is Packed:
            labels, dedupe = labels_and_dedupe(held)
            if held.ready_at <= at and held.terms.start_timeout_us is None and dedupe is None:
                waiting.append((job_id, held))
                sizes[id(held.terms)] += size_of_waiting(held.payload, labels)
                continue
        others.append(job_of(job_id, held))
    if waiting:
        yield WaitingJobs(tuple((its, sizes[id(its.terms)]) for its in alike(waiting)))
    if others:
        yield OpenJobs(tuple(others))


def _queue_state(queue: Queue) -> QueueState:
    templates = [
        (job_type, version, its.put_at, its.template)
        for job_type, versions in queue.templates.items()
        for version, its in versions.items()
    ]
    return QueueState(
        queue.name,
        tuple(templates),
        queue.sessions.copy(),
        queue.settings,
        queue.is_put,
        queue.paused,
        tuple(queue.schedules.items()),
        queue.schedules.deleted.copy(),
        queue.models.copy(),
    )


encoded = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Part).decode


def decoded(data: bytes) -> Part:
    """Raises `msgspec.MsgspecError` for what is no part, UnicodeDecodeError too."""
    return _decode(data)


# --- Restoring -----------------------------------------------------------------------------------
class Restored:
    """A partition as its parts tell it, given in their order."""

    def __init__(self, partition: Partition) -> None:
        """`partition` is empty."""
        self.partition = partition
        self._ids: dict[JobId, JobId] = {}
        """Of open jobs: what else names one is to hold the same text."""

    def add(self, part: Part) -> None:
        partition = self.partition
        match part:
            case Head():
                for name in part.__struct_fields__:
                    setattr(partition, name, getattr(part, name))
            case QueueState():
                self._add_queue(part)
            case OpenJobs():
                for job in part.rows:
                    self._ids[job.id] = job.id
                    partition.put_back(_own(job))
            case WaitingJobs():
                for group, size in part.groups:
                    _detach(group.terms)
                    self._ids.update(zip(group.ids, group.ids, strict=True))
                    partition.put_back_waiting(group, size)
            case ClosedJobs():
                for job in part.rows:
                    partition.closed.add(_own(job))
            case Outcomes():
                partition.outcomes.put_back(map(self._outcome, part.rows))
            case Keys():
                partition.keys.put_back(part.window, map(self._holder, part.rows))
            case Done():
                partition.dedupe.put_back(dict(part.rows), {})
            case DoneCounts():
                partition.dedupe.put_back({}, dict(part.rows))
            case Refused():
                partition.refused_at.update(part.rows)
            case LateFacts():
                partition.late.update(part.rows)
            case Operations():
                its = partition.operations
                its.all.update(part.all)
                its.parts.update(part.parts)
                its.done.update(part.done)
                its.ended.extend(part.ended)

    def _outcome(self, row: OutcomeRow) -> OutcomeRow:
        identity, at, outcome = row
        return row if type(outcome) is Outcome else (identity, at, self._ids.get(outcome, outcome))

    def _holder(self, row: tuple[KeyHolder, bool]) -> tuple[KeyHolder, bool]:
        holder, answers = row
        job_id = self._ids.get(holder.job_id, holder.job_id)
        return replace(holder, job_id=job_id), answers

    def _add_queue(self, state: QueueState) -> None:
        queue = self.partition.queue(state.name)
        for job_type, version, put_at, template in state.templates:
            versions = queue.templates.setdefault(job_type, {})
            versions[version] = pinned(job_type, version, template, put_at)
        queue.sessions.update(state.sessions)
        queue.settings, queue.is_put = state.settings, state.is_put
        queue.paused = state.paused
        queue.models.update(state.models)
        queue.schedules.put_back(state.schedules, state.deleted_schedules)
        self.partition.declare_all(queue)
        for name, _ in state.schedules:
            self.partition.arm_schedule(queue.name, name)


def _own(job: Job) -> Job:
    """Frees what it holds from the part that it was read from."""
    _detach(job.request)
    for value in (job.result, job.failure):
        if value is not None:
            _detach(value)
    for step in job.steps:
        for its in (step.part, step.failure):
            if its is not None:
                _detach(its)
    return job


def _detach(value: Struct) -> None:
    detach(value, raw_fields(type(value)))
