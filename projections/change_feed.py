"""What the views say has changed, for those that tell it on live: rows to types, and the filters.

Two questions, each one statement however many listen: what happened in a partition since a
position, and which of some jobs have gone on. Within a partition events are told in the log's
order, by their `Place`; nothing is said of the order between partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from ledger.domain.events import Unknown
from ledger.domain.ids import JobId
from ledger.domain.job import Job, status
from projections.answers import HistoryEvent, JobFilter
from projections.copying import error_code
from projections.packing import Logical, json_of, unpack_groups
from projections.unpacking import stored_job

Place = tuple[int, int]
"""An offset, and how far into what happened there: one record may extend the leases of many jobs.
Those come by their ids, so that every reading finds the same order."""
ALL_OF_IT: Final = 1 << 30
"""As the second part of a place: everything at that offset."""
ROWS_AT_ONCE = 250
"""Unpacked before others get a turn."""


class Happened(Struct, frozen=True, gc=False):
    """One event of a job, and the job as it stood when this was read."""

    place: Place
    logical: Logical
    job: Job
    partition: int
    schedule: str | None

    def event(self) -> HistoryEvent:
        return history_event(self.logical, self.partition)


class Changes(Struct, frozen=True, gc=False):
    """All events of one partition up to an offset, in the log's order."""

    items: tuple[Happened, ...]
    until: int


class ChangedJob(Struct, frozen=True, gc=False):
    job: Job
    partition: int
    events: tuple[Logical, ...]
    """Since the version that was known; none is missing."""


Row = tuple[Any, ...]


async def changes(rows: Sequence[Row], partition: int, *, after: Place, until: int) -> Changes:
    """Of `queries/changes`. 12 us an event."""
    found: list[tuple[int, JobId, Logical, Job, str | None]] = []
    for number, (name, schedule, reached, last_seqs, stretches, *row) in enumerate(rows, 1):
        until = reached
        job = stored_job(name, *row)
        found += [
            (logical.offset, job.id, logical, job, schedule)
            for last_seq, stretch in zip(last_seqs, stretches, strict=True)
            for logical in unpack_groups(job, last_seq, stretch, range(after[0], until + 1))
        ]
        if number % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
    found.sort(key=lambda one: one[:2])
    items: list[Happened] = []
    offset, index = -1, 0
    for number, (at, _, logical, job, schedule) in enumerate(found):
        index = index + 1 if at == offset else 0
        offset = at
        is_last = number + 1 == len(found) or found[number + 1][0] != at
        place = (at, ALL_OF_IT if is_last else index)
        if place > after:
            items.append(Happened(place, logical, job, partition, schedule))
    return Changes(tuple(items), until)


def changed_job(row: Row, known: int) -> ChangedJob:
    """Of `queries/changed_jobs`; `known` is the version that was asked with."""
    name, partition, last_seqs, stretches, *its = row
    job = stored_job(name, *its)
    events = tuple(
        logical
        for last_seq, stretch in zip(last_seqs, stretches, strict=True)
        for logical in unpack_groups(job, last_seq, stretch)
        if logical.seq > known
    )
    return ChangedJob(job, partition, events)


def matches(where: JobFilter, happened: Happened) -> bool:
    """Whether the list of jobs with this filter would show the event's job."""
    job = happened.job
    asked = job.request
    return (
        (not where.queues or asked.queue in where.queues)
        and (not where.types or asked.type in where.types)
        and (not where.statuses or status(job) in where.statuses)
        and where.scope in (None, asked.scope)
        and where.error_code in (None, error_code(job))
        and where.retried_from in (None, asked.retried_from)
        and where.schedule in (None, happened.schedule)
        and (where.created_from is None or job.created_at >= where.created_from)
        and (where.created_to is None or job.created_at < where.created_to)
        and all(asked.labels.get(key) == value for key, value in where.labels.items())
    )


# --- One event -----------------------------------------------------------------------------------
def history_event(logical: Logical, partition: int) -> HistoryEvent:
    event = logical.event
    return HistoryEvent(
        seq=logical.seq,
        type=event.type if isinstance(event, Unknown) else event.TYPE,
        at=logical.at,
        actor=logical.actor,
        cause=logical.cause,
        correlation=logical.correlation,
        data=json_of(event),
        partition=partition,
        offset=logical.offset,
        hash=logical.hash.hex(),
    )
