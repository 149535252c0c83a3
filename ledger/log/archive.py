"""A partition's records in a plain file, byte for byte: to keep them elsewhere, and to check them
without a broker. The hash chain inside makes it self-checking.

A gzip file of a line of JSON, blocks, and a line of JSON:

    {"format":"ledger-archive/1","topic":…,"partition":…,"first":offset}
    u32 big-endian n > 0, then n bytes: records as a MessagePack array   (any number of times)
    u32 0
    {"records":count,"end":offset}

A record is an array: offset, timestamp in ms, key, value, headers as [name, value] pairs. `first`
is where the reading began, `end` the offset behind it: between them may be fewer records than
offsets. A file that was cut off has no last line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import Struct as Layout
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

import msgspec
from msgspec import Struct

from ledger.log.errors import LogBroken
from ledger.log.records import LogRecord

FORMAT = "ledger-archive/1"
BLOCK_RECORDS = 1_000
BLOCK_BYTES_MAX = 1 << 30
HEAD_BYTES_MAX = 4_096
COMPRESSION = 6
_LENGTH = Layout(">I")


Name = TypeVar("Name", bound=str)


class Archived(Struct, Generic[Name], array_like=True, frozen=True, gc=False):
    """What a broker handed out. `Name`: of its headers."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[Name, bytes | None]]


ArchivedRecord = Archived[str]
OurName = Literal[
    "ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "content-type", "ce_ledger"
]
"""Of records with our own headers alone names are not made anew each time: 0.2 of 1.2 us."""


class Head(Struct, frozen=True):
    format: str
    topic: str
    partition: int
    first: int


class Tail(Struct, frozen=True):
    records: int
    end: int


class NoArchive(Exception):
    """The file is not one of ours, or of a later version."""


class ArchiveWriter:
    """`with`. A file that was not `finish`ed is seen to be cut off."""

    def __init__(self, path: Path, *, topic: str, partition: int, first: int) -> None:
        self._file = gzip.open(path, "wb", compresslevel=COMPRESSION)  # noqa: SIM115
        self._file.write(_line(Head(FORMAT, topic, partition, first)))
        self._records: list[ArchivedRecord] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            self._records.append(
                ArchivedRecord(
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    list(record.headers),
                )
            )
            if len(self._records) >= BLOCK_RECORDS:
                self._write_block()

    def finish(self, end: int) -> None:
        """`end`: the offset behind the last that was looked at."""
        if self._records:
            self._write_block()
        self._file.write(_LENGTH.pack(0) + _line(Tail(self._count, end)))

    def _write_block(self) -> None:
        block = msgspec.msgpack.encode(self._records)
        self._file.write(_LENGTH.pack(len(block)) + block)
        self._count += len(self._records)
        self._records = []


class Archive:
    """A file to read. Raises `NoArchive`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with gzip.open(path, "rb") as file:
            try:
                line = file.readline(HEAD_BYTES_MAX)
                head = msgspec.json.decode(line, type=Head)
            except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
                raise NoArchive(f"{path} is no archive of a log: {error}") from None
            self._begins = len(line)
        if head.format != FORMAT:
            raise NoArchive(f"{path} has the format {head.format!r}, this version reads {FORMAT}")
        self.topic = head.topic
        self.partition = head.partition
        self.first = head.first
        self.end: int | None = None
        """The offset behind its last; None until it was read to its end."""

    def blocks(self) -> Iterator[list[ArchivedRecord]]:
        """All records, in the order of the file. Raises `LogBroken` where it is cut off, or is not
        what was written."""
        count, offset = 0, self.first
        with gzip.open(self.path, "rb") as file:
            try:
                file.seek(self._begins)
                while size := _LENGTH.unpack(_exactly(file, _LENGTH.size))[0]:
                    block = _records(_exactly(file, size))
                    yield block
                    count += len(block)
                    offset = block[-1].offset + 1 if block else offset
                tail = msgspec.json.decode(file.readline(HEAD_BYTES_MAX), type=Tail)
                if file.read(1):  # Which also compares gzip's own checksum.
                    raise OSError("there is more behind its last line")
            except EOFError:
                raise self._broken(offset, "the archive is cut off here") from None
            except (OSError, zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
                what = f"the archive is damaged from here on ({error})"
                raise self._broken(offset, what) from None
        if tail.records != count or tail.end < offset:
            what = f"the archive holds {count} records, and says {tail.records}"
            raise self._broken(offset, what)
        self.end = tail.end

    def _broken(self, offset: int, what: str) -> LogBroken:
        return LogBroken(self.topic, self.partition, offset, what)


def archive_name(topic: str, partition: int, first: int) -> str:
    """Files of one partition sort in the order of their offsets."""
    return f"{topic}-{partition:04d}-{first:016d}.archive.gz"


def _line(said: Struct) -> bytes:
    return msgspec.json.encode(said) + b"\n"


def _exactly(file: gzip.GzipFile, size: int) -> bytes:
    if size > BLOCK_BYTES_MAX:
        raise OSError(f"a block of {size} bytes")
    found = file.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _records(block: bytes) -> list[ArchivedRecord]:
    try:
        return _decode_ours(block)
    except msgspec.ValidationError:
        return _decode(block)


_decode = msgspec.msgpack.Decoder(list[ArchivedRecord]).decode
_decode_ours: Callable[[bytes], list[ArchivedRecord]]
_decode_ours = msgspec.msgpack.Decoder(list[Archived[OurName]]).decode  # type: ignore[assignment]
