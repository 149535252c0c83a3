"""Bytes on their way to and from a store, held against what was announced of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from hashlib import sha256

from ledger.domain.events import Ref
from ledger.objects.checked_keys import checked_key
from ledger.objects.errors import ObjectError

PIECE_BYTES = 262_144
"""Of what is read, digested and handed on at once."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def announced(key: str, size: int, digest: str) -> Ref:
    """Raises `InvalidKey`, or ValueError for what is no size or no digest."""
    if size < 0:
        raise ValueError(f"an object of {size} bytes")
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r} is no SHA-256: 64 hexadecimal digits, small letters")
    return Ref(key=checked_key(key), size=size, sha256=digest)


async def verified(
    pieces: AsyncGenerator[bytes, None], ref: Ref, fault: Callable[[str, str], ObjectError]
) -> AsyncGenerator[bytes, None]:
    """The pieces, none of them empty, as long as they can be those of `ref`.

    The last one is held back until all are proven: who has got `ref.size` bytes has got the right
    ones. Raises `fault(key, what differs)`.
    """
    digest = sha256()
    size = 0
    held = b""
    try:
        async for piece in pieces:
            size += len(piece)
            if size > ref.size:
                raise fault(ref.key, f"more than {ref.size} bytes")
            digest.update(piece)
            if held:
                yield held
            held = piece
    finally:
        await pieces.aclose()
    if size != ref.size:
        raise fault(ref.key, f"{size} bytes of {ref.size}")
    if digest.hexdigest() != ref.sha256:
        raise fault(ref.key, f"SHA-256 {digest.hexdigest()}, not {ref.sha256}")
    if held:
        yield held


async def cut(data: bytes | AsyncIterable[bytes], piece_bytes: int) -> AsyncGenerator[bytes, None]:
    """The same bytes in pieces of `piece_bytes`; only the last may be shorter, none is empty."""
    if isinstance(data, bytes):
        for start in range(0, len(data), piece_bytes):
            yield data[start : start + piece_bytes]
            # Nothing else here waits, and a large value must not hold up the loop.
            await asyncio.sleep(0)
        return
    rest = bytearray()
    async for chunk in data:
        rest += chunk
        while len(rest) >= piece_bytes:
            yield bytes(rest[:piece_bytes])
            del rest[:piece_bytes]
    if rest:
        yield bytes(rest)


async def joined(pieces: AsyncGenerator[bytes, None]) -> bytes:
    return b"".join([piece async for piece in pieces])
