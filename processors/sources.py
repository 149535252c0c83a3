"""The shared reader: one reading of a log, for the projector and the reactions alike."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ledger.log.effective import Cursor, Effective
from processors.owner.seams import Feed
from projections.batches import end_of
from projections.feed import Source


def shared(source: Source, feed: Feed) -> Source:
    """The same source, whose items are offered to `feed` as they are read."""

    async def read(
        partition: int, cursor: Cursor, *, until: int | None = None
    ) -> AsyncGenerator[list[Effective], None]:
        before = cursor.offset
        async with aclosing(source(partition, cursor, until=until)) as found:
            async for items in found:
                if items:
                    feed.offer(partition, before, items)
                    before = end_of(items[-1])
                yield items

    return read
