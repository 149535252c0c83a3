"""The two sources of a projector behind one seam.

Where the owner of a partition lives in this process, it feeds the proven entries, with the jobs as
they left them. At the start, after any gap and for partitions without an owner here, the log is
read from the checkpoint. Rivals are settled by the checkpoint's compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct

from ledger.domain.ids import SECOND, JobId, Micros
from ledger.domain.job import Job
from ledger.log.effective import Cursor, Effective, TakenOver
from ledger.log.errors import LogBroken, LogError
from projections.batches import Applied, Batch, end_of
from projections.checkpoints import CheckpointLost, Superseded
from projections.packing import StoredByAnotherVersion
from projections.projector import NotTogether, ViewsBroken, ViewsUnavailable

BATCH_SECONDS = 0.3
"""Under load that long from one round of batches to the next: a job that lives shorter costs one
row instead of several. 150 ms against 50: 3,230 jobs a second instead of 2,910, 12 us less of
Postgres and 22 us less of the worker a job; 400 against 150: 8 and 2 us less. Views are that much
later."""
BUSY_ENTRIES = 16
"""A round of so many entries counts as load."""
BATCH_EVENTS_MAX = 20_000
"""In one transaction."""
READ_ITEMS_MAX = 20_000
"""Read from the log ahead of what is applied, a partition."""
LOOK_SECONDS = 10.0
"""So often the checkpoint of a partition of which nothing is to be done is looked at: an older copy
of the database may have been put back."""
PAUSE_SECONDS = (0.2, 5.0)
"""After a failure, growing from the first to the last."""
DRAIN_SECONDS = 5.0
"""At the end, for what was offered already."""

INCURABLE = (CheckpointLost, StoredByAnotherVersion, ViewsBroken, LogBroken)
"""What no retry can cure: stop, and let somebody look."""

_log = structlog.get_logger("projections")
Answer = TypeVar("Answer")


class Source(Protocol):
    """`ledger.log.entries_reader.read` with its connection and topics bound."""

    def __call__(
        self, partition: int, cursor: Cursor, *, until: int | None = None
    ) -> AsyncGenerator[list[Effective]]:
        """The effective items from a cursor on; without `until`, for ever."""
        ...


class Views(Protocol):
    """What a feed moves: a `Projector`, blocking, always called in the feed's thread."""

    def cursor(self, partition: int) -> Cursor: ...
    def apply(self, batch: Batch) -> Applied: ...
    def apply_together(self, batches: Sequence[Batch]) -> list[Applied]: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...


class PartitionHealth(Struct, frozen=True, gc=False):
    offset: int
    """The checkpoint: the next offset to read; -1: not yet known."""
    fed: bool
    lag_seconds: float
    """Age of the oldest event that is known here and not applied; 0: none."""
    error: str | None
    """Why the last attempt failed; None once one has succeeded."""
    superseded: int = 0
    """How often the checkpoint was not where it had been left: another projector had moved it, or
    an older copy of the database was put back."""


class _Followed:
    """One partition: its checkpoint, what was offered, what was read."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.offset: int | None = None
        """The checkpoint as last seen; None: to be asked for."""
        self.fed = False
        """Whether the owner's items are the source, so that silence means that there are none."""
        self.owner_at: int | None = None
        """Where what the owner offers next begins; None: unknown, or no owner is here."""
        self.offered: deque[Batch] = deque()
        """Without gaps, each continuing the one before."""
        self.offered_events = 0
        self.read: deque[Effective] = deque()
        """From the log, continuing the checkpoint."""
        self.room = asyncio.Event()
        self.tail: asyncio.Task[None] | None = None
        self.error: str | None = None
        self.failures = 0
        self.pause_until = 0.0
        self.look_at = 0.0
        self.superseded = 0

    def offer(self, batch: Batch, events_max: int) -> bool:
        """Whether it is kept. What it does not continue is dropped, and so is all when there is no
        room; the log has it."""
        events = _events_in(batch.items)
        self.owner_at = batch.after
        if self.offered and self.offered[-1].after != batch.before:
            self.drop_offered()
        if self.offered_events + events > events_max:
            self.drop_offered()
            return False
        self.offered.append(batch)
        self.offered_events += events
        return True

    def drop_offered(self) -> None:
        self.offered.clear()
        self.offered_events = 0
        self.fed = False

    def move(self, offset: int) -> None:
        """The checkpoint is here now: what lies below is applied."""
        self.offset = offset
        offered = self.offered
        while offered and offered[0].after <= offset:
            self.offered_events -= _events_in(offered.popleft().items)
        if offered and offered[0].before < offset:
            first = offered.popleft()
            kept = [item for item in first.items if end_of(item) > offset]
            self.offered_events += _events_in(kept) - _events_in(first.items)
            offered.appendleft(Batch(first.partition, offset, kept, first.jobs))
        while self.read and end_of(self.read[0]) <= offset:
            self.read.popleft()

    def is_continued(self) -> bool:
        """Whether what is offered goes on where the checkpoint stands."""
        return bool(self.offered) and self.needs_no_log()

    def needs_no_log(self) -> bool:
        """What is offered, or will be, goes on where the checkpoint stands."""
        at = self.offered[0].before if self.offered else self.owner_at
        return self.offset is not None and self.offset == at

    def next_batch(self) -> Batch | None:
        if self.offset is None:
            return None
        if self.is_continued():
            return _joined(self.offered)
        if self.read:
            return Batch(self.partition, self.offset, _first_of(self.read))
        return None

    def oldest_at(self) -> Micros | None:
        """Of the first item that is known and not applied."""
        if self.offered:
            first = self.offered[0].items[0]
        elif self.read:
            first = self.read[0]
        else:
            return None
        return first.take_over.at if isinstance(first, TakenOver) else first.entry.at


class ProjectorFeed:
    """One a process, with a thread of its own for Postgres. `follow`, `offer`, `unfollow` and
    `health` belong to the event loop and never block; all that waits here is bounded."""

    def __init__(
        self,
        projector: Views,
        source: Source,
        *,
        now: Callable[[], Micros],
        buffered_events_max: int = 50_000,
        thread: Executor | None = None,
    ) -> None:
        """`buffered_events_max` bounds what was offered of one partition and waits. The projector
        belongs to the feed from here on."""
        self._projector = projector
        self._source = source
        self._now = now
        self._buffered_events_max = buffered_events_max
        self._followed: dict[int, _Followed] = {}
        self._work = asyncio.Event()
        self._tails: set[asyncio.Task[None]] = set()
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="projector")
        self._round_at = 0.0
        self._incurable: Exception | None = None

    # --- For the owner ---------------------------------------------------------------------------
    def follow(self, partition: int, offset: int | None = None) -> None:
        """Keep this partition's views up to date, from the log until they have reached what is
        offered. `offset`: where that will begin; None: whoever offers will tell. Again: no news."""
        if partition not in self._followed:
            followed = self._followed[partition] = _Followed(partition)
            followed.owner_at = offset
            self._work.set()

    def offer(
        self,
        partition: int,
        before: int,
        items: Sequence[Effective],
        jobs: Mapping[JobId, Job] | None = None,
    ) -> bool:
        """Proven items, in order; see `Batch`. False: there is no room, or nobody follows the
        partition; the log will be read."""
        followed = self._followed.get(partition)
        if followed is None:
            return False
        if not items:
            return True
        kept = followed.offer(Batch(partition, before, items, jobs), self._buffered_events_max)
        self._work.set()
        return kept

    def unfollow(self, partition: int) -> None:
        """What was offered and not yet begun is dropped: whoever follows the partition next goes
        on from the checkpoint. Again: no news."""
        followed = self._followed.pop(partition, None)
        if followed is not None:
            self._stop_tail(followed)

    def health(self) -> dict[int, PartitionHealth]:
        now = self._now()
        found = {}
        for partition, followed in self._followed.items():
            oldest = followed.oldest_at()
            found[partition] = PartitionHealth(
                offset=-1 if followed.offset is None else followed.offset,
                fed=followed.fed,
                lag_seconds=0.0 if oldest is None else max(0, now - oldest) / SECOND,
                error=followed.error,
                superseded=followed.superseded,
            )
        return found

    # --- The loop --------------------------------------------------------------------------------
    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then what was offered is applied, within `DRAIN_SECONDS`. Raises one of
        `INCURABLE`, or what nobody expected."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._until_work(stopping)
                began = _clock()
                entries = await self._round()
                if entries >= BUSY_ENTRIES:
                    rest = BATCH_SECONDS - (_clock() - began)
                    await asyncio.wait([stopping], timeout=max(rest, 0))
            await self._drain()
        finally:
            stopping.cancel()
            for followed in self._followed.values():
                self._stop_tail(followed)
            if self._tails:
                await asyncio.wait(self._tails, timeout=DRAIN_SECONDS)
            self._thread.submit(self._projector.close)
            self._thread.shutdown(wait=False)

    async def _until_work(self, stopping: asyncio.Task[bool]) -> None:
        work = asyncio.create_task(self._work.wait())
        # Pauses that were over by the last round have had theirs, even if nothing came of it.
        pauses = (followed.pause_until for followed in self._followed.values())
        waits = [until - _clock() for until in pauses if until > self._round_at]
        try:
            await asyncio.wait(
                [work, stopping],
                timeout=max(min([*waits, LOOK_SECONDS]), 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            work.cancel()
        self._work.clear()

    async def _round(self) -> int:
        """One batch of every partition that has one; returns how many entries."""
        if self._incurable is not None:
            raise self._incurable
        self._round_at = now = _clock()
        return await self._advance([f for f in self._followed.values() if now >= f.pause_until])

    async def _drain(self) -> None:
        """The rest of what was offered; what comes from the log can wait for the next start."""
        deadline = _clock() + DRAIN_SECONDS
        left = list(self._followed.values())
        while (left := [each for each in left if each.is_continued()]) and _clock() < deadline:
            await self._advance(left)
            left = [each for each in left if each.error is None]

    async def _advance(self, partitions: Sequence[_Followed]) -> int:
        """Applies a batch of each, if there is one; returns how many entries they had."""
        ready: list[tuple[_Followed, Batch]] = []
        for followed in partitions:
            with self._set_back(followed):
                batch = await self._next_batch(followed)
                if batch is None:
                    await self._look(followed)
                else:
                    ready.append((followed, batch))
        return sum([await self._apply(group) for group in _groups(ready)])

    async def _apply(self, ready: Sequence[tuple[_Followed, Batch]]) -> int:
        """In one transaction, or each in its own where that cannot be; returns how many entries."""
        if len(ready) == 1:
            [(followed, batch)] = ready
            with self._set_back(followed):
                its = await self._in_thread(lambda: self._projector.apply(batch))
                self._applied(followed, its)
                return its.entries
            return 0
        batches = [batch for _, batch in ready]
        try:
            applied = await self._in_thread(lambda: self._projector.apply_together(batches))
        except NotTogether:
            return sum([await self._apply([one]) for one in ready])
        except ViewsUnavailable as error:
            for followed, _ in ready:
                self._failed(followed, error)
            return 0
        of = {followed.partition: followed for followed, _ in ready}
        for its in applied:
            self._applied(of[its.partition], its)
        return sum(its.entries for its in applied)

    @contextmanager
    def _set_back(self, followed: _Followed) -> Iterator[None]:
        """What goes wrong with one partition stops no other."""
        try:
            yield
        except Superseded:
            # Somebody else is at it, too. Where we both stand is in the database.
            followed.superseded += 1
            self._stop_tail(followed)
            followed.offset = None
            self._work.set()
        except ViewsUnavailable as error:
            self._failed(followed, error)

    async def _next_batch(self, followed: _Followed) -> Batch | None:
        if not followed.needs_no_log() and not followed.fed and followed.tail is None:
            await self._resume(followed)
        if followed.needs_no_log() and not followed.fed:
            self._stop_tail(followed)
            followed.fed = True
        elif followed.offered and not followed.is_continued():
            followed.fed = False  # A gap: the log has what is missing.
            if followed.tail is None:
                await self._resume(followed)
        return followed.next_batch()

    def _applied(self, followed: _Followed, applied: Applied) -> None:
        followed.move(applied.offset)
        followed.room.set()
        self._succeeded(followed)
        if applied.misfits:
            _log.warning(
                "events_do_not_fit",
                partition=applied.partition,
                offset=applied.offset,
                count=applied.misfits,
            )
        is_over = followed.tail is not None and followed.needs_no_log()
        if is_over or followed.next_batch() is not None:
            self._work.set()

    async def _look(self, followed: _Followed) -> None:
        """Nothing has come for a while. Raises `Superseded` if the checkpoint is not where it was
        left."""
        if followed.offset is None or _clock() < followed.look_at:
            return
        failures = followed.failures
        cursor = await self._in_thread(lambda: self._projector.cursor(followed.partition))
        if cursor.offset != followed.offset:
            raise Superseded(f"partition {followed.partition}", followed.offset, cursor.offset)
        if followed.failures == failures:  # The log's reader has not failed meanwhile.
            self._succeeded(followed)
        await self._in_thread(self._projector.rest)

    async def _resume(self, followed: _Followed) -> None:
        """From the stored checkpoint; reads the log unless what is offered continues it."""
        cursor = await self._in_thread(lambda: self._projector.cursor(followed.partition))
        followed.read.clear()
        followed.move(cursor.offset)
        if not followed.needs_no_log() and self._followed.get(followed.partition) is followed:
            tail = asyncio.create_task(self._read_log(followed, cursor))
            followed.tail = tail
            self._tails.add(tail)
            tail.add_done_callback(self._tails.discard)

    async def _read_log(self, followed: _Followed, cursor: Cursor) -> None:
        try:
            async with aclosing(self._source(followed.partition, cursor)) as found:
                async for items in found:
                    followed.read.extend(items)
                    self._work.set()
                    while len(followed.read) >= READ_ITEMS_MAX:
                        followed.room.clear()
                        await followed.room.wait()
        except Exception as error:
            if isinstance(error, LogError) and not isinstance(error, INCURABLE):
                self._failed(followed, error)
            else:
                self._incurable = error
        finally:
            if followed.tail is asyncio.current_task():
                followed.tail = None
            self._work.set()

    def _stop_tail(self, followed: _Followed) -> None:
        tail, followed.tail = followed.tail, None
        followed.read.clear()
        if tail is not None:
            tail.cancel()

    def _succeeded(self, followed: _Followed) -> None:
        followed.error, followed.failures, followed.pause_until = None, 0, 0.0
        followed.look_at = _clock() + LOOK_SECONDS

    def _failed(self, followed: _Followed, error: Exception) -> None:
        shortest, longest = PAUSE_SECONDS
        followed.error = f"{type(error).__name__}: {error}"
        followed.failures += 1
        pause = min(shortest * 2 ** (followed.failures - 1), longest)
        followed.pause_until = _clock() + pause
        # It is over once nothing has failed for so long.
        followed.look_at = _clock() + LOOK_SECONDS
        _log.warning(
            "projector_paused", partition=followed.partition, why=followed.error, seconds=pause
        )

    async def _in_thread(self, ask: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _events_in(items: Sequence[Effective]) -> int:
    """A take-over counts as one, so that everything has a size."""
    return sum(1 if isinstance(item, TakenOver) else len(item.entry.events) for item in items)


def _joined(offered: deque[Batch]) -> Batch:
    """As many as one transaction takes."""
    first = offered[0]
    items: list[Effective] = []
    jobs: dict[JobId, Job] | None = {}
    events = 0
    for batch in offered:
        events += _events_in(batch.items)
        if items and events > BATCH_EVENTS_MAX:
            break
        items.extend(batch.items)
        if batch.jobs is None or jobs is None:
            jobs = None
        else:
            jobs.update(batch.jobs)
    return Batch(first.partition, first.before, items, jobs)


def _groups(ready: Iterable[tuple[_Followed, Batch]]) -> Iterator[list[tuple[_Followed, Batch]]]:
    """As many as one transaction takes; what failed last time by itself."""
    group: list[tuple[_Followed, Batch]] = []
    events = 0
    for followed, batch in ready:
        if followed.failures:
            yield [(followed, batch)]
            continue
        its = _events_in(batch.items)
        if group and events + its > BATCH_EVENTS_MAX:
            yield group
            group, events = [], 0
        group.append((followed, batch))
        events += its
    if group:
        yield group


def _first_of(read: deque[Effective]) -> list[Effective]:
    items: list[Effective] = []
    events = 0
    for item in read:
        events += _events_in((item,))
        if items and events > BATCH_EVENTS_MAX:
            break
        items.append(item)
    return items
