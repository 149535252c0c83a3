"""The read side, asynchronous. SQL lies in `sql/queries`, parameters only; rows become the types of
`answers` at once."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, LiteralString, TypeVar

import msgspec
import orjson
import psycopg
import psycopg_pool
from msgspec import Raw, Struct
from psycopg import IsolationLevel, errors
from psycopg_pool import AsyncConnectionPool

from ledger.domain.commands import RemoveObjects, Where
from ledger.domain.events import Labels, decoded
from ledger.domain.ids import Micros
from ledger.domain.job import TERMINAL, Job, Status
from projections import operator_reads
from projections.answers import (
    Attempt,
    CommandOutcome,
    Consumed,
    History,
    HistoryEvent,
    JobFilter,
    Jobs,
    JobsPage,
    ModelState,
    Operation,
    QueueHeld,
    QueueState,
    Rate,
    Removable,
    Removal,
    Rows,
    RuntimeState,
    ScheduleState,
    Stored,
    TemplateVersion,
)
from projections.attempts import attempts_of
from projections.change_feed import (
    ALL_OF_IT,
    ChangedJob,
    Changes,
    Place,
    changed_job,
    changes,
    history_event,
)
from projections.packing import Logical, unpack_groups
from projections.position_watch import PositionWatch
from projections.projector import channel
from projections.schema import SCHEMA, SILENCE_SECONDS, BoundedAsyncConnection, settings_of
from projections.sql import statement
from projections.storable import instant, storable
from projections.unpacking import ROW_FIELDS, folded, stored_job
from projections.writing import STATUSES

Order = Literal["-created_at", "created_at", "priority"]
Connection = BoundedAsyncConnection
Pool = AsyncConnectionPool[Connection]
T = TypeVar("T")

EXACT_MAX = 10_000
"""More matches than this are not counted, but estimated."""
HISTORY_ROWS_MAX = 500
"""Of one job, read at a time."""
WAITING_MAX = 500
"""Reads that wait for a connection; more are turned away at once."""
_ORDERS: dict[Order, LiteralString] = {
    "-created_at": "newest",
    "created_at": "oldest",
    "priority": "priority",
}
_TERMINAL = frozenset(status.value for status in TERMINAL)
_OPEN = frozenset(STATUSES) - _TERMINAL
_BADLY = _TERMINAL - {Status.SUCCEEDED.value}


class BadCursor(ValueError):
    """The cursor is not one that a list in this order gave out."""


class ReadsUnavailable(Exception):
    """Postgres did not answer in time; nothing is known."""


@asynccontextmanager
async def open_reads(
    dsn: str, *, schema: str = SCHEMA, connections_max: int = 8, seconds_max: float = 5.0
) -> AsyncIterator[Reads]:
    """A bounded pool and its reads; closes both. No statement runs longer than `seconds_max`.

    Does not wait for Postgres: a read that cannot reach it raises `ReadsUnavailable`.
    """

    async def configure(connection: Connection) -> None:
        connection.silence_seconds_max = seconds_max + SILENCE_SECONDS
        await connection.execute(settings_of(schema, seconds_max))
        await connection.execute("SET jit = off")

    pool: Pool = AsyncConnectionPool(
        dsn,
        connection_class=Connection,
        min_size=1,
        max_size=connections_max,
        max_waiting=WAITING_MAX,
        timeout=seconds_max,
        open=False,
        configure=configure,
        kwargs={"autocommit": True, "application_name": "ledger reads", "connect_timeout": 5},
    )
    await pool.open(wait=False)
    reads = Reads(pool, dsn=dsn, schema=schema)
    try:
        yield reads
    finally:
        await reads.close()
        await pool.close()


class _After(Struct, frozen=True, array_like=True):
    """The last row of a page."""

    order: Order
    created_at: Micros
    job_id: str
    priority: int


class Reads:
    """Every method may raise `ReadsUnavailable`. Ids of any text are fine: what cannot exist is
    not found. Made by `open_reads`."""

    def __init__(self, pool: Pool, *, dsn: str, schema: str = SCHEMA) -> None:
        self._pool = pool
        self._watch = PositionWatch(dsn, channel(schema), self._position)

    async def close(self) -> None:
        await self._watch.close()

    # --- Jobs ------------------------------------------------------------------------------------
    async def job(self, job_id: str, *, even_erased: bool = False) -> Stored | None:
        return (await self.jobs_by_id((job_id,), even_erased=even_erased)).get(job_id)

    async def jobs_by_id(
        self, job_ids: Sequence[str], *, even_erased: bool = False
    ) -> dict[str, Stored]:
        """Those that exist, from one snapshot."""
        wanted = {storable(job_id): job_id for job_id in job_ids}
        values = {"ids": list(wanted), "even_erased": even_erased}
        rows = await self._rows("queries/stored", values)
        found = {}
        for name, *row, partition, offset in rows:
            job_id = wanted[name]
            found[job_id] = Stored(stored_job(job_id, *row), partition, offset)
        return found

    async def jobs(
        self,
        where: JobFilter = JobFilter(),  # noqa: B008 (frozen)
        *,
        order: Order = "-created_at",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Jobs:
        """By keyset: what is created meanwhile moves no page. Raises `BadCursor`."""
        after = None if cursor is None else _after(cursor, order)
        values = _conditions(where) | {
            "after_at": None if after is None else instant(after.created_at),
            "after_id": None if after is None else after.job_id,
            "after_priority": None if after is None else after.priority,
            "many": limit + 1,
            "skip": 0,
        }
        async with self._snapshot() as connection:
            rows = await _fetch(connection, _list_name(order), values)
            positions = await _fetch(connection, "queries/positions", {})
        next_cursor = None
        if len(rows) > limit:
            *_, priority, created_at = rows[limit - 1]
            next_cursor = _cursor(_After(order, created_at, rows[limit - 1][0], priority))
        return Jobs(_jobs(rows[:limit]), next_cursor, dict(positions))

    async def jobs_page(
        self,
        where: JobFilter = JobFilter(),  # noqa: B008 (frozen)
        *,
        order: Order = "-created_at",
        page: int = 1,
        page_size: int = 50,
    ) -> JobsPage:
        conditions = _conditions(where)
        values = conditions | {
            "after_at": None,
            "after_id": None,
            "after_priority": None,
            "many": page_size,
            "skip": (page - 1) * page_size,
        }
        async with self._snapshot() as connection:
            rows = await _fetch(connection, _list_name(order), values)
            [(total,)] = await _fetch(
                connection, "queries/jobs_count", conditions | {"many": EXACT_MAX + 1}
            )
            exact = total <= EXACT_MAX
            if not exact:
                [(plan,)] = await _fetch(connection, "queries/jobs_estimate", conditions)
                total = max(total, int(plan[0]["Plan"]["Plan Rows"]))
            positions = await _fetch(connection, "queries/positions", {})
        return JobsPage(_jobs(rows), page, page_size, total, exact, dict(positions))

    async def poll(self, queues: Sequence[str], types: Sequence[str], limit: int) -> Jobs:
        """Pending jobs that are due, by priority, then as they wait; nothing is taken."""
        values = {"queues": _texts(queues), "types": _texts(types), "many": limit}
        async with self._snapshot() as connection:
            rows = await _fetch(connection, "queries/poll", values)
            positions = await _fetch(connection, "queries/positions", {})
        return Jobs(_jobs(rows), None, dict(positions))

    async def count_matching(self, where: Where) -> int:
        """Open jobs that a bulk cancel with this `where` would reach now."""
        values = _conditions(
            JobFilter(
                statuses=tuple(sorted(_OPEN)),
                queues=() if where.queue is None else (where.queue,),
                types=where.types or (),
                labels=where.labels or {},
                scope=where.scope,
            )
        )
        if where.types == ():
            return 0
        [(many,)] = await self._rows("queries/count_matching", values)
        return int(many)

    # --- What is to be cleaned up ----------------------------------------------------------------
    async def removable(
        self,
        before: Micros,
        partitions: Sequence[int],
        *,
        after: tuple[Micros, str] = (Micros(0), ""),
        limit: int = 500,
    ) -> tuple[Removable, ...]:
        """Jobs whose result, or which themselves, have outlived their time, and those of which
        something is to be deleted; the longest due first."""
        values = {
            "before": instant(before),
            "partitions": list(partitions),
            "after_at": instant(after[0]),
            "after_id": after[1],
            "many": limit,
        }
        rows = await self._rows("queries/removable", values)
        return tuple(Removable(stored_job(*row), due_at) for *row, due_at in rows)

    async def owned(
        self, labels: Labels, until: Micros, *, after: str = "", limit: int = 500
    ) -> tuple[Job, ...]:
        """Jobs with these labels, created by then, that refer to objects; by id."""
        values = {
            "labels": _labels(labels),
            "until": instant(until),
            "after": after,
            "many": limit,
        }
        return tuple(stored_job(*row) for row in await self._rows("queries/owned", values))

    async def referred(self, keys: Sequence[str]) -> frozenset[str]:
        """Of these objects those that some job refers to."""
        rows = await self._rows("queries/referred", {"keys": [storable(key) for key in keys]})
        return frozenset(key for (key,) in rows)

    async def removals(self, limit: int = 100) -> tuple[Removal, ...]:
        """Of owners' objects, that have not ended; oldest first."""
        rows = await self._rows("queries/removals", {"many": limit})
        return tuple(
            Removal(operation_id, asked, started_at)
            for operation_id, content, started_at in rows
            if (asked := decoded(Raw(content), RemoveObjects)) is not None
        )

    # --- One job's past --------------------------------------------------------------------------
    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 100) -> History | None:
        """Also of a job that was erased. None: no such job."""
        async with self._snapshot() as connection:
            stored = await _stored(connection, job_id, even_erased=True)
            if stored is None:
                return None
            items: list[HistoryEvent] = []
            async for logical in _history(connection, stored.job, after_seq, limit + 1):
                items.append(history_event(logical, stored.partition))
                if len(items) > limit:
                    break
        more = len(items) > limit
        shown = tuple(items[:limit])
        return History(shown, shown[-1].seq if more else None, stored.partition, stored.offset)

    async def as_of(
        self, job_id: str, *, at: Micros | None = None, version: int | None = None
    ) -> Stored | None:
        """The job after its last event at or before `at`, or at `version`; its offset is that
        event's. None: it did not exist then."""
        job: Job | None = None
        offset = -1
        async with self._snapshot() as connection:
            stored = await _stored(connection, job_id)
            if stored is None:
                return None
            async for logical in _history(connection, stored.job, 0, HISTORY_ROWS_MAX):
                late = at is not None and logical.at > at
                if late or (version is not None and logical.seq > version):
                    break
                job = folded(job, logical.event, logical.at)
                offset = logical.offset
        if job is None or (version is not None and job.version < version):
            return None
        return Stored(job, stored.partition, offset)

    async def attempts(self, job_id: str) -> tuple[Attempt, ...] | None:
        """Oldest first. None: no such job."""
        async with self._snapshot() as connection:
            stored = await _stored(connection, job_id)
            if stored is None:
                return None
            history = _history(connection, stored.job, 0, HISTORY_ROWS_MAX)
            return attempts_of([logical async for logical in history])

    # --- What changes ----------------------------------------------------------------------------
    def follow(self, stir: Callable[[int, int], None]) -> None:
        """From now on `stir` is called with each partition and offset that the views reach, as far
        as that is heard: positions tell for sure."""
        self._watch.follow(stir)

    async def changes(self, partition: int, after: Place, until: int, *, rows_max: int) -> Changes:
        """What happened to jobs after a place, up to an offset that the views have reached. Where
        more jobs than so many moved: up to the end of the flush that moved the last of them."""
        offset, index = after
        values = {
            "partition": partition,
            "after": offset if index == ALL_OF_IT else offset - 1,
            "until": until,
            "many": rows_max,
        }
        rows = await self._rows("queries/changes", values)
        return await changes(rows, partition, after=after, until=until)

    async def changed_jobs(self, versions: Mapping[str, int]) -> list[ChangedJob]:
        """Those of the jobs named that have gone on beyond the version named."""
        wanted = {storable(job_id): version for job_id, version in versions.items()}
        values = {"ids": list(wanted), "versions": list(wanted.values())}
        rows = await self._rows("queries/changed_jobs", values)
        return [changed_job(row, wanted[row[0]]) for row in rows]

    # --- What is of no single job ----------------------------------------------------------------
    async def queue(self, name: str) -> QueueHeld | None:
        """None: it was never used."""
        async with self._snapshot() as connection:
            return await operator_reads.queue_held(partial(_fetch, connection), name)

    async def queues(self, names: Sequence[str] = ()) -> Rows[QueueState]:
        """By name."""
        return await self._snapped(lambda fetch: operator_reads.queues(fetch, names))

    async def runtimes(self, queues: Sequence[str] = ()) -> Rows[RuntimeState]:
        """Those that live and those that ended within a day of the log's time."""

        async def read(fetch: operator_reads.Fetch) -> tuple[RuntimeState, ...]:
            return tuple(
                RuntimeState(queue, runtime_id, session, tuple(types), *rest)
                for queue, runtime_id, session, types, *rest in await fetch(
                    "queries/runtimes", {"queues": _texts(queues)}
                )
            )

        return await self._snapped(read)

    async def rates(self, minutes: int, queue: str | None = None) -> tuple[Rate, ...]:
        """Of the last minutes, the oldest first; what the reaction `rates` has counted so far."""
        rows = await self._rows("queries/rates", {"minutes": minutes, "queue": _text(queue)})
        return tuple(Rate(*row) for row in rows)

    async def command(self, command_id: str) -> CommandOutcome | None:
        rows = await self._rows("queries/command", {"id": storable(command_id)})
        return CommandOutcome(*rows[0]) if rows else None

    async def template(
        self, queue: str, job_type: str, version: int | None = None
    ) -> TemplateVersion | None:
        """The newest where no version is named."""
        return await operator_reads.template(self._rows, queue, job_type, version)

    async def templates(
        self, queues: Sequence[str] = (), types: Sequence[str] = ()
    ) -> Rows[TemplateVersion]:
        """The newest of each, by queue and type."""
        return await self._snapped(lambda fetch: operator_reads.templates(fetch, queues, types))

    async def schedule(self, queue: str, name: str) -> ScheduleState | None:
        found = await operator_reads.schedules(self._rows, (queue,), name=name)
        return found[0] if found else None

    async def schedules(
        self,
        queues: Sequence[str] = (),
        types: Sequence[str] = (),
        enabled: bool | None = None,
    ) -> Rows[ScheduleState]:
        """By queue and name."""
        return await self._snapped(
            lambda fetch: operator_reads.schedules(fetch, queues, types, enabled)
        )

    async def model(self, name: str) -> ModelState | None:
        found = await operator_reads.models(self._rows, name)
        return found[0] if found else None

    async def models(self) -> Rows[ModelState]:
        """By name."""
        return await self._snapped(operator_reads.models)

    async def open_types(self, queue: str) -> list[str]:
        """Of the queue's jobs that have not ended."""
        rows = await self._rows("queries/open_types", {"queue": storable(queue)})
        return [job_type for (job_type,) in rows]

    async def operation(self, operation_id: str) -> Operation | None:
        rows = await self._rows("queries/operation", {"id": storable(operation_id)})
        if not rows:
            return None
        name, kind, where, *rest = rows[0]
        return Operation(name, kind, Raw(where), *rest)

    # --- Positions -------------------------------------------------------------------------------
    async def positions(self) -> dict[int, int]:
        """Per partition the offset of the last record that the views include; -1: none."""
        return dict(await self._rows("queries/positions", {}))

    async def consumed(self, partition: int) -> Consumed | None:
        rows = await self._rows("queries/consumed", {"partition": partition})
        return Consumed(*rows[0]) if rows else None

    async def reached(self, partition: int, offset: int, seconds_max: float) -> bool:
        """Waits until the views include `offset` of the partition; False: they did not in time."""
        return await self._watch.reached(partition, offset, seconds_max)

    async def _position(self, partition: int) -> int | None:
        rows = await self._rows("queries/position", {"partition": partition})
        return rows[0][0] if rows else None

    # --- The pool --------------------------------------------------------------------------------
    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            async with self._pool.connection() as connection:
                yield connection
        except _UNAVAILABLE as error:
            raise ReadsUnavailable(str(error)) from error

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[Connection]:
        """All statements within see the same rows and positions."""
        async with self._connection() as connection:
            await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            await connection.set_read_only(True)
            async with connection.transaction():
                yield connection

    async def _snapped(
        self, read: Callable[[operator_reads.Fetch], Awaitable[tuple[T, ...]]]
    ) -> Rows[T]:
        async with self._snapshot() as connection:
            items = await read(partial(_fetch, connection))
            positions = await _fetch(connection, "queries/positions", {})
        return Rows(items, dict(positions))

    async def _rows(self, name: LiteralString, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        async with self._connection() as connection:
            return await _fetch(connection, name, values)


_UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg_pool.PoolTimeout,
    psycopg_pool.TooManyRequests,
    errors.UndefinedTable,
    errors.FeatureNotSupported,
)
"""The last two: the views are not there yet, or a rebuild has just changed their form."""


async def _fetch(
    connection: Connection, name: LiteralString, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    # Of a statement that is not prepared the planner sees the values: conditions that are not asked
    # for drop out, and those that are choose the index.
    prepare = not name.startswith(_PLANNED_EACH_TIME)
    cursor = await connection.execute(statement(name), values, prepare=prepare, binary=True)
    return await cursor.fetchall()


_PLANNED_EACH_TIME = (
    "queries/jobs_",
    "queries/count_matching",
    "queries/changes",
)


# --- Rows to types -------------------------------------------------------------------------------
def _jobs(rows: Iterable[tuple[Any, ...]]) -> tuple[Job, ...]:
    return tuple(stored_job(*row[:ROW_FIELDS]) for row in rows)


async def _stored(
    connection: Connection, job_id: str, *, even_erased: bool = False
) -> Stored | None:
    values = {"ids": [storable(job_id)], "even_erased": even_erased}
    rows = await _fetch(connection, "queries/stored", values)
    if not rows:
        return None
    _, *row, partition, offset = rows[0]
    return Stored(stored_job(job_id, *row), partition, offset)


async def _history(
    connection: Connection, job: Job, after_seq: int, rows_max: int
) -> AsyncIterator[Logical]:
    """All of it, oldest first, at most `rows_max` rows at a time."""
    many = min(rows_max, HISTORY_ROWS_MAX)
    while True:
        rows = await _fetch(
            connection,
            "queries/history",
            {"id": storable(job.id), "after": after_seq, "many": many},
        )
        for last_seq, stretch in rows:
            for logical in unpack_groups(job, last_seq, stretch):
                if logical.seq > after_seq:
                    after_seq = logical.seq
                    yield logical
        if len(rows) < many:
            return


# --- Filters and cursors -------------------------------------------------------------------------
def _list_name(order: Order) -> LiteralString:
    return f"queries/jobs_{_ORDERS[order]}"


def _conditions(where: JobFilter) -> dict[str, Any]:
    return {
        "queues": _texts(where.queues),
        "types": _texts(where.types),
        "statuses": _texts(where.statuses),
        "only_open": bool(where.statuses) and _OPEN.issuperset(where.statuses),
        "only_ended": bool(where.statuses) and _TERMINAL.issuperset(where.statuses),
        "ended_badly": bool(where.statuses) and _BADLY.issuperset(where.statuses),
        "labels": _labels(where.labels) if where.labels else None,
        "scope": _text(where.scope),
        "error_code": _text(where.error_code),
        "retried_from": _text(where.retried_from),
        "schedule": _text(where.schedule),
        "created_from": None if where.created_from is None else instant(where.created_from),
        "created_to": None if where.created_to is None else instant(where.created_to),
    }


def _labels(labels: Labels) -> str:
    words = {storable(key): storable(value) for key, value in labels.items()}
    return orjson.dumps(words).decode()


def _texts(texts: Iterable[str]) -> list[str] | None:
    return [storable(text) for text in texts] or None


def _text(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _cursor(after: _After) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(after)).decode().rstrip("=")


def _after(cursor: str, order: Order) -> _After:
    try:
        packed = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        after = msgspec.msgpack.decode(packed, type=_After)
    except (ValueError, UnicodeEncodeError, binascii.Error, msgspec.DecodeError) as error:
        raise BadCursor("not a cursor of this list") from error
    if after.order != order or "\x00" in after.job_id or not -32_768 <= after.priority < 32_768:
        raise BadCursor(f"the cursor is of a list in the order {after.order}")
    return after
