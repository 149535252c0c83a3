"""What changes, told on to all that listen: one feed a process, however many listeners.

The feed asks the views what is new when they say that they have moved, and only about what somebody
listens to: the jobs that are followed, and the partitions of the events that are. Each answer is
decoded once, encoded once, and put into the bounded queues of those that it concerns. Who does not
empty its queue in time is dropped with the reason; nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec
import structlog

from api.event_ids import NOWHERE, id_text, place_text, whole
from api.listeners import (
    FAILED,
    STOPPING,
    TURN_EVENTS,
    Ended,
    Ending,
    Followed,
    Group,
    Listener,
    Step,
    Told,
)
from api.metrics import Metrics
from api.server_sent import HEARTBEAT, pieces, position
from ledger.domain.ids import QueueName
from ledger.domain.job import Job
from projections.answers import JobFilter
from projections.change_feed import Happened, Place, matches
from projections.reads import Reads, ReadsUnavailable

POLL_SECONDS = 0.5
"""If nothing was heard for so long, the views are asked whether they moved."""
REST_SECONDS = 0.02
"""Between two rounds of the feed: what comes meanwhile comes in one."""
RETRY_SECONDS = 1.0
ROWS_MAX = 500
"""Of history, asked for at once."""
JOBS_MAX = 500
"""Followed jobs, asked about at once."""
CATCH_UPS_MAX = 4
"""Resumed streams that read the past at the same time."""
SECONDS_LEFT = 0.01
"""At the very end, when the server has given its streams their time already."""

log = structlog.get_logger(__name__)


class Full(Exception):
    """As many listen as may, or the server stops."""


class Live:
    """One a process, see `opened_live`. Nothing is asked while nobody listens."""

    def __init__(
        self,
        reads: Reads,
        *,
        partitions: int,
        partition_of: Callable[[QueueName], int],
        listeners_max: int,
        metrics: Metrics,
    ) -> None:
        self._reads = reads
        self._partitions = range(partitions)
        self._partition_of = partition_of
        self._listeners_max = listeners_max
        self._metrics = metrics
        self._is_stopping = False
        self._seats = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._has_listeners = asyncio.Event()
        self._stirred = asyncio.Event()
        self._is_followed = False
        self._heads: dict[int, int] = {}
        """Where the views stand, as last heard."""
        # Jobs.
        self._jobs: dict[str, Followed] = {}
        self._checked: dict[int, int] = {}
        """Up to where the followed jobs of a partition were asked about."""
        self._fresh: set[int] = set()
        """Partitions with a job that is followed since; what it missed must be asked for."""
        # Events.
        self._groups: dict[bytes, Group] = {}
        self._places: dict[int, Place] = {}
        """Up to where events were told."""
        self._turn = asyncio.Lock()
        """Held while events are read and told: who joins does so between two batches."""
        self._catching_up = asyncio.Semaphore(CATCH_UPS_MAX)

    # --- Seats -----------------------------------------------------------------------------------
    @property
    def listening(self) -> int:
        return self._seats

    def check_room(self) -> None:
        """Raises `Full`."""
        if self._is_stopping:
            raise Full(STOPPING.detail)
        if self._seats >= self._listeners_max:
            raise Full(f"{self._listeners_max} listen here already")

    @contextmanager
    def seat(self) -> Iterator[None]:
        """One listener's place among those that may be. Raises `Full`."""
        self.check_room()
        self._seats += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._seats -= 1
            if not self._seats:
                self._is_empty.set()

    async def stop(self, seconds_max: float) -> None:
        """All are told that the server stops; returns once they have gone or the time is over."""
        self._end_all(STOPPING)
        self._is_stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self._is_empty.wait()

    def _end_all(self, ending: Ending) -> None:
        for followed in self._jobs.values():
            for follower in followed.listeners:
                follower.end(ending)
        for group in self._groups.values():
            for listener in group.listeners:
                listener.end(ending)

    # --- One job ---------------------------------------------------------------------------------
    @contextmanager
    def following(self, job: Job, partition: int) -> Iterator[tuple[Job, Listener[Step]]]:
        """The job as its other listeners know it or, where it is older, as given; and each step
        from the former on. So those up to the given version are to be passed over."""
        followed = self._jobs.get(job.id)
        if followed is None:
            followed = self._jobs[job.id] = Followed(job, partition)
            self._fresh.add(partition)
            self._wake()
        listener: Listener[Step] = Listener(self._metrics.drop_listener)
        if self._is_stopping:
            listener.end(STOPPING)
        followed.listeners.add(listener)
        newer = followed.job if followed.job.version > job.version else job
        try:
            yield newer, listener
        finally:
            followed.listeners.discard(listener)
            if not followed.listeners and self._jobs.get(job.id) is followed:
                del self._jobs[job.id]

    # --- All events ------------------------------------------------------------------------------
    async def told(
        self, where: JobFilter, since: Mapping[int, Place], heartbeat_seconds: float
    ) -> AsyncGenerator[bytes]:
        """A stream of events as they come, to be sent as it is. It begins at `since` and, in the
        partitions that it does not name, now. Raises `Ended`."""
        wanted = frozenset(
            self._partition_of(QueueName(name)) for name in where.queues
        ) or frozenset(self._partitions)
        places = dict.fromkeys(self._partitions, NOWHERE)
        places |= {p: whole(offset) for p, offset in (await self._reads.positions()).items()}
        places |= since
        yield position(id_text(places))
        if since:
            async for chunk in self._past(where, places, wanted):
                yield chunk
        async with self._joined(where, wanted) as (listener, joined_at):
            async for chunk in self._past(where, places, wanted, until=joined_at):
                yield chunk
            # Told by a process that was ahead of this one: not to be told again.
            ahead = {p: places[p] for p in wanted if places[p] > joined_at[p]}
            while True:
                items = await listener.take(heartbeat_seconds)
                if not items:
                    yield HEARTBEAT if ahead else HEARTBEAT + position(id_text(self._places))
                    continue
                if ahead:
                    items = [one for one in items if one.place > ahead.get(one.partition, NOWHERE)]
                    ahead = {p: place for p, place in ahead.items() if place > self._places[p]}
                for piece in pieces(one.frame for one in items):
                    yield piece

    async def _past(
        self,
        where: JobFilter,
        places: dict[int, Place],
        wanted: frozenset[int],
        until: Mapping[int, Place] | None = None,
    ) -> AsyncGenerator[bytes]:
        """From `places` on, which it moves; without `until` up to where little is left to read."""
        is_far = True
        while is_far:
            is_far = False
            ends = until or {p: whole(at) for p, at in (await self._reads.positions()).items()}
            for partition in sorted(wanted & ends.keys()):
                while places[partition] < ends[partition]:
                    if self._is_stopping:
                        raise Ended(STOPPING)
                    async with self._catching_up:
                        changes = await self._reads.changes(
                            partition, places[partition], ends[partition][0], rows_max=ROWS_MAX
                        )
                    is_far |= whole(changes.until) < ends[partition]
                    for first in range(0, len(changes.items), TURN_EVENTS):
                        turn = changes.items[first : first + TURN_EVENTS]
                        for piece in pieces(_frames(where, places, turn)):
                            yield piece
                    places[partition] = whole(changes.until)
                    yield position(id_text(places))

    @asynccontextmanager
    async def _joined(
        self, where: JobFilter, partitions: frozenset[int]
    ) -> AsyncIterator[tuple[Listener[Told], dict[int, Place]]]:
        """A listener, and from where on it is told everything."""
        listener: Listener[Told] = Listener(self._metrics.drop_listener)
        key = msgspec.json.encode(where, order="deterministic")
        async with self._turn:
            known = self._told_partitions()
            positions = await self._reads.positions()
            for partition in self._partitions:
                if partition not in known:
                    self._places[partition] = whole(positions.get(partition, -1))
            group = self._groups.setdefault(key, Group(where, partitions))
            group.listeners.add(listener)
            places = dict(self._places)
        if self._is_stopping:
            listener.end(STOPPING)
        self._wake()
        try:
            yield listener, places
        finally:
            group.listeners.discard(listener)
            if not group.listeners and self._groups.get(key) is group:
                del self._groups[key]

    def _told_partitions(self) -> frozenset[int]:
        return frozenset().union(*(group.partitions for group in self._groups.values()))

    # --- The feed --------------------------------------------------------------------------------
    def _wake(self) -> None:
        if not self._is_followed:
            self._is_followed = True
            self._reads.follow(self._stir)
        self._has_listeners.set()
        self._stirred.set()

    def _stir(self, partition: int, offset: int) -> None:
        self._heads[partition] = max(offset, self._heads.get(partition, -1))
        self._stirred.set()

    async def run(self) -> None:
        """For ever. Without listeners it sleeps."""
        while True:
            await self._has_listeners.wait()
            if not self._jobs and not self._groups:
                self._has_listeners.clear()
                continue
            try:
                await self._round()
                await asyncio.sleep(REST_SECONDS)
            except ReadsUnavailable as error:
                log.warning("feed_waits", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._stirred.set()
            except Exception:
                log.exception("feed_failed")
                self._end_all(FAILED)
                await asyncio.sleep(RETRY_SECONDS)

    async def _round(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._stirred.wait()
        except TimeoutError:
            for partition, offset in (await self._reads.positions()).items():
                self._stir(partition, offset)
        self._stirred.clear()
        await self._tell_followers()
        await self._tell_listeners()

    async def _tell_followers(self) -> None:
        heads = dict(self._heads)
        fresh, self._fresh = self._fresh, set()
        moved = {p for p, head in heads.items() if head > self._checked.get(p, -1)} | fresh
        versions = {
            job_id: followed.job.version
            for job_id, followed in self._jobs.items()
            if followed.partition in moved and followed.job.end is None
        }
        try:
            ids = list(versions)
            for first in range(0, len(ids), JOBS_MAX):
                asked = {job_id: versions[job_id] for job_id in ids[first : first + JOBS_MAX]}
                self._metrics.ask_feed()
                for changed in await self._reads.changed_jobs(asked):
                    followed = self._jobs.get(changed.job.id)
                    if followed is not None:
                        await followed.go_on(changed)
        except BaseException:
            self._fresh |= moved
            raise
        self._checked |= heads

    async def _tell_listeners(self) -> None:
        for partition, head in sorted(self._heads.items()):
            while partition in self._told_partitions():
                async with self._turn:
                    place = self._places[partition]
                    if place >= whole(head):
                        break
                    self._metrics.ask_feed()
                    changes = await self._reads.changes(partition, place, head, rows_max=ROWS_MAX)
                    await self._tell(partition, changes.items)
                    self._places[partition] = whole(changes.until)
            else:
                # Nobody is told of it, so nothing of it was missed.
                self._places[partition] = max(whole(head), self._places.get(partition, NOWHERE))

    async def _tell(self, partition: int, items: tuple[Happened, ...]) -> None:
        texts = [place_text(p, self._places[p]) for p in self._partitions]
        for number, happened in enumerate(items, 1):
            self._places[partition] = happened.place
            told: Told | None = None
            for group in self._groups.values():
                if partition in group.partitions and matches(group.where, happened):
                    if told is None:
                        texts[partition] = place_text(partition, happened.place)
                        told = _told(",".join(texts), happened)
                    for listener in group.listeners:
                        listener.offer(told)
            if number % TURN_EVENTS == 0:
                await asyncio.sleep(0)


def _told(id: str, happened: Happened) -> Told:
    return Told(id, happened.event(), happened.place)


def _frames(
    where: JobFilter, places: dict[int, Place], items: tuple[Happened, ...]
) -> Iterator[bytes]:
    """Of those that the filter lets through; `places` moves to the last."""
    for happened in items:
        places[happened.partition] = happened.place
        if matches(where, happened):
            yield _told(id_text(places), happened).frame


@asynccontextmanager
async def opened_live(
    reads: Reads,
    *,
    partitions: int,
    partition_of: Callable[[QueueName], int],
    listeners_max: int,
    metrics: Metrics,
) -> AsyncIterator[Live]:
    """The feed runs within the block; at its end nobody is told anything any more."""
    one = Live(
        reads,
        partitions=partitions,
        partition_of=partition_of,
        listeners_max=listeners_max,
        metrics=metrics,
    )
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        await one.stop(SECONDS_LEFT)
        running.cancel()
        await asyncio.wait((running,))
