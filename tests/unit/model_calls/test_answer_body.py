"""Bodies are bounded as they come and as they decompress."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.model_calls.answer_body import TooLarge, Unreadable, read_body

MIB = 1024 * 1024
ABC_ZIPPED = gzip.compress(b"abc", mtime=0)


async def pieces(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@given(parts=st.lists(st.binary(max_size=200), max_size=4), size=st.integers(1, 50))
async def test_gzip_in_any_pieces_and_members_reads_as_it_was(
    parts: list[bytes], size: int
) -> None:
    data = b"".join(gzip.compress(part) for part in parts)
    assert await read_body(pieces(data, size), "gzip", 1_000) == b"".join(parts)


@pytest.mark.parametrize("encoding", ["", "identity"])
async def test_a_plain_body_is_as_it_came(encoding: str) -> None:
    assert await read_body(pieces(b"abc", 1), encoding, 3) == b"abc"
    with pytest.raises(TooLarge):
        await read_body(pieces(b"abcd", 1), encoding, 3)


async def test_deflate_is_read_too() -> None:
    assert await read_body(pieces(zlib.compress(b"abc")), "deflate", 100) == b"abc"


async def test_exactly_so_much_fits_when_decompressed() -> None:
    assert len(await read_body(pieces(gzip.compress(bytes(5000))), "gzip", 5000)) == 5000
    with pytest.raises(TooLarge):
        await read_body(pieces(gzip.compress(bytes(5001))), "gzip", 5000)


async def test_a_bomb_is_stopped_before_it_takes_memory() -> None:
    bomb = gzip.compress(bytes(256 * MIB), compresslevel=9)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            await read_body(pieces(bomb), "gzip", MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB


async def test_input_that_expands_to_nothing_is_bounded_too() -> None:
    with pytest.raises(TooLarge):
        await read_body(pieces(gzip.compress(b"") * 100), "gzip", 1_000)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"plain", "gzip"),
        (ABC_ZIPPED[:-1], "gzip"),
        (ABC_ZIPPED + b"more", "gzip"),
        (gzip.compress(ABC_ZIPPED, mtime=0), "gzip, gzip"),
        (b"abc", "br"),
        (b"abc", "zstd"),
    ],
)
async def test_a_body_in_another_encoding_is_unreadable(data: bytes, encoding: str) -> None:
    with pytest.raises(Unreadable):
        await read_body(pieces(data), encoding, 1_000)


async def test_no_body_has_no_encoding() -> None:
    assert await read_body(pieces(b""), "gzip", 10) == b""
