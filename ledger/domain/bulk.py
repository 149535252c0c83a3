"""Bulk operations: one fact in `_ledger`, a part in every partition, each confirmed."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Raw

from ledger.domain.commands import Asked, CancelJobs, CancelPart, ConfirmPart, Where
from ledger.domain.creation import matches
from ledger.domain.events import (
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
    Event,
    JobRequested,
)
from ledger.domain.ids import LEDGER_QUEUE, JobId
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected, Rejection

JOBS_MAX = 1000
"""Jobs that one entry of a bulk operation moves, at most: a turn stays short."""


def start(partition: Partition, command: CancelJobs, asked: Asked) -> BulkStarted | Rejected:
    if not _says_which(command.where):
        return Rejected(
            Rejection.VALIDATION_FAILED,
            "say which jobs: an empty `where` is none",
            pointer="/where",
        )
    digest = sha256(asked.command_id.encode()).hexdigest()
    return BulkStarted(
        queue=LEDGER_QUEUE,
        operation_id=f"op_{digest[:32]}",
        kind="cancel",
        where=Raw(msgspec.json.encode(command.where)),
        partitions=partition.partitions,
        reason=command.reason,
        by=asked.actor,
    )


def start_part(partition: Partition, command: CancelPart, requests_end: int) -> tuple[Event, ...]:
    """`requests_end`: the end of the requests intake, asked for after the command was read."""
    if command.operation_id in partition.bulk_parts | partition.bulk_done:
        return ()
    return (
        BulkPartStarted(
            queue=LEDGER_QUEUE,
            operation_id=command.operation_id,
            where=Raw(msgspec.json.encode(command.where)),
            requests_end=requests_end,
            reason=command.reason,
            by=command.by,
        ),
    )


def selected(partition: Partition, operation_id: str) -> list[JobId]:
    """Open jobs that the operation is to cancel: those that are not cancelling yet, and can be."""
    where = partition.bulk_parts[operation_id].where
    return [
        job_id
        for job_id, job in partition.jobs.items()
        if job.cancel is None and job.request.cancel_supported and covers(where, job.request)
    ]


def covers(where: Where, job: JobRequested) -> bool:
    return matches(where.queue, where.types, where.labels, where.scope, job)


def advanced(operation_id: str, matched: int) -> BulkPartAdvanced:
    return BulkPartAdvanced(LEDGER_QUEUE, operation_id, matched)


def end_part(partition: Partition, operation_id: str) -> tuple[Event, ...]:
    """The part's end, once all requests that were there before it have been read."""
    part = partition.bulk_parts[operation_id]
    if partition.requests < part.requests_end:
        return ()
    return (BulkPartEnded(LEDGER_QUEUE, operation_id, part.matched),)


def confirm(partition: Partition, command: ConfirmPart) -> tuple[Event, ...]:
    """In `_ledger`: one more partition is done; the last one ends the operation."""
    operation = partition.bulks.get(command.operation_id)
    if operation is None or command.partition in operation.confirmed:
        return ()
    confirmed = BulkPartConfirmed(
        LEDGER_QUEUE, command.operation_id, command.partition, command.matched
    )
    if len(operation.confirmed) + 1 < operation.event.partitions:
        return (confirmed,)
    matched = command.matched + sum(operation.confirmed.values())
    return (confirmed, BulkEnded(LEDGER_QUEUE, command.operation_id, matched))


def _says_which(where: Where) -> bool:
    """Whether it has a condition at all: `labels: {}` is none, and would be all jobs."""
    return bool(where.queue or where.types or where.labels) or where.scope is not None
