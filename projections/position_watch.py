"""Waits until the views have reached a position, without asking again and again.

Each transaction of a projector says so on a channel of Postgres; one connection listens for all
that wait. A slow poll is the net below: a listener that lost its connection misses what was said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg
from psycopg import Notify, sql

from projections.schema import KEPT_ALIVE, BoundedAsyncConnection

POLL_SECONDS = 0.5
RECONNECT_SECONDS = 1.0
CONNECT_SECONDS = 5
PROBE_SECONDS = 5.0
"""How often the server is asked whether the connection still stands: one that something in between
has forgotten is as quiet as one on which there is nothing to say."""


class PositionWatch:
    """`ask` reads a partition's position from the views; it is what counts."""

    def __init__(self, dsn: str, channel: str, ask: Callable[[int], Awaitable[int | None]]) -> None:
        self._dsn = dsn
        self._channel = channel
        self._ask = ask
        self._known: dict[int, int] = {}
        self._moved = asyncio.Condition()
        self._listener: asyncio.Task[None] | None = None
        self._followers: list[Callable[[int, int], None]] = []

    async def reached(self, partition: int, offset: int, seconds_max: float) -> bool:
        """False: it was not reached in time."""
        self._start()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds_max, 0.001)):
                while not await self._asked(partition, offset):
                    await self._wait(partition, offset)
                return True
        return await self._asked(partition, offset)

    def follow(self, stir: Callable[[int, int], None]) -> None:
        """`stir` is called with each partition and offset that is said from now on."""
        self._followers.append(stir)
        self._start()

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener

    def _start(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())

    async def _asked(self, partition: int, offset: int) -> bool:
        position = await self._ask(partition)
        # Also downwards: a restored database stands where its dump stood.
        self._known[partition] = -1 if position is None else position
        return self._known[partition] >= offset

    async def _wait(self, partition: int, offset: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS), self._moved:
                await self._moved.wait_for(lambda: self._known.get(partition, -1) >= offset)

    async def _listen(self) -> None:
        """Lives as long as the watch, over lost connections."""
        while True:
            with suppress(psycopg.Error, OSError):
                await self._listen_once()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen_once(self) -> None:
        connection = await BoundedAsyncConnection.connect(
            self._dsn,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            application_name="ledger positions",
            **KEPT_ALIVE,
        )
        # Longer than a wait for news, which nobody has to answer.
        connection.silence_seconds_max = 2 * PROBE_SECONDS
        listen = sql.SQL("LISTEN {}").format(sql.Identifier(self._channel))
        async with connection:
            while True:
                await connection.execute(listen)  # Again is no news, but it has to be answered.
                async for said in connection.notifies(timeout=PROBE_SECONDS):
                    await self._hear(said)

    async def _hear(self, said: Notify) -> None:
        partition, offset = map(int, said.payload.split(":"))
        async with self._moved:
            self._known[partition] = offset
            self._moved.notify_all()
        for stir in self._followers:
            stir(partition, offset)
