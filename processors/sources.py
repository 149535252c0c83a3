"""The shared reader: one reading of a log, for the projector and the reactions alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from ledger.log.connection import Connection
from ledger.log.effective import Cursor, Effective
from ledger.log.entries_reader import EntriesReader
from ledger.log.topics import Topics
from processors.owner.seams import Feed
from projections.batches import end_of
from projections.feed import Source


def log_source(connection: Connection, topics: Topics) -> Source:
    """Reads without end; an empty list says that the end of the log was reached for now."""
    return partial(_follow, connection, topics)


async def _follow(
    connection: Connection, topics: Topics, partition: int, cursor: Cursor
) -> AsyncIterator[list[Effective]]:
    async with EntriesReader(connection, topics, partition, cursor) as reader:
        async for items in reader.batches(until=await reader.end()):
            yield items
        yield []
        async for items in reader.batches():
            yield items
            yield []


def shared(source: Source, feed: Feed) -> Source:
    """The same source, whose items are offered to `feed` as they are read."""

    async def read(partition: int, cursor: Cursor) -> AsyncIterator[list[Effective]]:
        before = cursor.offset
        async for items in source(partition, cursor):
            if items:
                feed.offer(partition, before, items)
                before = end_of(items[-1])
            yield items

    return read
