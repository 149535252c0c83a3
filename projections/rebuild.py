"""Read models made anew from the log, beside the live ones, and put in their place.

The new ones lie in a schema of their own and catch up with the log while the live ones serve. The
switch is a change of two names in one transaction, with the live checkpoints held still, at the
offsets where both stand: no reader sees less than before, and a projector that was writing finds
its checkpoint moved and goes on from the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import psycopg
from msgspec import Struct
from psycopg import IsolationLevel, sql

from ledger.domain.ids import Micros
from projections.batches import Batch
from projections.compare import NOT_COMPARED, TABLES, Difference, compare
from projections.feed import Source
from projections.projector import Projector
from projections.schema import LOCK, SCHEMA, checked, connect, migrate
from projections.sql import statement

ROUNDS_MAX = 20
"""Of catching up before the live views are held still."""
CLOSE_RECORDS = 5_000
"""Behind by no more than this, the rest is read while the live views are held still."""
HOLD_SECONDS = 20.0
"""So long they are held at most; then the switch is given up, to be tried again."""
ATTEMPTS_MAX = 3
VERIFY_SECONDS = 24 * 3600.0

EndOf = Callable[[int], Awaitable[int]]
"""The end offset of a partition of the events log, asked for now."""
Answer = TypeVar("Answer")


class SwitchGivenUp(Exception):
    """The new views did not reach the live ones in the time for which those may be held still."""


class PartitionStatus(Struct, frozen=True):
    partition: int
    offset: int
    """The checkpoint: the next offset to read."""
    end: int
    """Of the log."""
    entry: int
    at: Micros
    """The log's own time at the checkpoint."""
    misfits: int
    unknown: int

    @property
    def behind(self) -> int:
        """Records not read yet; the last may be such as count for nothing."""
        return max(0, self.end - self.offset)


class Progress(Struct, frozen=True):
    partition: int
    offset: int
    end: int


def status(
    dsn: str, ends: Mapping[int, int], *, schema: str = SCHEMA
) -> tuple[PartitionStatus, ...]:
    """Of every partition that was begun; `ends` are the log's."""
    with connect(dsn, schema=schema) as connection:
        rows = connection.execute(statement("queries/status")).fetchall()
    return tuple(
        PartitionStatus(partition, offset, ends.get(partition, offset), *rest)
        for partition, offset, *rest in rows
    )


class Rebuild:
    """Resumable: what was built before it stopped is built on."""

    def __init__(
        self,
        dsn: str,
        *,
        topic: str,
        partitions: int,
        source: Source,
        end_of: EndOf,
        schema: str = SCHEMA,
        beside: str | None = None,
        progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._dsn = dsn
        self._partitions = range(partitions)
        self._source = source
        self._end_of = end_of
        self._schema = checked(schema)
        self._beside = checked(beside or f"{schema}_next")
        self._progress = progress
        self._projector = Projector(dsn, topic=topic, schema=self._beside)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rebuild")

    async def run(self) -> None:
        """Build, catch up, switch. Raises `SwitchGivenUp`; what is built stays for another run."""
        try:
            await self.build()
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    return await self._switch()
                except SwitchGivenUp:
                    if attempt == ATTEMPTS_MAX:
                        raise
                    await self.build()
        finally:
            await self.close()

    async def build(self) -> None:
        """Until the new views are close to the log's end."""
        await asyncio.to_thread(migrate, self._dsn, schema=self._beside)
        for _ in range(ROUNDS_MAX):
            read = 0
            for partition in self._partitions:
                read += await self.read_to(partition, await self._end_of(partition))
            if read <= CLOSE_RECORDS:
                return

    async def read_to(self, partition: int, end: int) -> int:
        """Applies what lies below `end`; returns how many records that were."""
        cursor = await self._ask(lambda: self._projector.cursor(partition))
        first = offset = cursor.offset
        if offset >= end:
            return 0
        async with aclosing(self._source(partition, cursor, until=end)) as found:
            async for items in found:
                batch = Batch(partition, offset, items)
                offset = (await self._ask(partial(self._projector.apply, batch))).offset
                self._progress(Progress(partition, offset, end))
        return offset - first

    async def drop(self) -> None:
        """What was built, to begin anew."""
        await asyncio.to_thread(_drop, self._dsn, self._beside)

    async def close(self) -> None:
        await self._ask(self._projector.close)
        self._thread.shutdown(wait=False)

    async def _switch(self) -> None:
        live = await asyncio.to_thread(
            connect, self._dsn, schema=self._schema, statement_seconds=HOLD_SECONDS
        )
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                held = await asyncio.to_thread(_hold, live, self._schema)
                for partition, offset in held.items():
                    await self.read_to(partition, offset)
                await self._ask(self._projector.close)
                await asyncio.to_thread(_rename, live, self._schema, self._beside, held)
        except (TimeoutError, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
            raise SwitchGivenUp(
                f"not within {HOLD_SECONDS:.0f} s; what is built stays, run it again"
            ) from None
        finally:
            await asyncio.to_thread(live.close)
        await asyncio.to_thread(_drop, self._dsn, f"{self._schema}_old")

    async def _ask(self, ask: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)


async def verify(
    dsn: str,
    *,
    topic: str,
    source: Source,
    schema: str = SCHEMA,
    differences_max: int = 100,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Difference]:
    """How the live rows differ from the log folded up to their checkpoints; empty: not at all.

    The live views go on meanwhile: they are read in one snapshot.
    """

    async def no_end(partition: int) -> int:
        raise AssertionError(partition)

    scratch = checked(f"{schema}_verify")
    rebuild = Rebuild(
        dsn,
        topic=topic,
        partitions=0,
        source=source,
        end_of=no_end,
        schema=schema,
        beside=scratch,
        progress=progress,
    )
    live = await asyncio.to_thread(_snapshot, dsn, schema)
    try:
        positions = await asyncio.to_thread(_positions, live)
        await rebuild.drop()
        await asyncio.to_thread(migrate, dsn, schema=scratch)
        for partition, offset in positions.items():
            await rebuild.read_to(partition, 0)  # Begins it, even where nothing is to be read.
            await rebuild.read_to(partition, offset)
        fresh = await asyncio.to_thread(_snapshot, dsn, scratch)
        try:
            return await asyncio.to_thread(compare, live, fresh, differences_max=differences_max)
        finally:
            await asyncio.to_thread(fresh.close)
    finally:
        await asyncio.to_thread(live.close)
        await rebuild.close()
        await rebuild.drop()


def _snapshot(dsn: str, schema: str) -> psycopg.Connection[tuple[Any, ...]]:
    connection = connect(dsn, schema=schema, statement_seconds=VERIFY_SECONDS)
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


def _positions(connection: psycopg.Connection[tuple[Any, ...]]) -> dict[int, int]:
    rows = connection.execute(statement("queries/status")).fetchall()
    return {partition: offset for partition, offset, *_ in rows}


def _hold(live: psycopg.Connection[tuple[Any, ...]], schema: str) -> dict[int, int]:
    """Keeps the live checkpoints where they are until the transaction ends."""
    live.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    there = live.execute("SELECT to_regclass(%s)", (f"{schema}.checkpoints",)).fetchone()
    if there is None or there[0] is None:
        return {}
    live.execute("LOCK TABLE checkpoints IN SHARE ROW EXCLUSIVE MODE")
    return _positions(live)


def _rename(
    live: psycopg.Connection[tuple[Any, ...]],
    schema: str,
    beside: str,
    held: Mapping[int, int],
) -> None:
    names = {
        "live": sql.Identifier(schema),
        "next": sql.Identifier(beside),
        "old": sql.Identifier(f"{schema}_old"),
    }
    rows = live.execute(
        sql.SQL(
            "SELECT p.partition, c.notification_id FROM {next}.partitions p "
            "JOIN {next}.checkpoints c ON c.application_name = p.application_name"
        ).format(**names)
    ).fetchall()
    reached = {int(partition): int(offset) for partition, offset in rows}
    if behind := {p: offset for p, offset in held.items() if reached.get(p, 0) < offset}:
        raise SwitchGivenUp(f"the new views are behind the live ones in {sorted(behind)}")
    live.execute(sql.SQL("DROP SCHEMA IF EXISTS {old} CASCADE").format(**names))
    if held:
        # A projector that waits for its checkpoint's row is to find that it has moved.
        live.execute(
            "UPDATE checkpoints SET notification_id = -1 - notification_id "
            "WHERE application_name IN (SELECT application_name FROM partitions)"
        )
    if live.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone():
        _take_along(live, schema, names)
        live.execute(sql.SQL("ALTER SCHEMA {live} RENAME TO {old}").format(**names))
    live.execute(sql.SQL("ALTER SCHEMA {next} RENAME TO {live}").format(**names))
    live.commit()


def _take_along(
    live: psycopg.Connection[tuple[Any, ...]], schema: str, names: Mapping[str, sql.Identifier]
) -> None:
    """Tables that a projector does not write, such as those of reactions, with what is in them."""
    tables = live.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND NOT tablename = ANY(%s)",
        (schema, [*TABLES, *NOT_COMPARED]),
    ).fetchall()
    for (table,) in tables:
        words = {**names, "table": sql.Identifier(table)}
        live.execute(sql.SQL("DROP TABLE IF EXISTS {next}.{table}").format(**words))
        live.execute(sql.SQL("ALTER TABLE {live}.{table} SET SCHEMA {next}").format(**words))


def _drop(dsn: str, schema: str) -> None:
    with connect(dsn, statement_seconds=VERIFY_SECONDS) as connection:
        connection.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(checked(schema)))
        )
