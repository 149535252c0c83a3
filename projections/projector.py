"""Applies batches of effective entries to the read models, rows and checkpoint in one step.

One transaction for the batches of several partitions: the checkpoints first, by compare-and-set
(rivals wait for it, then see that they are late), then the rows. New jobs and their histories are
copied straight into their tables; jobs that move go through a staging table, folded to their last
value before, and from the open jobs to those that have ended once they have. What happens to them
lies in their own rows until it grows long.

`python -m benchmarks.views` measures it. Two cores, Postgres 18 with fsync, 900 jobs a batch, four
events a job, 200 bytes of payload, values given; CPU us a job, Python / Postgres, and bytes of
journal:

    a job begins and ends in one batch     28 / 18   1,500
    in two batches (wait, end)             31 / 35   2,120
    in three (wait, lease, end)            41 / 49   2,290

A transaction has a dozen statements, however much is in it: twelve partitions with nine jobs each
took 300 / 460 us a job one by one, 58 / 79 together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import LiteralString, Self, TypeVar

import psycopg
import stamina
from msgspec import Struct
from msgspec.structs import replace
from psycopg import errors

from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job
from ledger.log.crash_points import reach
from ledger.log.effective import Cursor
from projections.batches import Applied, Batch, advanced
from projections.checkpoints import CheckpointLost, Checkpoints, Connection, Move, Superseded
from projections.gathering import gather, touched_jobs
from projections.schema import SCHEMA, connect
from projections.sql import statement
from projections.storable import instant, tamed_instant, tamed_items
from projections.writing import DoesNotFit, Flush, forget_commands, stored_jobs, write

STATEMENT_SECONDS = 30.0
ATTEMPTS_MAX = 3
"""Of one batch, when the connection is lost or a statement does not end; who gave it may wait
longer and give it again."""
RECENT_MAX = 50_000
"""Open jobs whose folded values are kept, so that a log read in order seldom reads rows."""
CLEARED_UP_AFTER = 10_000
"""Jobs that were open and have ended; see `_clear_up`."""
CLEARED_UP_AT_REST_AFTER = 1_000
"""Where nothing else is to be done."""
CLEARED_UP_PART, CLEARED_UP_AT_REST_PART = 1 / 20, 1 / 50
"""Of the open jobs, where that is more: whoever clears up reads the indexes of all of them, 0.1 s
for a million."""
COUNTED_AFTER = 1_000
"""Open jobs more than when they were last counted; see `_count`."""
Answer = TypeVar("Answer")


class ViewsUnavailable(Exception):
    """Postgres did not answer in several attempts, or refused: a trigger, a missing right, a full
    disk. What was asked may be asked again, when somebody has seen to it."""


class NotTogether(Exception):
    """One of several batches cannot be applied as it is; which, its cause tells those who read."""


class ViewsBroken(Exception):
    """The stored rows are not those that the log makes up to the checkpoint: rebuild them."""


class _Standing(Struct):
    """What is known of a partition between batches."""

    cursor: Cursor
    at: Micros
    recent: dict[JobId, Job] = {}
    forgot_at: Micros = Micros(0)


class _Step(Struct, frozen=True, gc=False):
    """A batch that goes on from where its partition stands."""

    batch: Batch
    standing: _Standing
    move: Move


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
        self._ended = 0
        """Jobs that left the open ones since these were cleared up."""
        self._counted = 0
        """How many open jobs there were when they were last counted."""
        self._grown = 0
        """By how many they have become more since."""
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

    def rest(self) -> None:
        """To be called when nothing has come for a while."""
        self._clear_up(CLEARED_UP_AT_REST_AFTER, CLEARED_UP_AT_REST_PART)

    def apply(self, batch: Batch) -> Applied:
        """All of the batch or nothing. A batch that was applied already is no news.

        Raises `Superseded` if the stored checkpoint is neither `batch.before` nor `batch.after`:
        read it again. Also `CheckpointLost`, `ViewsBroken`, `ViewsUnavailable`.
        """
        if not batch.items:
            return Applied(batch.partition, batch.before, 0, 0, 0, 0, False)
        return self._forgetting([batch], lambda: self._apply_somehow(batch))

    def apply_together(self, batches: Sequence[Batch]) -> list[Applied]:
        """Of several partitions, none of them empty, all or nothing; as `apply`, in the order of
        the partitions.

        Raises `NotTogether` if one of them is superseded, or is not what it says: apply each.
        """
        in_order = sorted(batches, key=lambda batch: batch.partition)

        def apply() -> list[Applied]:
            try:
                return self._apply(in_order)
            except (Superseded, DoesNotFit, psycopg.Error, *_REFUSED) as error:
                if _is_passing(error):
                    raise
                raise NotTogether from error

        return self._forgetting(in_order, apply)

    def _forgetting(self, batches: Sequence[Batch], ask: Callable[[], Answer]) -> Answer:
        """Persistently; if it fails, what is known of these partitions is read again."""
        try:
            return _persistently(ask)
        except BaseException:
            for batch in batches:
                self._standing.pop(batch.partition, None)
            raise

    def _apply_somehow(self, batch: Batch) -> Applied:
        """With the values given; else folded from the rows of the jobs that do not begin here; else
        from the rows of all (a job may be requested twice); else cut to what Postgres can hold."""
        if batch.jobs is not None:
            with suppress(DoesNotFit, *_REFUSED):
                return self._apply([batch])[0]
        batch = replace(batch, jobs=None)
        with suppress(DoesNotFit, *_REFUSED):
            return self._apply([batch])[0]
        try:
            with suppress(*_REFUSED):
                return self._apply([batch], anew=True)[0]
            return self._apply([replace(batch, items=tamed_items(batch.items))], anew=True)[0]
        except DoesNotFit as error:
            partition = self._checkpoints.application(batch.partition)
            raise ViewsBroken(f"{partition} from offset {batch.before} on") from error

    # --- One transaction -------------------------------------------------------------------------
    def _apply(self, batches: Sequence[Batch], *, anew: bool = False) -> list[Applied]:
        """Each of another partition."""
        with self._transaction() as connection:
            found = [self._next_step(connection, batch, anew=anew) for batch in batches]
            steps = [step for step in found if step is not None]
            if not steps:
                return [_applied_before(batch) for batch in batches]
            self._checkpoints.move(connection, [step.move for step in steps])
            reach("projector.before_rows")
            flushes = [self._flush(connection, step, anew=anew) for step in steps]
            written = write(connection, flushes)
            forgot = self._move_partitions(connection, steps, flushes)
            reach("projector.before_commit")
        reach("projector.after_commit")
        moved = {
            flush.partition: self._applied(step, flush, forgot_at)
            for step, flush, forgot_at in zip(steps, flushes, forgot, strict=True)
        }
        self._ended += written.ended
        self._grown += written.opened - written.ended
        self._clear_up(CLEARED_UP_AFTER, CLEARED_UP_PART)
        self._count()
        return [moved.get(batch.partition) or _applied_before(batch) for batch in batches]

    def _next_step(self, connection: Connection, batch: Batch, *, anew: bool) -> _Step | None:
        """None: it has been taken. Raises `Superseded`."""
        standing = self._standing.get(batch.partition)
        if standing is None or anew or standing.cursor.offset != batch.before:
            standing = self._load(connection, batch.partition)
        stored = standing.cursor.offset
        if stored == batch.before:
            after = advanced(standing.cursor, batch.items)
            return _Step(batch, standing, Move(batch.partition, standing.cursor, after))
        if stored == batch.after:
            return None
        application = self._checkpoints.application(batch.partition)
        raise Superseded(application, batch.before, stored)

    def _applied(self, step: _Step, flush: Flush, forgot_at: Micros) -> Applied:
        """Once it is committed."""
        rows, partition = flush.rows, flush.partition
        is_folded = step.batch.jobs is None
        recent = step.standing.recent
        if not is_folded or len(recent) > RECENT_MAX:
            recent = {}
        for job_id, job in rows.folded.items():
            if job.end is None:
                recent[job_id] = job
            else:
                recent.pop(job_id, None)
        after = step.move.new
        self._standing[partition] = _Standing(after, rows.at, recent, forgot_at)
        return Applied(
            *(partition, after.offset, rows.entries, rows.events, len(rows.parts), rows.misfits),
            is_folded,
        )

    def _clear_up(self, ended_min: int, part: float) -> None:
        """Now and then, the room of jobs that are no longer open: 0.4 us a job. Left to Postgres,
        once a minute, the table would become many times as large as what is in it."""
        if self._ended >= max(ended_min, part * self._counted):
            self._ended = 0
            self._look_over("apply/clear_up")

    def _count(self) -> None:
        """Whenever open jobs have doubled. Postgres plans for as many as it found when it last
        looked them over, clearing up or counting, and plans for a few read all of them, or join
        all with all, for each batch: 6 s for 500 jobs that moved among 6,000."""
        if self._grown >= max(COUNTED_AFTER, self._counted):
            self._look_over("apply/count_open_jobs")

    def _look_over(self, name: LiteralString) -> None:
        """Outside a transaction; if it fails, then the next time."""
        try:
            connection = self._connected()
            connection.autocommit = True
            connection.execute(statement(name))
            [(self._counted,)] = connection.execute(statement("apply/open_jobs_counted")).fetchall()
            self._grown = 0
            connection.autocommit = False
        except BaseException as error:
            self._disconnect()  # Or the next batch would not be one transaction.
            if not isinstance(error, psycopg.Error):
                raise

    def _flush(self, connection: Connection, step: _Step, *, anew: bool) -> Flush:
        batch, standing = step.batch, step.standing
        position = step.move.new.offset - 1
        jobs = batch.jobs
        if jobs is not None:
            rows = gather(batch.items, standing.at)
            if rows.strays or not rows.parts.keys() <= jobs.keys():
                raise DoesNotFit
            return Flush(batch.partition, position, rows, jobs)
        known = standing.recent
        touched = touched_jobs(batch.items, new_too=anew)
        wanted = [key for key in touched if key not in known]
        stored = stored_jobs(connection, wanted)
        rows = gather(batch.items, standing.at, stored | known)
        return Flush(batch.partition, position, rows, rows.folded)

    def _move_partitions(
        self, connection: Connection, steps: Sequence[_Step], flushes: Sequence[Flush]
    ) -> list[Micros]:
        """Returns when each last forgot commands."""
        rows = [flush.rows for flush in flushes]
        at = [tamed_instant(its.at) for its in rows]
        partitions = [flush.partition for flush in flushes]
        connection.execute(
            statement("apply/move_partitions"),
            {
                "partitions": partitions,
                "entries": [its.entry for its in rows],
                "at": [instant(its) for its in at],
                "commands": [its.commands_read for its in rows],
                "requests": [its.requests_read for its in rows],
                "misfits": [its.misfits for its in rows],
                "unknown": [its.unknown for its in rows],
            },
            prepare=True,
        )
        connection.execute(
            statement("apply/notify"),
            {
                "channel": self._channel,
                "positions": [f"{flush.partition}:{flush.position}" for flush in flushes],
            },
            prepare=True,
        )
        return [
            forget_commands(connection, partition, its, step.standing.forgot_at)
            for partition, its, step in zip(partitions, at, steps, strict=True)
        ]

    def _load(self, connection: Connection, partition: int) -> _Standing:
        cursor = self._checkpoints.read(connection, partition)
        if cursor is None:
            cursor = self._checkpoints.begin(connection, partition)
        row = connection.execute(
            statement("apply/partition_time"), {"partition": partition}
        ).fetchone()
        if row is None:
            raise CheckpointLost(f"partition {partition} was begun and is not there")
        reach("projector.after_checkpoint_read")
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
            try:
                connection.execute(statement("apply/stage").encode())
                connection.commit()
            except BaseException:
                connection.close()  # Or it would stay open for as long as nobody collects it.
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _applied_before(batch: Batch) -> Applied:
    """It was committed before the connection was lost, by us or by a rival: the same rows."""
    return Applied(batch.partition, batch.after, 0, 0, 0, 0, False)


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
            on=_is_passing, attempts=ATTEMPTS_MAX, timeout=60.0, wait_initial=0.05, wait_max=0.5
        ):
            with attempt:
                return ask()
    except psycopg.Error as error:
        raise ViewsUnavailable(str(error)) from error
    raise AssertionError("unreachable")


def _is_passing(error: Exception) -> bool:
    """Whether a later attempt may end otherwise."""
    if isinstance(error, _REFUSED):
        return False
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
