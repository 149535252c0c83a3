"""What a feed moves and where it reads, without a database or a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from ledger.domain.entries import Proven
from ledger.log.effective import START, Cursor, Effective
from projections.batches import Applied, Batch, end_of


class Views:
    """Takes whatever it is given, and notes it."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.events = 0
        self.rested = asyncio.Event()
        self._moved = asyncio.Condition()
        self._loop = asyncio.get_running_loop()

    def cursor(self, partition: int) -> Cursor:
        return replace(START, offset=self.offset)

    def apply(self, batch: Batch) -> Applied:
        assert batch.before == self.offset
        events = sum(len(i.entry.events) for i in batch.items if isinstance(i, Proven))
        self.events += events
        self.offset = batch.after
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._tell()))
        return Applied(batch.partition, batch.after, len(batch.items), events, 0, 0, False)

    def apply_together(self, batches: Sequence[Batch]) -> list[Applied]:
        return [self.apply(batch) for batch in batches]

    def rest(self) -> None:
        self._loop.call_soon_threadsafe(self.rested.set)

    def close(self) -> None:
        pass

    async def reached(self, offset: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.offset >= offset)

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()


class LogOf:
    """A log with these items; `read` waits for more at its end, as a tail does."""

    def __init__(self, items: Sequence[Effective]) -> None:
        self.items = items
        self.readers = 0
        """At work."""
        self.begun = 0
        self.left = asyncio.Event()
        """Somebody who read it has stopped."""

    async def read(
        self, partition: int, cursor: Cursor, *, until: int | None = None
    ) -> AsyncGenerator[list[Effective]]:
        self.readers += 1
        self.begun += 1
        try:
            found = [item for item in self.items if end_of(item) > cursor.offset]
            if found:
                yield found
            await asyncio.Event().wait()
        finally:
            self.readers -= 1
            self.left.set()
