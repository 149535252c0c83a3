"""Writes what a batch comes to, within the projector's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, LiteralString

from msgspec import Struct
from psycopg import errors

from ledger.domain.events import (
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
)
from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job, status
from ledger.domain.steps import JOB_STATUSES
from projections.checkpoints import Connection
from projections.copying import (
    command_row,
    document,
    ended_job_row,
    first_history_row,
    open_job_row,
    staged_job_row,
)
from projections.gathering import Gathered
from projections.operators import operators_change
from projections.packing import pack_groups, pack_state
from projections.sql import statement
from projections.storable import instant, storable, tamed, tamed_instant
from projections.unpacking import is_told_by_history, stored_job

COMMANDS_KEPT = timedelta(hours=1)
FORGET_EVERY = timedelta(seconds=30)
FORGOTTEN_MAX = 10_000
"""Rows of commands removed in one step."""
NEWEST_MAX = 600
"""Bytes of history in a job's own row; then they get a row of their own."""
STATUSES = tuple(status.value for status in JOB_STATUSES)


class DoesNotFit(Exception):
    """The values that came with a batch are not what its events make of the stored rows."""


class Written(Struct, frozen=True, gc=False):
    """How many rows."""

    jobs: int
    opened: int
    """Of these, jobs that begin and are open."""
    ended: int
    """Of these, jobs that had been open before."""


def write(
    connection: Connection,
    partition: int,
    rows: Gathered,
    values: Mapping[JobId, Job],
    *,
    position: int,
) -> Written:
    """`position` is where the batch ends. Raises `DoesNotFit`."""
    counts: Counter[tuple[str, str]] = Counter()
    written = _write_jobs(connection, partition, rows, values, counts, position=position)
    for queue in rows.queues:
        counts[storable(queue), "pending"] += 0
    _count(connection, partition, counts)
    _write_commands(connection, partition, rows)
    _write_runtimes(connection, partition, rows)
    _write_operations(connection, partition, rows)
    for said in rows.operators:
        change, said_values = operators_change(said, partition)
        connection.execute(statement(change), said_values)
    for row in rows.templates:
        event = row.event
        connection.execute(
            statement("apply/put_template"),
            {
                "queue": storable(event.queue),
                "type": storable(event.type),
                "version": tamed(event.version),
                "partition": partition,
                "template": bytes(event.template),
                "put_at": instant(row.at),
                "put_by": storable(row.by),
            },
        )
    return written


def _write_jobs(
    connection: Connection,
    partition: int,
    rows: Gathered,
    values: Mapping[JobId, Job],
    counts: Counter[tuple[str, str]],
    *,
    position: int,
) -> Written:
    """Hot: once a job, plain and in one piece. 10-12 us of Python a job that begins
    and ends, as many each time that one moves."""
    if not rows.parts:
        return Written(0, 0, 0)
    opened: list[bytes] = []
    ended: list[bytes] = []
    staged: list[bytes] = []
    history: list[bytes] = []
    born_at: list[int] = []
    opened_ids: list[str] = []
    ended_ids: list[str] = []
    ending = 0
    for job_id, part in rows.parts.items():
        job = values[job_id]
        events = part.events
        version = job.version
        packed = pack_groups(part.groups)
        state = None if is_told_by_history(job) else pack_state(job)
        if version > events:
            staged.append(staged_job_row(job, events, state, packed))
            ending += job.end is not None
            continue
        if version < events:
            raise DoesNotFit
        born = part.first_offset
        born_at.append(born)
        if job.end is None:
            opened.append(open_job_row(job, partition, born, state))
            opened_ids.append(storable(job_id))
        else:
            ended.append(ended_job_row(job, partition, born, state))
            ended_ids.append(storable(job_id))
        counts[job.request.queue, status(job)] += 1
        history.append(
            first_history_row(
                *(job.request, version, packed), partition=partition, born=born, position=position
            )
        )
    try:
        _copy(connection, "apply/copy_open_jobs", opened)
        _copy(connection, "apply/copy_ended_jobs", ended)
    except errors.UniqueViolation as error:
        raise DoesNotFit from error
    where = {"partition": partition, "position": position, "newest_max": NEWEST_MAX}
    if history:
        _copy(connection, "apply/copy_history", history)
        begun = {**where, "born": born_at, "opened": opened_ids, "ended": ended_ids}
        twice = connection.execute(statement("apply/note_begun"), begun, prepare=True).fetchone()
        if twice != (False,):
            raise DoesNotFit
    if staged:
        _copy(connection, "apply/copy_staged_jobs", staged)
        found = 0
        for name, wanted in (
            ("apply/move_open_jobs", len(staged) - ending),
            ("apply/end_jobs", ending),
            ("apply/change_ended_jobs", ending),
        ):
            if not wanted or found == len(staged):
                continue
            for queue, old, now, many in connection.execute(statement(name), where, prepare=True):
                found += many
                if old != now:
                    counts[queue, old] -= many
                    counts[queue, now] += many
        if found != len(staged):
            raise DoesNotFit
    return Written(len(rows.parts), len(opened), ending)


def _copy(connection: Connection, name: str, rows: list[bytes]) -> None:
    if rows:
        with connection.cursor() as cursor, cursor.copy(statement(name)) as copy:
            copy.write(document(rows))


def _count(connection: Connection, partition: int, counts: Mapping[tuple[str, str], int]) -> None:
    by_queue: dict[str, dict[str, int]] = {}
    for (queue, where), change in counts.items():
        by_queue.setdefault(storable(queue), dict.fromkeys(STATUSES, 0))[where] += change
    statement_ = statement("apply/count_queue")
    for queue in sorted(by_queue):
        values = {"name": queue, "partition": partition, **by_queue[queue]}
        connection.execute(statement_, values, prepare=True)


def _write_commands(connection: Connection, partition: int, rows: Gathered) -> None:
    if not rows.commands:
        return
    staged = {}
    for row in rows.commands.values():
        # Two ids that are equal once they are storable would meet in one upsert.
        staged[storable(row.command_id)] = command_row(
            partition,
            row.position,
            tamed_instant(row.at),
            command_id=row.command_id,
            outcome=row.outcome,
            detail=row.detail,
            code=row.code,
            job_id=row.job_id,
            operation_id=row.operation_id,
        )
    _copy(connection, "apply/copy_staged_commands", list(staged.values()))
    connection.execute(statement("apply/put_commands"), prepare=True)


def _write_runtimes(connection: Connection, partition: int, rows: Gathered) -> None:
    for end in rows.runtime_ends:
        connection.execute(
            statement("apply/end_runtime"),
            {
                "queue": storable(end.event.queue),
                "runtime_id": storable(end.event.runtime_id),
                "session": storable(end.event.session),
                "ended_at": instant(end.at),
                "why": end.event.why,
                "position": end.position,
            },
            prepare=True,
        )
    for row in rows.runtimes.values():
        event = row.event
        connection.execute(
            statement("apply/start_runtime"),
            {
                "queue": storable(event.queue),
                "runtime_id": storable(event.runtime_id),
                "partition": partition,
                "session": storable(event.session),
                "types": [storable(one) for one in event.types],
                "period": timedelta(microseconds=min(max(event.period_us, 0), _PERIOD_MAX)),
                "started_at": instant(row.started_at),
                "ended_at": None if row.ended_at is None else instant(row.ended_at),
                "why": row.why,
                "position": row.position,
            },
            prepare=True,
        )


_PERIOD_MAX = 365 * 86_400 * 1_000_000


def _write_operations(connection: Connection, partition: int, rows: Gathered) -> None:
    for step in rows.operations:
        event = step.event
        values: dict[str, Any] = {
            "id": storable(event.operation_id),
            "at": instant(step.at),
            "partition": partition,
        }
        name: LiteralString
        match event:
            case BulkStarted():
                name = "apply/start_operation"
                values |= {
                    "kind": event.kind,
                    "asked": bytes(event.where),
                    "reason": storable(event.reason, 16_384),
                    "asked_by": storable(event.by),
                    "partitions": event.partitions,
                }
            case BulkPartConfirmed():
                name = "apply/confirm_operation"
                values["matched"] = event.matched
            case BulkEnded():
                name = "apply/end_operation"
                values["matched"] = event.matched
            case BulkPartStarted():
                name = "apply/start_part"
                values["requests_end"] = tamed(event.requests_end)
            case BulkPartAdvanced():
                name = "apply/advance_part"
                values["matched"] = event.matched
            case BulkPartEnded():
                name = "apply/end_part"
                values["matched"] = event.matched
        connection.execute(statement(name), values)


def stored_jobs(connection: Connection, ids: Iterable[JobId]) -> dict[JobId, Job]:
    """Without payload and output, which no fold looks at. 9 us a job."""
    wanted = {storable(job_id): job_id for job_id in ids}
    if not wanted:
        return {}
    found = connection.cursor(binary=True).execute(
        statement("apply/stored_jobs"), {"ids": list(wanted)}, prepare=True
    )
    jobs = {}
    for name, *row in found:
        jobs[wanted[name]] = stored_job(wanted[name], *row)
    return jobs


def forget_commands(
    connection: Connection, partition: int, at: Micros, forgot_at: Micros
) -> Micros:
    """Outcomes of commands older than an hour, now and then, by the log's own time."""
    if at - forgot_at < FORGET_EVERY // timedelta(microseconds=1):
        return forgot_at
    removed = connection.execute(
        statement("apply/forget_commands"),
        {
            "partition": partition,
            "before": instant(at) - COMMANDS_KEPT,
            "many": FORGOTTEN_MAX,
        },
    )
    return forgot_at if removed.rowcount == FORGOTTEN_MAX else at
