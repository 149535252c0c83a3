"""A body as it comes in, decompressed within a bound.

Decompression is ours, not httpx's: its decoders give out whatever one piece of input expands to,
and a piece of 64 KiB, compressed twice, expands to tens of gigabytes.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable

RAW = ("", "identity")
COMPRESSED = ("gzip", "x-gzip", "deflate")


class TooLarge(Exception):
    """The body is longer than allowed, as it came or decompressed."""


class Unreadable(Exception):
    """The body is not in the encoding that it names, or that one was never asked for."""


async def read_body(chunks: AsyncIterable[bytes], encoding: str, bytes_max: int) -> bytes:
    """Raises `TooLarge`, `Unreadable`, and what `chunks` raises."""
    if encoding in RAW:
        return await _read(chunks, bytes_max)
    if encoding not in COMPRESSED:
        raise Unreadable
    return await _decompress(chunks, bytes_max)


async def _read(chunks: AsyncIterable[bytes], bytes_max: int) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > bytes_max:
            raise TooLarge
    return bytes(body)


async def _decompress(chunks: AsyncIterable[bytes], bytes_max: int) -> bytes:
    body = bytearray()
    size = 0
    decoder = zlib.decompressobj(_GZIP_OR_ZLIB)
    async for chunk in chunks:
        size += len(chunk)
        if size > bytes_max:
            raise TooLarge
        while chunk:
            if decoder.eof:  # A gzip file may be several, one after the other.
                decoder = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                body += decoder.decompress(chunk, bytes_max + 1 - len(body))
            except zlib.error:
                raise Unreadable from None
            if len(body) > bytes_max:
                raise TooLarge
            chunk = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    if not decoder.eof and size:
        raise Unreadable
    return bytes(body)


_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
