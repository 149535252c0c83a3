"""A model on loopback that answers each request by a script, down to the bytes on the wire."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

Write = asyncio.StreamWriter
TURNS_TO_ACCEPT = 5
"""Of the event loop, until a connection that is being accepted is known."""


class Received(Struct):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Script = Callable[[Received, Write], Awaitable[None]]


def answer(status: int = 200, body: bytes = b"{}", /, **headers: str) -> bytes:
    """`content_type="…"` is the header `content-type`."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def always(wire: bytes) -> Script:
    async def script(received: Received, writer: Write) -> None:
        writer.write(wire)
        await writer.drain()

    return script


class ScriptedModel:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.port = 0
        self.received: list[Received] = []
        self.connections = 0
        self._open = asyncio.Condition()
        self._open_count = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def left(self) -> None:
        """Until nobody is connected."""
        async with self._open:
            await self._open.wait_for(lambda: self._open_count == 0)

    async def serve(self, reader: asyncio.StreamReader, writer: Write) -> None:
        self.connections += 1
        self._open_count += 1
        try:
            received = await _received(reader)
            self.received.append(received)
            await self.script(received, writer)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            self._open_count -= 1
            async with self._open:
                self._open.notify_all()


@asynccontextmanager
async def scripted_model(
    script: Script, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedModel]:
    model = ScriptedModel(script)
    serving: dict[asyncio.Task[None], Write] = {}

    def connected(reader: asyncio.StreamReader, writer: Write) -> None:
        serving[asyncio.ensure_future(model.serve(reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=ssl_context)
    model.port = server.sockets[0].getsockname()[1]
    try:
        yield model
    finally:
        # A server that is closed while it accepts loses the connection unclosed.
        for _ in range(TURNS_TO_ACCEPT):
            await asyncio.sleep(0)
        server.close()
        for task, writer in serving.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()


async def _received(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), "a header stands twice"
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, target, headers, body)
