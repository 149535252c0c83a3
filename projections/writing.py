"""Writes what batches come to, within the projector's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from projections.gathering import CommandRow, Gathered, gives_way
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


class Flush(Struct, frozen=True, gc=False):
    """What one batch comes to."""

    partition: int
    position: int
    """Where the batch ends."""
    rows: Gathered
    values: Mapping[JobId, Job]
    """Of every job in `rows`, as the batch leaves it."""


class Written(Struct, frozen=True, gc=False):
    """How many rows of jobs."""

    opened: int
    """That begin and are open."""
    ended: int
    """That had been open before."""


Counts = Counter[tuple[int, str, str]]
"""By partition, queue and status: how many jobs more."""


def write(connection: Connection, flushes: Sequence[Flush]) -> Written:
    """Each of another partition; as many statements for all as for one. Raises `DoesNotFit`."""
    counts: Counts = Counter()
    written = _write_jobs(connection, flushes, counts)
    for flush in flushes:
        for queue in flush.rows.queues:
            counts[flush.partition, queue, "pending"] += 0
    _count(connection, counts)
    _write_commands(connection, flushes)
    for flush in flushes:
        _write_runtimes(connection, flush.partition, flush.rows)
        _write_operations(connection, flush.partition, flush.rows)
        for said in flush.rows.operators:
            change, said_values = operators_change(said, flush.partition)
            connection.execute(statement(change), said_values)
        _write_templates(connection, flush.partition, flush.rows)
    return written


def _write_templates(connection: Connection, partition: int, rows: Gathered) -> None:
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


class _Jobs:
    """Their rows as they are copied, of all flushes."""

    def __init__(self) -> None:
        self.opened: list[bytes] = []
        self.ended: list[bytes] = []
        self.staged: list[bytes] = []
        self.history: list[bytes] = []
        self.opened_ids: list[str] = []
        self.ended_ids: list[str] = []
        self.born: list[int] = []
        """Where those that begin do, in the order of the flushes."""
        self.ending = 0
        """How many of the staged have ended, now or before."""

    def add(self, flush: Flush, counts: Counts) -> None:
        """Hot: once a job, plain and in one piece. 10-12 us of Python a job that begins
        and ends, as many each time that one moves."""
        partition, position = flush.partition, flush.position
        values = flush.values
        for job_id, part in flush.rows.parts.items():
            job = values[job_id]
            events = part.events
            version = job.version
            packed = pack_groups(part.groups)
            state = None if is_told_by_history(job) else pack_state(job)
            if version > events:
                self.staged.append(staged_job_row(job, events, state, packed))
                self.ending += job.end is not None
                continue
            if version < events:
                raise DoesNotFit
            born = part.first_offset
            self.born.append(born)
            if job.end is None:
                self.opened.append(open_job_row(job, partition, born, state))
                self.opened_ids.append(storable(job_id))
            else:
                self.ended.append(ended_job_row(job, partition, born, state))
                self.ended_ids.append(storable(job_id))
            counts[partition, job.request.queue, status(job)] += 1
            self.history.append(
                first_history_row(
                    *(job.request, version, packed),
                    partition=partition,
                    born=born,
                    position=position,
                )
            )


def _write_jobs(connection: Connection, flushes: Sequence[Flush], counts: Counts) -> Written:
    jobs = _Jobs()
    lasts = []
    for flush in flushes:
        jobs.add(flush, counts)
        lasts.append(len(jobs.born))
    try:
        _copy(connection, "apply/copy_open_jobs", jobs.opened)
        _copy(connection, "apply/copy_ended_jobs", jobs.ended)
    except errors.UniqueViolation as error:
        raise DoesNotFit from error
    where = {
        "partitions": [flush.partition for flush in flushes],
        "positions": [flush.position for flush in flushes],
        "newest_max": NEWEST_MAX,
    }
    if jobs.history:
        _copy(connection, "apply/copy_history", jobs.history)
        begun = {
            **where,
            "firsts": [last + 1 for last in (0, *lasts[:-1])],
            "lasts": lasts,
            "born": _array(map(str, jobs.born)),
            "opened": _array(jobs.opened_ids),
            "ended": _array(jobs.ended_ids),
        }
        twice = connection.execute(statement("apply/note_begun"), begun, prepare=True).fetchone()
        if twice != (False,):
            raise DoesNotFit
    if jobs.staged:
        _copy(connection, "apply/copy_staged_jobs", jobs.staged)
        many, ending = len(jobs.staged), jobs.ending
        found = 0
        for name, wanted in (
            ("apply/move_open_jobs", many - ending),
            ("apply/end_jobs", ending),
            ("apply/change_ended_jobs", ending),
        ):
            if not wanted or found == many:
                continue
            moved = connection.execute(statement(name), where, prepare=True)
            for partition, queue, old, now, these in moved:
                found += these
                if old != now:
                    counts[partition, queue, old] -= these
                    counts[partition, queue, now] += these
        if found != many:
            raise DoesNotFit
    return Written(len(jobs.opened), jobs.ending)


def _array(items: Iterable[str]) -> str:
    """As Postgres reads one: psycopg takes ten times as long for a list, 1.3 us an item."""
    quoted = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    return '{"' + '","'.join(quoted) + '"}' if quoted else "{}"


def _copy(connection: Connection, name: str, rows: list[bytes]) -> None:
    if rows:
        with connection.cursor() as cursor, cursor.copy(statement(name)) as copy:
            copy.write(document(rows))


def _count(connection: Connection, counts: Counts) -> None:
    by_queue: dict[str, dict[str, int]] = {}
    partitions: dict[str, int] = {}
    for (partition, queue, where), change in counts.items():
        name = storable(queue)
        # Two queues that are equal once they are storable would meet in one upsert.
        partitions.setdefault(name, partition)
        by_queue.setdefault(name, dict.fromkeys(STATUSES, 0))[where] += change
    if not by_queue:
        return
    names = sorted(by_queue)  # Of two that count the same, neither holds what the other waits for.
    values: dict[str, Any] = {
        status: [by_queue[name][status] for name in names] for status in STATUSES
    }
    values |= {"name": names, "partition": [partitions[name] for name in names]}
    connection.execute(statement("apply/count_queues"), values, prepare=True)


def _write_commands(connection: Connection, flushes: Sequence[Flush]) -> None:
    staged: dict[str, tuple[int, CommandRow]] = {}
    for flush in flushes:
        for row in flush.rows.commands.values():
            # Two ids that are equal once they are storable would meet in one upsert.
            name = storable(row.command_id)
            known = staged.get(name)
            if known is None or gives_way(known[1], row):
                staged[name] = (flush.partition, row)
    if not staged:
        return
    _copy(
        connection,
        "apply/copy_staged_commands",
        [
            command_row(
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
            for partition, row in staged.values()
        ],
    )
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
