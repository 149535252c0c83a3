"""Reads event streams as a client of theirs does, and serves an app on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette

from cli.api_server import ApiServer

PATIENCE_SECONDS = 30.0
ACCEPT = {"Accept": "text/event-stream"}


@dataclass
class Heard:
    """One message of a stream. `id` is the last that was sent, with this message or before."""

    id: str
    event: str
    data: Any


class Stream:
    """A stream that is being read, message by message."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.id = ""
        """Where to resume."""

    async def next(self) -> Heard | None:
        """None: the stream has ended."""
        event, data = "message", []
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                match name:
                    case "id":
                        self.id = value
                    case "event":
                        event = value
                    case "data":
                        data.append(value)
                    case "" if data:
                        return Heard(self.id, event, json.loads("\n".join(data)))
                    case _:
                        pass
        return None

    async def take(self, many: int) -> list[Heard]:
        """The next so many."""
        heard = [await self.next() for _ in range(many)]
        return [one for one in heard if one is not None]

    async def rest(self) -> list[Heard]:
        heard = []
        while (one := await self.next()) is not None:
            heard.append(one)
        return heard

    async def begun(self) -> None:
        """Returns once the stream has said where it stands: it misses nothing from here on."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    self.id = value
                    return


@asynccontextmanager
async def stream(
    client: httpx.AsyncClient, path: str, *, last: str | None = None, **parameters: str
) -> AsyncIterator[Stream]:
    """`last`: of the header Last-Event-ID."""
    headers: Mapping[str, str] = ACCEPT if last is None else {**ACCEPT, "Last-Event-ID": last}
    async with client.stream("GET", path, headers=headers, params=parameters) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield Stream(response)


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[ApiServer]:
    """The app behind a real server in this loop; stopped as a signal stops it."""
    server = ApiServer(app, host="127.0.0.1", port=0)
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 (of plain state)
        await asyncio.sleep(0.01)
    try:
        yield server
    finally:
        server.should_exit = True
        await running
