"""Server-sent events as bytes, and a response that sends them for as long as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, suppress

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.disconnects import unless_gone

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b":\n\n"
RETRY_MS = 1_000
SEND_SECONDS = 60.0
"""A client that takes nothing for so long is cut off; nothing more can be said to it."""
PIECE_BYTES = 65_536
"""Sent at once, where several events wait; one event may be larger."""

log = structlog.get_logger(__name__)
Chunks = AsyncGenerator[bytes]


def message(data: bytes, *, id: str = "", event: str = "") -> bytes:
    """One event. Line breaks in JSON, which stand between its tokens, arrive as line feeds."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines())
    head = f"event: {event}\n" if event else ""
    if id:
        head += f"id: {id}\n"
    return b"%sdata: %s\n\n" % (head.encode(), data)


def position(id: str) -> bytes:
    """No event: only where to resume."""
    return f"id: {id}\n\n".encode()


def pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """The same in fewer parts, none much larger than is sent at once."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        if piece and size + len(frame) > PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(frame)
        size += len(frame)
    if piece:
        yield b"".join(piece)


def beginning() -> bytes:
    return f"retry: {RETRY_MS}\n\n".encode()


class EventStream(Response):
    """Sends the chunks until they end, the client goes, or it takes none for too long.

    Plain on purpose. A ready-made one finds out that its server stops by looking into it; here the
    streams' owner ends them. And all that a stream sends is encoded once for all that get it.
    """

    media_type = MEDIA_TYPE
    charset = "utf-8"

    def __init__(self, chunks: Callable[[], Chunks], seat: AbstractContextManager[None]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._chunks = chunks
        self._seat = seat
        """Held as long as the stream lasts."""
        # Proxies that gather answers before they pass them on would keep events back.
        self.init_headers({"X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect), self._seat:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            await unless_gone(Request(scope, receive), self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        try:
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    async with asyncio.timeout(SEND_SECONDS):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.info("stream_cut_off", reason=f"the client took nothing for {SEND_SECONDS} s")
