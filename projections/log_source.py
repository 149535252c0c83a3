"""The events log as a source for projectors."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ledger.log.connection import Connection
from ledger.log.effective import Cursor, Effective
from ledger.log.entries_reader import EntriesReader
from ledger.log.topics import Topics
from projections.feed import Source


def log_source(connection: Connection, topics: Topics) -> Source:
    """Each reading has a reader of its own, which ends with it."""

    async def read(
        partition: int, cursor: Cursor, *, until: int | None = None
    ) -> AsyncGenerator[list[Effective]]:
        async with EntriesReader(connection, topics, partition, cursor) as reader:
            async for items in reader.batches(until):
                yield items

    return read
