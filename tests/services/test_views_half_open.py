"""A connection to Postgres that something in between has forgotten, and still acknowledges."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest

from projections import reads, schema
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
