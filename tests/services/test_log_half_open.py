"""Connections that the broker has forgotten without a word: whoever holds one finds out by itself,
and goes on over another. No process has to be restarted for it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ledger.embedded import Kafka
from ledger.log.connection import Bounds, Connection
from ledger.log.errors import LogUnavailable
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.records import Outgoing
from ledger.log.topics import Topics
from tests.support.wire import Wire

pytestmark = pytest.mark.services

BACK_SECONDS = 60.0
RECORD: Outgoing = (b"k", b"v", [])
SHORT = Bounds(request_seconds=2.0, append_seconds=2.0, offsets_seconds=1.0, stuck_seconds=2.0)


@pytest.fixture
async def wire(server_directory: Path) -> AsyncIterator[Wire]:
    """To a broker of this test alone."""
    wire = Wire("broker", random.Random(1))
    await wire.start()
    kafka = Kafka(server_directory / "kafka", fast_start=True, advertised_ports=[wire.port])
    await asyncio.to_thread(kafka.start)
    wire.target = kafka.ports[1]
    try:
        yield wire
    finally:
        await asyncio.to_thread(kafka.stop)
        await wire.close()


async def in_time(ask: Callable[[], Awaitable[object]]) -> None:
    """It may fail, as long as it does not go on failing."""
    async with asyncio.timeout(BACK_SECONDS):
        while True:
            try:
                await ask()
                return
            except LogUnavailable:
                continue


async def test_whoever_speaks_to_a_broker_gives_up_a_connection_that_is_half_open(
    wire: Wire,
) -> None:
    connection = Connection(bootstrap=f"127.0.0.1:{wire.port}", bounds=SHORT)
    topics = Topics("")
    await topics.apply(connection, partitions=1, mode="development")
    async with AsyncExitStack() as closing:
        offsets = await closing.enter_async_context(Offsets(connection))
        outbox, intake = (
            Outbox(connection),
            Intake(connection, topics.requests, isolation="read_uncommitted"),
        )
        for client in (outbox, intake):
            await client.start()
            closing.push_async_callback(client.close)
        intake.follow(0, 0)
        await outbox.send_one(topics.requests, 0, RECORD)
        assert await offsets.end(topics.requests, 0) == 1
        await read_to(intake, 1)

        wire.half_open()

        await in_time(lambda: offsets.end(topics.requests, 0))
        await in_time(lambda: outbox.send_one(topics.requests, 0, RECORD))
        await read_to(intake, 2)


async def read_to(intake: Intake, offset: int) -> None:
    arrived = intake.arrived(0)
    async with asyncio.timeout(BACK_SECONDS):
        while intake.position(0) < offset:
            arrived.clear()
            intake.take(0, 100)
            if intake.position(0) < offset:
                await arrived.wait()
