"""Jobs per minute, by queue and by what became of them: a reaction to the log, as a Faust agent.

`RatesFeed` is the shared reader: it takes the proven entries that an owner in this process offers,
and reads the log where they do not continue its checkpoint. Once a second it hands what has come,
if that is worth it, to the agent, whole effective entries in a batch, on a channel in this process.
`RatesStore` writes counts and checkpoint in one transaction, the checkpoint by compare-and-set: a
batch counts once, however often it is sent and by how many workers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import structlog

from ledger.domain.ids import JobId
from ledger.domain.job import Job
from ledger.log.effective import Cursor, Effective
from ledger.log.entries_reader import EntriesReader
from ledger.log.errors import LogError
from processors.rates_store import RatesBatch, RatesStore, Superseded, count_of
from projections.batches import advanced, end_of

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 1.0
"""From one look at what was offered to the next."""
WORTH_ENTRIES = 200
"""So many are worth a transaction."""
OLD_SECONDS = 5.0
"""Fewer wait so long for more: a transaction costs 4 ms, and there is one a partition."""
OFFERED_MAX = 50_000
"""Entries of one partition that wait to be handed on; beyond, the log is read again later."""
BATCHES_MAX = 4
"""Batches that the agent has not dealt with yet."""
RETRY_SECONDS = 2.0
"""After Postgres or the log did not answer."""
DRAIN_SECONDS = 5.0
"""For the agent's last batches, when the process stops."""
OpenReader = Callable[[int, Cursor], EntriesReader]
Send = Callable[[RatesBatch], Awaitable[object]]


class _Follower:
    """One partition: where its counting stands, and what waits to be counted."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.cursor: Cursor | None = None
        """Behind what was handed to the agent; None: the store knows."""
        self.is_behind = True
        """The log has to be read before what is offered can continue the cursor."""
        self.offered: list[tuple[int, Sequence[Effective]]] = []
        self.offered_count = 0
        self.offered_at = 0.0
        """When the first of them was, by the loop's clock."""

    def offer(self, before: int, items: Sequence[Effective]) -> bool:
        """False: there was no room, and what waited was dropped; the log has it."""
        if self.offered_count + len(items) > OFFERED_MAX:
            self.offered.clear()
            self.offered_count = 0
            self.is_behind = True
            return False
        if not self.offered:
            self.offered_at = _now()
        self.offered.append((before, items))
        self.offered_count += len(items)
        return True

    def is_worth_it(self) -> bool:
        """Whether to count now, rather than wait for more."""
        has_log_to_read = self.cursor is None or self.is_behind
        is_enough = self.offered_count >= WORTH_ENTRIES
        return has_log_to_read or is_enough or _now() - self.offered_at >= OLD_SECONDS

    def take(self, offset: int) -> Sequence[Effective]:
        """All of what was offered that continues `offset`. A gap makes the follower behind."""
        offered, self.offered, self.offered_count = self.offered, [], 0
        taken: list[Effective] = []
        for before, items in offered:
            if before > offset:
                self.is_behind = True
                break
            new = [item for item in items if end_of(item) > offset]
            if new:
                taken += new
                offset = end_of(new[-1])
        return taken


class RatesFeed:
    """One a process. `follow`, `offer` and `unfollow` belong to the event loop and never block."""

    def __init__(self, store: RatesStore, open_reader: OpenReader) -> None:
        self._store = store
        self._open_reader = open_reader
        self._send: Send | None = None
        self._followers: dict[int, _Follower] = {}
        self._generation = 0
        self._in_flight = 0
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self._totals: Counter[str] = Counter()
        self._last_error: str | None = None

    def sends_to(self, send: Send) -> None:
        """Where batches go. At most BATCHES_MAX are under way."""
        self._send = send

    def follow(self, partition: int, offset: int | None = None) -> None:
        """`offset` is no use: where it has counted to is asked first."""
        if partition not in self._followers:
            self._generation += 1
            self._followers[partition] = _Follower(self._generation)
            self._news.set()

    def offer(
        self,
        partition: int,
        before: int,
        items: Sequence[Effective],
        jobs: Mapping[JobId, Job] | None = None,
    ) -> bool:
        """Items that follow the offset `before`, from an owner or another reader of the log."""
        follower = self._followers.get(partition)
        if follower is None:
            return False
        self._news.set()
        return follower.offer(before, items)

    def unfollow(self, partition: int) -> None:
        self._followers.pop(partition, None)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then what was offered is handed on, as far as there is room."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait([news, stopped], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                await asyncio.wait([stopped], timeout=FLUSH_SECONDS)
                self._news.clear()
                await self._round(stop)
        finally:
            stopped.cancel()
            await self._drained()
            await asyncio.to_thread(self._store.close)

    async def count(self, batch: RatesBatch) -> None:
        """What the agent does with a batch: never raises."""
        try:
            if not self._is_current(batch):
                return
            # In a thread, the counting too: at full load it takes 20 ms a second.
            self._totals["quarantined"] += await asyncio.to_thread(self._apply, batch)
            self._totals["entries"] += len(batch.items)
            self._last_error = None
        except Superseded:
            self._totals["superseded"] += 1
            self._reset(batch.partition)
        except Exception as error:
            self._note(error, batch.partition)
        finally:
            self._in_flight -= 1
            self._room.set()

    def health(self) -> dict[str, Any]:
        behind = sum(follower.is_behind for follower in self._followers.values())
        return {
            "followed": len(self._followers),
            "behind": behind,
            "entries": self._totals["entries"],
            "quarantined": self._totals["quarantined"],
            "superseded": self._totals["superseded"],
            "last_error": self._last_error,
        }

    # --- One round a second ----------------------------------------------------------------------
    async def _round(self, stop: asyncio.Event) -> None:
        failed = False
        for partition, follower in list(self._followers.items()):
            if not (stop.is_set() or follower.is_worth_it()):
                self._news.set()
                continue
            try:
                await self._advance(partition, stop)
            except (LogError, psycopg.Error, OSError) as error:
                self._note(error, partition)
                failed = True
        if failed:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
            self._news.set()

    async def _advance(self, partition: int, stop: asyncio.Event) -> None:
        follower = self._followers.get(partition)
        if follower is None:
            return
        if follower.cursor is None:
            follower.cursor = await asyncio.to_thread(self._store.cursor, partition)
        if follower.is_behind and not stop.is_set():
            await self._read_log(partition, follower, stop)
        if follower.cursor is not None:
            await self._hand_on(partition, follower, follower.take(follower.cursor.offset))
        if follower.is_behind:
            self._news.set()

    async def _read_log(self, partition: int, follower: _Follower, stop: asyncio.Event) -> None:
        """Up to where the log ends now."""
        assert follower.cursor is not None
        follower.is_behind = False
        async with self._open_reader(partition, follower.cursor) as reader:
            async for items in reader.batches(until=await reader.end()):
                if not await self._hand_on(partition, follower, items) or stop.is_set():
                    follower.is_behind = True
                    return

    async def _hand_on(
        self, partition: int, follower: _Follower, items: Sequence[Effective]
    ) -> bool:
        """False: the follower was reset or dropped, here or while this waited."""
        generation = follower.generation
        while self._in_flight >= BATCHES_MAX:
            self._room.clear()
            await self._room.wait()
        cursor = follower.cursor
        if self._followers.get(partition) is not follower or follower.generation != generation:
            return False
        if cursor is None or not items or self._send is None:
            return cursor is not None
        follower.cursor = advanced(cursor, items)
        self._in_flight += 1
        await self._send(RatesBatch(partition, generation, cursor, follower.cursor, items))
        return True

    def _apply(self, batch: RatesBatch) -> int:
        counted = count_of(batch.items)
        self._store.apply(batch, counted)
        return counted.quarantined

    async def _drained(self) -> None:
        """The agent has done what it was given, or is given no more time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._in_flight:
                    self._room.clear()
                    await self._room.wait()

    def _is_current(self, batch: RatesBatch) -> bool:
        follower = self._followers.get(batch.partition)
        # Batches of a partition that is followed no more are still true; the checkpoint decides.
        return follower is None or follower.generation == batch.generation

    def _reset(self, partition: int) -> None:
        """What is under way is dropped; the store says where to go on."""
        follower = self._followers.get(partition)
        if follower is not None:
            self._generation += 1
            follower.generation = self._generation
            follower.cursor = None
            follower.is_behind = True
            self._news.set()

    def _note(self, error: Exception, partition: int) -> None:
        self._last_error = f"partition {partition}: {error!r}"
        log.warning("rates.failed", partition=partition, reason=repr(error))
        self._reset(partition)


def _now() -> float:
    return asyncio.get_running_loop().time()
