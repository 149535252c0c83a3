"""A connection to Postgres that something in between has forgotten, and still acknowledges."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest

from projections import position_watch, reads, schema
from projections.projector import channel
from tests.support.wire import Wire

pytestmark = pytest.mark.services

PATIENCE_SECONDS = 60.0


@pytest.fixture
async def wire(dsn: str) -> AsyncIterator[Wire]:
    wire = Wire("postgres", random.Random(1), target=urlsplit(dsn).port or 5432)
    await wire.start()
    yield wire
    await wire.close()


@pytest.fixture
def address(dsn: str, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> str:
    """Through the wire."""
    for module in (schema, reads):
        monkeypatch.setattr(module, "SILENCE_SECONDS", 0.5)
    direct = urlsplit(dsn)
    return direct._replace(netloc=f"{direct.netloc.rpartition(':')[0]}:{wire.port}").geturl()


async def test_a_writer_gives_up_a_connection_that_is_half_open(address: str, wire: Wire) -> None:
    connection = await asyncio.to_thread(schema.connect, address, statement_seconds=0.5)
    try:
        await asyncio.to_thread(connection.execute, "SELECT 1")
        wire.half_open()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(psycopg.OperationalError, match="said nothing"):
                await asyncio.to_thread(connection.execute, "SELECT 1")
        assert connection.closed
    finally:
        connection.close()


async def test_a_reader_gives_up_a_connection_that_is_half_open(
    dsn: str, address: str, wire: Wire
) -> None:
    await asyncio.to_thread(schema.migrate, dsn)
    async with reads.open_reads(address, connections_max=1, seconds_max=2.0) as found:
        assert await found.jobs_by_id(["q.none"]) == {}
        wire.half_open()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(reads.ReadsUnavailable):
                await found.jobs_by_id(["q.none"])
            assert await found.jobs_by_id(["q.none"]) == {}


async def test_who_listens_gives_up_a_connection_that_is_half_open(
    dsn: str, address: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked over it, so nobody would ever miss an answer."""
    monkeypatch.setattr(position_watch, "PROBE_SECONDS", 0.2)
    await asyncio.to_thread(schema.migrate, dsn)
    heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    async with reads.open_reads(address, connections_max=1) as found:
        found.follow(lambda partition, offset: heard.put_nowait((partition, offset)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            first = await listener(dsn)
            wire.half_open()
            await listener(dsn, other_than=first)
            await asyncio.to_thread(say, dsn, "7:42")
            assert await heard.get() == (7, 42)


async def listener(dsn: str, *, other_than: int = 0) -> int:
    """The server's process that serves a connection which listens, once there is one."""
    while True:
        found = await asyncio.to_thread(_listener, dsn, other_than)
        if found is not None:
            return found
        await asyncio.sleep(0.01)  # Between two looks, not for luck.


def _listener(dsn: str, other_than: int) -> int | None:
    with schema.connect(dsn) as connection:
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'ledger positions' AND "
            "query LIKE 'LISTEN%%' AND state = 'idle' AND datname = current_database() AND "
            "pid <> %s",
            (other_than,),
        ).fetchone()
    return None if row is None else int(row[0])


def say(dsn: str, payload: str) -> None:
    """As a projector does with each transaction."""
    with schema.connect(dsn) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", (channel(schema.SCHEMA), payload))
