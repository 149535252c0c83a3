"""Reads effective entries from the broker, without a group and without commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from aiokafka.errors import CorruptRecordException, KafkaError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition

from ledger.log.connection import Connection
from ledger.log.consumers import log_consumer, stop
from ledger.log.crash_points import reach
from ledger.log.effective import START, Cursor, Effective, EffectiveEntries
from ledger.log.errors import (
    CheckpointNotBorneOut,
    LogBroken,
    LogUnavailable,
    OffsetOutOfRange,
    ReaderStuck,
)
from ledger.log.headers import text_header
from ledger.log.offsets import Offsets
from ledger.log.records import Record
from ledger.log.topics import Topics

RECORDS_MAX = 5_000
"""Of one batch that a reader hands out."""


class EntriesReader:
    """`async with EntriesReader(…) as reader: async for items in reader.batches(): …`

    Once it reads it checks that the log bears the cursor out: the entry that the cursor names is
    read again and must carry its hash, else `CheckpointNotBorneOut`. Raises `OffsetOutOfRange` for
    an offset that the log does not hold, `ChainBroken`, `ReaderStuck`, and `LogUnavailable` at the
    start only: a broker that goes away meanwhile is waited for.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        partition: int,
        cursor: Cursor = START,
        *,
        topic: str | None = None,
    ) -> None:
        self._connection = connection
        self._topic = topic or topics.events
        self._partition = partition
        self._place = TopicPartition(self._topic, partition)
        self._start = cursor
        self.effective = EffectiveEntries(self._topic, partition, cursor)
        self._position = self._first_offset
        self._consumer: Any = None
        self._offsets = Offsets(connection)

    async def __aenter__(self) -> Self:
        try:
            await self._offsets.start()
            await self._check_range()
            await self._restart(self._first_offset)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop(consumer, self._connection)
        await self._offsets.close()

    @property
    def cursor(self) -> Cursor:
        """To resume from, once all items yielded so far are dealt with."""
        return self.effective.cursor

    @property
    def position(self) -> int:
        """The next offset to read, also past records that count for nothing."""
        return self._position

    async def end(self) -> int:
        """The end of the partition, asked for now."""
        return await self._offsets.end(self._topic, self._partition)

    async def batches(self, until: int | None = None) -> AsyncIterator[list[Effective]]:
        """Ends once `position` reached `until`; None: never. Empty batches are left out.

        May be called again, to read further.
        """
        if self._start.hash_offset >= 0:
            await self._check_bears_out(self._start)
            self._start = START
        while until is None or self._position < until:
            items = self.effective.feed_all(await self._next_records(until))
            if items:
                yield items
            # Records that are there already are handed out without a pause; others must live too.
            await asyncio.sleep(0)

    async def records(self, until: int) -> AsyncIterator[list[Record]]:
        """As they lie there, whether or not they count; none of them is looked at."""
        while self._position < until:
            records = await self._next_records(until)
            if records:
                yield records
            await asyncio.sleep(0)

    @property
    def _first_offset(self) -> int:
        return self._start.hash_offset if self._start.hash_offset >= 0 else self._start.offset

    async def _check_range(self) -> None:
        end = await self._offsets.end(self._topic, self._partition)
        if self._start.offset > end:
            raise CheckpointNotBorneOut(
                self._topic,
                self._partition,
                self._start.offset,
                f"the log ends at {end}, before the checkpoint: rolled back, or another log",
            )
        first = await self._offsets.first(self._topic, self._partition)
        if self._first_offset < first:
            raise self._out_of_range(self._first_offset)

    async def _check_bears_out(self, start: Cursor) -> None:
        read: list[Record] = []
        while self._position < start.offset:
            read += await self._next_records(start.offset)
        said = text_header(read[0].headers, "ce_ledger").split(";") if read else [""]
        if said[-1] != start.hash.hex() or read[0].offset != start.hash_offset:
            raise CheckpointNotBorneOut(
                self._topic,
                self._partition,
                start.hash_offset,
                f"entry {start.entry} of the checkpoint is not there: rolled back, or another log",
            )

    async def _next_records(self, until: int | None) -> list[Record]:
        """Some records, in order, none at or behind `until`; empty if only the position moved."""
        bounds = self._connection.bounds
        stuck_at = _now() + bounds.stuck_seconds
        restarted = False
        while True:
            records, position = await self._poll()
            if position != self._position:
                if until is not None and position > until:
                    records = [record for record in records if record.offset < until]
                    self._consumer.seek(self._place, until)
                    position = until
                self._position = position
                return records
            if _now() < stuck_at:
                continue
            if await self._lags():
                if restarted:
                    raise ReaderStuck(
                        f"{self._topic}[{self._partition}]: nothing comes after {self._position}"
                    )
                with suppress(LogUnavailable):
                    await self._restart(self._position)
                    restarted = True
            stuck_at = _now() + bounds.stuck_seconds

    async def _poll(self) -> tuple[list[Record], int]:
        """What has come within one wait, and the position after it."""
        wait_ms = int(self._connection.bounds.poll_seconds * 1000)
        try:
            found = await self._consumer.getmany(
                self._place, timeout_ms=wait_ms, max_records=RECORDS_MAX
            )
            position = await self._consumer.position(self._place)
            if found:
                reach("reader.after_poll")
            return found.get(self._place, []), position
        except OffsetOutOfRangeError:
            raise self._out_of_range(self._position) from None
        except CorruptRecordException:
            what = "the checksum of a batch from here on does not match"
            raise LogBroken(self._topic, self._partition, self._position, what) from None
        except KafkaError as error:
            raise LogUnavailable(f"{self._topic}[{self._partition}]: {error!r}") from error

    async def _lags(self) -> bool:
        try:
            return await self.end() > self._position
        except LogUnavailable:
            return False  # The broker is away: waiting is right, and somebody else's to report.

    async def _restart(self, offset: int) -> None:
        old, self._consumer = self._consumer, await log_consumer(self._connection, "reader")
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, offset)
        if old is not None:
            await stop(old, self._connection)

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            self._topic, self._partition, offset, "the log holds no such record"
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
