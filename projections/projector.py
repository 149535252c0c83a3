"""Applies batches of effective entries to the read models, rows and checkpoint in one step.

One transaction a batch: the checkpoint first, by compare-and-set (rivals wait for it, then see that
they are late), then the rows. New jobs and history are copied straight into their tables; jobs
that move go through a staging table and one update, folded to their last value before.

Measured on 2 cores, Postgres 18 with fsync, batches of 1,000 jobs: see `benchmark` in the tests'
support; figures stand in docs/decisions/0003.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, LiteralString, Self, TypeVar

import psycopg
import stamina
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
from ledger.domain.job import Job, Status, status
from ledger.log.crash_points import reach
from ledger.log.effective import Cursor
from projections.batches import Applied, Batch, advanced
from projections.checkpoints import CheckpointLost, Checkpoints, Connection, Superseded
from projections.copying import (
    command_row,
    document,
    first_history_row,
    history_row,
    new_job_row,
    open_job_row,
    staged_job_row,
)
from projections.gathering import Gathered, gather, touched_jobs
from projections.packing import pack_groups, unpack_job, unpack_request
from projections.schema import SCHEMA, connect
from projections.sql import statement
from projections.storable import storable, tamed, tamed_instant, tamed_job

STATEMENT_SECONDS = 30.0
ATTEMPTS_MAX = 5
"""Of one batch, when the connection is lost or a statement does not end."""
RECENT_MAX = 50_000
"""Open jobs whose folded values are kept, so that a log read in order seldom reads rows."""
COMMANDS_KEPT = timedelta(hours=1)
FORGET_EVERY = timedelta(seconds=30)
FORGOTTEN_MAX = 10_000
"""Rows of commands removed in one step."""
Answer = TypeVar("Answer")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATUSES = tuple(status.value for status in Status)


class ViewsUnavailable(Exception):
    """Postgres did not answer in several attempts; what was asked may be asked again."""


class ViewsBroken(Exception):
    """The stored rows are not those that the log makes up to the checkpoint: rebuild them."""


class _DoesNotFit(Exception):
    """The values that came with a batch are not what its events make of the stored rows."""


class _Standing(Struct):
    """What is known of a partition between batches."""

    cursor: Cursor
    at: Micros
    recent: dict[JobId, Job] = {}
    forgot_at: Micros = Micros(0)


class Projector:
    """Synchronous, one connection, one thread. Open with `with`, or `close` it."""

    def __init__(
        self,
        dsn: str,
        *,
        topic: str,
        schema: str = SCHEMA,
        statement_seconds: float = STATEMENT_SECONDS,
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._statement_seconds = statement_seconds
        self._checkpoints = Checkpoints(dsn, topic=topic, schema=schema)
        self._channel = channel(schema)
        self._connection: Connection | None = None
        self._standing: dict[int, _Standing] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._disconnect()
        self._checkpoints.close()

    def cursor(self, partition: int) -> Cursor:
        """Where to read on, as stored; begins the partition where nothing is.

        Raises `CheckpointLost`, `StoredByAnotherVersion`, `ViewsUnavailable`.
        """

        def load() -> Cursor:
            with self._transaction() as connection:
                return self._load(connection, partition).cursor

        return _persistently(load)

    def apply(self, batch: Batch) -> Applied:
        """All of the batch or nothing. A batch that was applied already is no news.

        Raises `Superseded` if the stored checkpoint is neither `batch.before` nor `batch.after`:
        read it again. Also `CheckpointLost`, `ViewsBroken`, `ViewsUnavailable`.
        """
        if not batch.items:
            return Applied(batch.partition, batch.before, 0, 0, 0, 0, False)
        try:
            return _persistently(lambda: self._apply_somehow(batch))
        except BaseException:
            self._standing.pop(batch.partition, None)
            raise

    def _apply_somehow(self, batch: Batch) -> Applied:
        """With the values given; else folded from the rows of the jobs that do not begin here; else
        from the rows of all (a job may be requested twice); else cut to what Postgres can hold."""
        if batch.jobs is not None:
            with suppress(_DoesNotFit, *_REFUSED):
                return self._apply(batch, batch.jobs)
        with suppress(_DoesNotFit, *_REFUSED):
            return self._apply(batch, None)
        try:
            with suppress(*_REFUSED):
                return self._apply(batch, None, anew=True)
            return self._apply(batch, None, anew=True, careful=True)
        except _DoesNotFit as error:
            partition = self._checkpoints.application(batch.partition)
            raise ViewsBroken(f"{partition} from offset {batch.before} on") from error

    # --- One transaction -------------------------------------------------------------------------
    def _apply(
        self,
        batch: Batch,
        jobs: Mapping[JobId, Job] | None,
        *,
        anew: bool = False,
        careful: bool = False,
    ) -> Applied:
        with self._transaction() as connection:
            standing = self._standing.get(batch.partition)
            if standing is None or anew or standing.cursor.offset != batch.before:
                standing = self._load(connection, batch.partition)
            if standing.cursor.offset != batch.before:
                if standing.cursor.offset == batch.after:
                    # Committed before the connection was lost, by us or by a rival: the same rows.
                    return Applied(batch.partition, batch.after, 0, 0, 0, 0, False)
                application = self._checkpoints.application(batch.partition)
                raise Superseded(application, batch.before, standing.cursor.offset)
            after = advanced(standing.cursor, batch.items)
            took_over = after.nonces != standing.cursor.nonces
            self._checkpoints.move(
                connection, batch.partition, batch.before, after, nonces_changed=took_over
            )
            rows, values = self._gathered(connection, batch, standing, jobs, anew=anew)
            written = _write(connection, batch.partition, rows, values, careful=careful)
            at = tamed_instant(rows.at)
            self._move_partition(connection, batch.partition, after, rows, at)
            forgot_at = _forget(connection, batch.partition, at, standing.forgot_at)
            reach("projector.before_commit")
        reach("projector.after_commit")
        recent = standing.recent
        if jobs is not None or careful or len(recent) > RECENT_MAX:
            recent = {}
        for job_id, job in rows.folded.items():
            if job.end is None:
                recent[job_id] = job
            else:
                recent.pop(job_id, None)
        self._standing[batch.partition] = _Standing(after, rows.at, recent, forgot_at)
        return Applied(
            batch.partition,
            after.offset,
            rows.entries,
            rows.events,
            written,
            rows.misfits,
            jobs is None,
        )

    def _gathered(
        self,
        connection: Connection,
        batch: Batch,
        standing: _Standing,
        jobs: Mapping[JobId, Job] | None,
        *,
        anew: bool,
    ) -> tuple[Gathered, Mapping[JobId, Job]]:
        if jobs is not None:
            rows = gather(batch.items, standing.at)
            if rows.strays or not rows.parts.keys() <= jobs.keys():
                raise _DoesNotFit
            return rows, jobs
        known = standing.recent
        touched = touched_jobs(batch.items, new_too=anew)
        wanted = [key for key in touched if key not in known]
        stored = _stored(connection, wanted)
        rows = gather(batch.items, standing.at, stored | known)
        return rows, rows.folded

    def _move_partition(
        self, connection: Connection, partition: int, after: Cursor, rows: Gathered, at: Micros
    ) -> None:
        name = "apply/move_partition" if rows.entries else "apply/move_partition_time"
        connection.execute(
            statement(name),
            {
                "partition": partition,
                "entry": after.entry,
                "at": instant(at),
                "commands": rows.commands_read,
                "requests": rows.requests_read,
                "misfits": rows.misfits,
                "unknown": rows.unknown,
            },
            prepare=True,
        )
        connection.execute(
            statement("apply/notify"),
            {"channel": self._channel, "position": f"{partition}:{after.offset - 1}"},
            prepare=True,
        )

    def _load(self, connection: Connection, partition: int) -> _Standing:
        cursor = self._checkpoints.read(connection, partition)
        if cursor is None:
            cursor = self._checkpoints.begin(connection, partition)
        row = connection.execute(
            statement("apply/partition_time"), {"partition": partition}
        ).fetchone()
        if row is None:
            raise CheckpointLost(f"partition {partition} was begun and is not there")
        standing = _Standing(cursor, row[0])
        self._standing[partition] = standing
        return standing

    # --- The connection --------------------------------------------------------------------------
    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        connection = self._connected()
        try:
            yield connection
            connection.commit()
        except BaseException as error:
            with suppress(psycopg.Error):
                connection.rollback()
            if connection.closed or isinstance(error, psycopg.InterfaceError):
                self._disconnect()
                self._standing.clear()
            raise

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = connect(
                self._dsn,
                schema=self._schema,
                name="ledger projector",
                statement_seconds=self._statement_seconds,
            )
            connection.execute(statement("apply/stage").encode())
            connection.commit()
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# --- Rows ----------------------------------------------------------------------------------------
def _write(
    connection: Connection,
    partition: int,
    rows: Gathered,
    values: Mapping[JobId, Job],
    *,
    careful: bool,
) -> int:
    """Returns how many rows of jobs were written. Raises `_DoesNotFit`."""
    counts: Counter[tuple[str, str]] = Counter()
    written = _write_jobs(connection, partition, rows, values, counts, careful=careful)
    for queue in rows.queues:
        counts[storable(queue), "pending"] += 0
    _count(connection, partition, counts)
    _write_commands(connection, partition, rows)
    _write_runtimes(connection, partition, rows)
    _write_operations(connection, partition, rows)
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
    careful: bool,
) -> int:
    """Hot: once a job, plain and in one piece. 12-14 us of Python a job that begins and ends."""
    if not rows.parts:
        return 0
    new: list[bytes] = []
    opened: list[bytes] = []
    staged: list[bytes] = []
    history: list[bytes] = []
    closing = moving = 0
    for job_id, part in rows.parts.items():
        job = values[job_id]
        events = part.events
        version = job.version
        groups: Any = part.groups
        if careful:
            job, groups = tamed_job(job), tamed(groups)
        if version == events:
            new.append(new_job_row(job, partition, part.offset))
            counts[job.request.queue, status(job)] += 1
            if job.end is None:
                opened.append(open_job_row(job))
            history.append(first_history_row(job.request, version, pack_groups(groups)))
        elif version < events:
            raise _DoesNotFit
        else:
            staged.append(staged_job_row(job, events, part.offset))
            if job.end is None:
                moving += 1
            else:
                closing += 1
            first = version - events + 1
            history.append(history_row(job_id, first, version, pack_groups(groups)))
    try:
        _copy(connection, "apply/copy_new_jobs", new)
    except errors.UniqueViolation as error:
        raise _DoesNotFit from error
    _copy(connection, "apply/copy_open_jobs", opened)
    if staged:
        _copy(connection, "apply/copy_staged_jobs", staged)
        found = 0
        for queue, old, now, many in connection.execute(
            statement("apply/update_jobs"), prepare=True
        ):
            found += many
            if old != now:
                counts[queue, old] -= many
                counts[queue, now] += many
        if found != len(staged):
            raise _DoesNotFit
        if closing:
            connection.execute(statement("apply/close_jobs"), prepare=True)
        if moving:
            connection.execute(statement("apply/move_open_jobs"), prepare=True)
    _copy(connection, "apply/copy_history", history)
    return len(rows.parts)


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


def _stored(connection: Connection, ids: Iterable[JobId]) -> dict[JobId, Job]:
    """Without payload and output, which no fold looks at. 9 us a job."""
    wanted = {storable(job_id): job_id for job_id in ids}
    if not wanted:
        return {}
    found = connection.cursor(binary=True).execute(
        statement("apply/stored_jobs"), {"ids": list(wanted)}, prepare=True
    )
    jobs = {}
    for name, state, request in found:
        asked = unpack_request(wanted[name], request, None)
        jobs[wanted[name]] = unpack_job(asked, state, None)
    return jobs


def _forget(connection: Connection, partition: int, at: Micros, forgot_at: Micros) -> Micros:
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


def instant(at: Micros) -> datetime:
    return EPOCH + timedelta(microseconds=tamed(at))


def channel(schema: str) -> str:
    """On which each commit says `partition:offset`, for those that wait for a position."""
    return f"{schema}_positions"


_REFUSED = (
    errors.DataError,
    errors.ProgramLimitExceeded,
    struct.error,
    OverflowError,
    UnicodeEncodeError,
)


def _persistently(ask: Callable[[], Answer]) -> Answer:
    """Again after a lost connection or a statement that did not end, a bounded number of times."""
    try:
        for attempt in stamina.retry_context(
            on=_is_passing, attempts=ATTEMPTS_MAX, timeout=60.0, wait_initial=0.1, wait_max=5.0
        ):
            with attempt:
                return ask()
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise ViewsUnavailable(str(error)) from error
    raise AssertionError("unreachable")


def _is_passing(error: Exception) -> bool:
    """Whether a later attempt may end otherwise."""
    if isinstance(error, _REFUSED):
        return False
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
