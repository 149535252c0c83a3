"""Snapshots of a partition's proven state, so that a take-over reads the log's tail only.

Never needed for correctness: one that is damaged, gone or of another version is passed over, and
the log is folded from further back. One that is intact names an entry by its hash, and a log that
does not hold that entry is not the log it was: that stops the owner.

A file is a run of frames, each its length in 4 bytes and one piece of JSON under zstd: first what
the snapshot is of, then the parts of `ledger.domain.snapshot`, last an empty one. Its key tells
where it stands and its SHA-256:

    _ledger/snapshots/{ledger}/{partition}/{offset}-{sha256}.zst
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from hashlib import sha256
from tempfile import TemporaryFile
from typing import IO

import cramjam
import msgspec
import structlog
from msgspec import Struct

from ledger.domain.events import Ref
from ledger.domain.partition import Bounds, Partition
from ledger.domain.snapshot import Restored, Taken, decoded, encoded, layout
from ledger.log.crash_points import reach
from ledger.log.effective import Cursor
from ledger.objects import ObjectError, ObjectStore

IDLE_SHARE = 10
"""While nothing else is to do, a tenth of the events is enough for a snapshot."""
KEPT = 2
PAUSE_SECONDS = 0.004
"""Between two parts, of a millisecond each, that are written beside the turns."""
AGAIN_SECONDS = 60.0
"""After one that could not be stored."""
FRAME_BYTES_MAX = 256 << 20
PIECE_BYTES = 1 << 20
_LENGTH = 4

log = structlog.get_logger(__name__)


class About(Struct, frozen=True, gc=False):
    """The first frame."""

    layout: str
    topic: str
    partition: int
    cursor: Cursor


class Unusable(Exception):
    """It is no snapshot that this version can read."""


class Snapshots:
    """Of one ledger's partitions, in an object store."""

    def __init__(
        self, store: ObjectStore, *, ledger_id: str, topic: str, events_min: int = 100_000
    ) -> None:
        """`events_min`: how many are due for one, and half as many as the state has rows. What
        writing it costs is then a tenth of what deciding them did."""
        self.events_min = events_min
        self._store = store
        self._prefix = f"_ledger/snapshots/{ledger_id}/"
        self._topic = topic
        self._layout = layout()

    async def newest(self, number: int, bounds: Bounds) -> tuple[Partition, Cursor] | None:
        """The state after the newest one that can be read, and where the log goes on from there."""
        try:
            refs = await self._stored(number)
        except ObjectError as error:
            log.warning("owner.snapshots_away", partition=number, reason=str(error))
            return None
        for ref in reversed(refs):
            try:
                return await self._read(ref, number, bounds)
            except Unusable as error:
                log.info("owner.snapshot_passed_over", snapshot=ref.key, reason=str(error))
            except ObjectError as error:
                log.warning("owner.snapshot_damaged", snapshot=ref.key, reason=str(error))
        return None

    async def save(self, number: int, taken: Taken, cursor: Cursor) -> None:
        """Written beside whatever else the loop does; older ones go. Raises `ObjectError`."""
        about = About(self._layout, self._topic, number, cursor)
        with TemporaryFile() as file:
            digest, size = await _written(file, about, taken)
            key = f"{self._prefix}{number}/{cursor.offset:020}-{digest}.zst"
            reach("snapshot.before_put")
            await self._store.put(key, _pieces(file), sha256=digest, size=size)
            reach("snapshot.after_put")
        refs = await self._stored(number)
        await self._store.delete_many([ref.key for ref in refs[:-KEPT]])
        reach("snapshot.after_deleted")

    async def _stored(self, number: int) -> list[Ref]:
        """Oldest first."""
        found: list[Ref] = []
        after: str | None = None
        while True:
            page = await self._store.listing(f"{self._prefix}{number}/", after)
            reach("snapshot.after_listed")
            for one in page.objects:
                name = one.key.rpartition("/")[2].removesuffix(".zst")
                found.append(Ref(one.key, one.size, name.partition("-")[2]))
            after = page.after
            if after is None:
                return found

    async def _read(self, ref: Ref, number: int, bounds: Bounds) -> tuple[Partition, Cursor]:
        restored = Restored(Partition(number, bounds))
        about: About | None = None
        frames = _frames(self._store.stream(ref))
        async with aclosing(frames):
            async for frame in frames:
                if about is None:
                    about = self._about(frame, number)
                    continue
                try:
                    restored.add(decoded(frame))
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise Unusable(f"a part is none: {error}") from None
                await asyncio.sleep(0)  # A million jobs take seconds.
        if about is None:
            raise Unusable("it is empty")
        return restored.partition, about.cursor

    def _about(self, frame: bytes, number: int) -> About:
        try:
            about = msgspec.json.decode(frame, type=About)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unusable(f"it does not say what it is: {error}") from None
        if about.layout != self._layout:
            raise Unusable("it was written by another version")
        if (about.topic, about.partition) != (self._topic, number):
            raise Unusable(f"it is of {about.topic}[{about.partition}]")
        return about


class Snapshotting:
    """Decides, for one term of office, when the next snapshot is due, and has it written."""

    def __init__(self, snapshots: Snapshots, number: int, events: int) -> None:
        """`events`: so many were folded that are in no snapshot."""
        self._snapshots = snapshots
        self._number = number
        self._events = events
        self._not_before = 0.0
        self._saving: asyncio.Task[None] | None = None

    def note(self, events: int) -> None:
        self._events += events

    def is_due(self, partition: Partition, *, idle: bool) -> bool:
        events_min = self._snapshots.events_min
        if self._events < events_min // IDLE_SHARE or self._saving is not None:
            return False
        rows = len(partition.jobs) + len(partition.closed) + len(partition.outcomes)
        return (idle or self._events >= max(events_min, rows // 2)) and _now() >= self._not_before

    def begin(self, partition: Partition, cursor: Cursor) -> None:
        """All that the partition holds is proven, up to `cursor`."""
        events, self._events = self._events, 0
        saving = self._save(Taken(partition), cursor, events)
        self._saving = asyncio.create_task(saving)

    async def _save(self, taken: Taken, cursor: Cursor, events: int) -> None:
        try:
            await self._snapshots.save(self._number, taken, cursor)
            log.info(
                "owner.snapshot", partition=self._number, offset=cursor.offset, rows=taken.rows
            )
        except Exception as error:
            # Whatever it is: no snapshot is worth an owner.
            log.warning("owner.snapshot_not_stored", partition=self._number, reason=repr(error))
            self._events += events
            self._not_before = _now() + AGAIN_SECONDS
        finally:
            self._saving = None

    async def close(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])


async def _written(file: IO[bytes], about: About, taken: Taken) -> tuple[str, int]:
    """The file's SHA-256 and size."""
    digest, size = sha256(), 0

    def write(data: bytes) -> None:
        nonlocal size
        frame = bytes(cramjam.zstd.compress(data, 1))
        for piece in (len(frame).to_bytes(_LENGTH), frame):
            file.write(piece)
            digest.update(piece)
            size += len(piece)

    write(msgspec.json.encode(about))
    for part in taken.parts():
        write(encoded(part))
        await asyncio.sleep(PAUSE_SECONDS)
    write(b"")
    return digest.hexdigest(), size


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    file.seek(0)
    while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
        yield piece


async def _frames(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """What is in them. To their end, however they end: only then the bytes are known to be right.
    Raises `Unusable`, and what the store raises."""
    left = b""
    ended = False
    async with aclosing(pieces):
        async for piece in pieces:
            left += piece
            at = 0
            while (frame := _frame_at(left, at)) is not None:
                at += _LENGTH + len(frame)
                content = _decompressed(frame)
                ended = not content
                if content:
                    yield content
            left = left[at:]
    if left or not ended:
        raise Unusable("it ends too soon")


def _frame_at(data: bytes, at: int) -> bytes | None:
    start = at + _LENGTH
    if len(data) < start:
        return None
    length = int.from_bytes(data[at:start])
    if length > FRAME_BYTES_MAX:
        raise Unusable(f"a frame of {length} bytes")
    return data[start : start + length] if len(data) >= start + length else None


def _decompressed(frame: bytes) -> bytes:
    try:
        return bytes(cramjam.zstd.decompress(frame))
    except cramjam.DecompressionError as error:
        raise Unusable(f"a frame is damaged: {error}") from None


def _now() -> float:
    return asyncio.get_running_loop().time()
