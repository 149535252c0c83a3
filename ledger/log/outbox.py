"""Sends effects and commands: whole batches only, every wait bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ledger.log.connection import BATCH_BYTES_MAX, Connection
from ledger.log.crash_points import reach
from ledger.log.errors import LogError, LogUnavailable, RecordTooLarge
from ledger.log.producer import Producer
from ledger.log.records import Outgoing

RECORD_OVERHEAD = 64
"""At most what a record takes in a batch beyond its own bytes and its headers'."""
HEADER_OVERHEAD = 10
RECORD_BYTES_MAX = BATCH_BYTES_MAX - 128
WAITING_MAX = 100_000
"""Records of one partition that wait for a batch; more are refused at once."""

_Waiting = tuple[Sequence[Outgoing], int, asyncio.Future[int]]
"""Records, their size, and who waits for the offset of the first."""


class _Lane:
    """What waits for one partition, and the task that sends it."""

    __slots__ = ("records", "task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.records = 0
        self.task: asyncio.Task[None] | None = None


class Outbox:
    """One per process. Calls to one partition that come while a batch is in flight share the next.

    Raises `LogUnavailable` when the broker does not acknowledge in time (the records may have
    landed, and may still), `AppendRefused` when it refuses for good, and `RecordTooLarge` before
    anything is sent.
    """

    def __init__(self, connection: Connection, *, role: str = "outbox") -> None:
        self._connection = connection
        self._role = role
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Raises `LogUnavailable` if no broker answers."""
        await self._started()

    async def close(self) -> None:
        """Lets what is handed over go out, within the bound of an append."""
        self._closed = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._connection.bounds.append_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        if self._producer is not None:
            self._drop(self._producer)
        if self._closing:
            await asyncio.wait(self._closing)

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> int:
        """The offset of the first record. Records of one call stay in order; many may leave in
        several batches, of which a later one can fail while an earlier one has landed."""
        base = self.posted(topic, partition, records)
        return await base

    def posted(
        self, topic: str, partition: int, records: Sequence[Outgoing]
    ) -> asyncio.Future[int]:
        """What `send` waits for; to be waited for as well. For who sends to many places: a task for
        each would cost as much as ten records."""
        base: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            size = self._size(records)
            lane = self._lanes.setdefault((topic, partition), _Lane())
            if lane.records + len(records) > WAITING_MAX and lane.records:
                waiting = f"{lane.records} records wait for {topic}[{partition}] already"
                raise LogUnavailable(waiting)
        except (LogError, ValueError) as error:
            base.set_exception(error)
            return base
        lane.waiting.append((records, size, base))
        lane.records += len(records)
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(topic, partition, lane))
        return base

    def _size(self, records: Sequence[Outgoing]) -> int:
        if self._closed:
            raise LogUnavailable("the outbox is closed")
        if not records:
            raise ValueError("nothing to send")
        sizes = [size_of(record) for record in records]
        if (largest := max(sizes)) > RECORD_BYTES_MAX:
            raise RecordTooLarge(f"a record takes {largest} bytes; {RECORD_BYTES_MAX} fit")
        return sum(sizes)

    async def send_one(self, topic: str, partition: int, record: Outgoing) -> int:
        """The record's offset."""
        return await self.send(topic, partition, (record,))

    async def _run(self, topic: str, partition: int, lane: _Lane) -> None:
        try:
            while lane.waiting:
                group, records, size = _next_group(lane)
                if not group:
                    continue
                parts = [records] if size <= RECORD_BYTES_MAX else _cut(records)
                try:
                    base = await self._append(topic, partition, parts)
                except Exception as error:
                    _fail(group, error)
                    continue
                except asyncio.CancelledError:
                    _fail(group, LogUnavailable("the outbox was closed"))
                    raise
                for sent, _, waiter in group:
                    if not waiter.done():
                        waiter.set_result(base)
                    base += len(sent)
        finally:
            lane.task = None
            _fail(lane.waiting, LogUnavailable("the outbox was closed"))
            lane.waiting.clear()

    async def _append(self, topic: str, partition: int, parts: Sequence[Sequence[Outgoing]]) -> int:
        """Each in one batch. The offset of the first record."""
        first: int | None = None
        producer = await self._started()
        try:
            for part in parts:
                # The broker says when; see the topics' settings.
                batch = producer.batch(part, timestamp=0)
                reach("outbox.before_append")
                sent = await producer.send(topic, partition, batch)
                appended = await producer.acknowledged(sent)
                reach("outbox.after_append")
                if appended.offset is None:
                    raise LogUnavailable("acknowledged without an offset: nobody knows where")
                first = appended.offset if first is None else first
        except LogUnavailable:
            # It would go on trying, and hold up what comes after.
            if self._producer is producer:
                self._drop(producer)
            raise
        if first is None:
            raise ValueError("nothing to send")
        return first

    async def _started(self) -> Producer:
        async with self._starting:
            if self._producer is None:
                producer = Producer(self._connection, self._role)
                await producer.start()
                self._producer = producer
            return self._producer

    def _drop(self, producer: Producer) -> None:
        self._producer = None
        closing = asyncio.create_task(producer.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def size_of(record: Outgoing) -> int:
    """At most what it takes in a batch, before compression."""
    key, value, headers = record
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content) + HEADER_OVERHEAD
    return size


def _next_group(lane: _Lane) -> tuple[list[_Waiting], list[Outgoing], int]:
    """Whole calls, as many as fit one batch; one at least. Their records, and the size of these."""
    group: list[_Waiting] = []
    records: list[Outgoing] = []
    size = 0
    while lane.waiting:
        of_next = lane.waiting[0][1]
        if group and size + of_next > RECORD_BYTES_MAX:
            break
        waiting = lane.waiting.popleft()
        lane.records -= len(waiting[0])
        if waiting[2].done():
            continue  # Whoever asked has gone before anything was sent.
        group.append(waiting)
        records += waiting[0]
        size += of_next
    return group, records, size


def _cut(records: Sequence[Outgoing]) -> list[list[Outgoing]]:
    parts: list[list[Outgoing]] = [[]]
    size = 0
    for record in records:
        of_record = size_of(record)
        if parts[-1] and size + of_record > RECORD_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(record)
        size += of_record
    return parts


def _fail(group: Sequence[_Waiting] | deque[_Waiting], error: Exception) -> None:
    for _, _, waiter in group:
        if not waiter.done():
            waiter.set_exception(error)
