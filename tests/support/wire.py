"""A TCP proxy between clients and a server, which a test cuts, slows down and deceives."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

CHUNK_BYTES = 65_536
CONNECT_SECONDS = 5.0
TRUNCATED_AFTER_BYTES = (1, 4_000)
"""Of a connection that is cut off in the middle of what it says."""

Way = Literal["to the server", "to the client"]


@dataclass(eq=False)
class _Link:
    """One connection, both of its sides."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    bytes_left: int | None = None
    """Then it is cut; None: never."""
    is_deaf: bool = False
    """What is still said on it reaches nobody, and nobody is told."""

    def abort(self) -> None:
        for side in (self.client, self.server):
            if side is not None:
                side.transport.abort()


@dataclass(eq=False)
class Wire:
    """`await start()`, then set `target`: the port that it passes on to. All on loopback."""

    name: str
    chance: random.Random
    target: int = 0
    port: int = 0
    delay_seconds: float = 0.0
    is_cut: bool = False
    truncates: bool = False
    passing: dict[Way, asyncio.Event] = field(default_factory=dict)
    _links: set[_Link] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        for way in ("to the server", "to the client"):
            self.passing[way] = asyncio.Event()
        self.heal()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.heal()
        self.cut()

    # --- Faults ----------------------------------------------------------------------------------
    def heal(self) -> None:
        """What was held back goes on; what was lost stays lost."""
        self.is_cut = self.truncates = False
        self.delay_seconds = 0.0
        for event in self.passing.values():
            event.set()

    def cut(self) -> None:
        """Every connection is reset, and so is every new one."""
        self.is_cut = True
        for link in list(self._links):
            link.abort()

    def hold(self, *ways: Way) -> None:
        """Nothing passes this way, and no side is told: as when packets are lost."""
        for way in ways:
            self.passing[way].clear()

    def delay(self, seconds: float) -> None:
        self.delay_seconds = seconds

    def half_open(self) -> None:
        """The server has lost every connection there is, and the clients are not told."""
        for link in self._links:
            link.is_deaf = True
            if link.server is not None:
                link.server.transport.abort()

    def truncate(self) -> None:
        """Every connection, old or new, breaks off in the middle of some answer."""
        self.truncates = True
        for link in self._links:
            link.bytes_left = self._some_bytes()

    # --- Passing on ------------------------------------------------------------------------------
    def _some_bytes(self) -> int:
        return self.chance.randint(*TRUNCATED_AFTER_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        link = _Link(client, bytes_left=self._some_bytes() if self.truncates else None)
        self._links.add(link)
        try:
            if self.is_cut:
                return
            async with asyncio.timeout(CONNECT_SECONDS):
                answers, server = await asyncio.open_connection("127.0.0.1", self.target)
            link.server = server
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(link, reader, server, "to the server"))
                both.create_task(self._pass(link, answers, client, "to the client"))
        except* OSError:
            pass  # The server is away, or a side has gone: so has the connection.
        finally:
            link.abort()
            self._links.discard(link)

    async def _pass(
        self, link: _Link, reader: asyncio.StreamReader, to: asyncio.StreamWriter, way: Way
    ) -> None:
        while True:
            chunk = b""
            with suppress(ConnectionError):
                chunk = await reader.read(CHUNK_BYTES)
            if not chunk:
                if link.is_deaf and way == "to the client":
                    return  # It is not to know.
                raise ConnectionAbortedError
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            await self.passing[way].wait()
            if link.is_deaf:
                continue
            if link.bytes_left is not None and way == "to the client":
                chunk, link.bytes_left = chunk[: link.bytes_left], link.bytes_left - len(chunk)
            to.write(chunk)
            await to.drain()
            if link.bytes_left is not None and link.bytes_left <= 0:
                raise ConnectionAbortedError
