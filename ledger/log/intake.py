"""Reads the intakes: one consumer a process and topic, one bounded buffer a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka.errors import CorruptRecordException, KafkaError, OffsetOutOfRangeError
from aiokafka.errors import RecordTooLargeError as FetchTooSmall
from aiokafka.structs import TopicPartition

from ledger.log.connection import Connection
from ledger.log.consumers import log_consumer, stop
from ledger.log.crash_points import reach
from ledger.log.errors import LogError, LogUnavailable, OffsetOutOfRange, ReaderStuck
from ledger.log.offsets import Isolation, Offsets
from ledger.log.records import Record

BUFFERED_MAX = 5_000
"""Records of one partition; one fetch more may come on top."""
PATIENCE_SECONDS = 0.05
"""Between a fetch of nothing but patient records and the next."""


class _Followed:
    """One partition: what has come and was not taken, and where its consumer stands."""

    __slots__ = ("arrived", "buffer", "error", "moved_at", "paused", "position", "pressing")

    def __init__(self, offset: int, now: float, arrived: asyncio.Event) -> None:
        self.buffer: list[Record] = []
        self.pressing = 0
        """How many of these are of no patient type."""
        self.position = offset
        self.paused = False
        self.error: LogError | None = None
        self.arrived = arrived
        self.moved_at = now


class Intake:
    """`follow` partitions, then `take` what has arrived, without awaiting.

    A partition whose buffer is full is paused; the others go on. Errors of one partition (its
    offset is out of range) are raised by its `take` only; `failure` is the intake's own, and every
    `take` raises it.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        isolation: Isolation,
        buffered_max: int = BUFFERED_MAX,
        is_shared: bool = False,
        patient: str = "",
    ) -> None:
        """`is_shared`: partitions are followed, and let go, while others are read. `patient`: a
        type of records that may wait a little for others, because many come at about the same
        time and each fetch costs as much as many of them."""
        self._connection = connection
        self._topic = topic
        self._isolation: Isolation = isolation
        self._buffered_max = buffered_max
        self._fetch_seconds = connection.bounds.shared_fetch_seconds if is_shared else None
        self._patient = patient.encode()
        self._offsets = Offsets(connection, isolation)
        self._consumer: Any = None
        self._followed: dict[int, _Followed] = {}
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    async def start(self) -> None:
        try:
            await self._offsets.start()
            self._consumer = await self._new_consumer()
        except BaseException:
            await self.close()
            raise
        self._assign()
        for work in (self._pump(), self._watch()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop(consumer, self._connection)
        await self._offsets.close()

    @property
    def failure(self) -> BaseException | None:
        """Why the whole intake stopped; the process should not go on."""
        return self._failure

    def follow(self, partition: int, offset: int, arrived: asyncio.Event | None = None) -> None:
        """Read `partition` from `offset` on; what was buffered of it is dropped. `arrived`: as the
        method says, one for several partitions or intakes, for who waits for whichever is first."""
        known = self._followed.get(partition)
        if arrived is None:
            arrived = asyncio.Event() if known is None else known.arrived
        self._followed[partition] = _Followed(offset, _now(), arrived)
        self._assign()

    def unfollow(self, partition: int) -> None:
        if self._followed.pop(partition, None) is not None:
            self._assign()

    def take(self, partition: int, records_max: int) -> list[Record]:
        """What has arrived, in order; empty if nothing has."""
        followed = self._followed[partition]
        if self._failure is not None:
            raise LogUnavailable(f"{self._topic} is read no more") from self._failure
        buffer = followed.buffer
        taken = buffer[:records_max]
        del buffer[:records_max]
        followed.pressing = self._pressing(buffer)
        if not taken and followed.error is not None:
            raise followed.error
        if buffer or followed.error is not None:
            followed.arrived.set()
        if followed.paused and 2 * len(buffer) <= self._buffered_max:
            followed.paused = False
            followed.moved_at = _now()
            self._consumer.resume(self._place(partition))
        return taken

    def position(self, partition: int) -> int:
        """The offset to take next: everything below was taken, or is a control record or of an
        aborted transaction. Compare this with an end offset, never the last record."""
        followed = self._followed[partition]
        return followed.buffer[0].offset if followed.buffer else followed.position

    def buffered(self, partition: int) -> int:
        """How many records have come and were not taken."""
        return len(self._followed[partition].buffer)

    def presses(self, partition: int) -> bool:
        """Whether anything has come and was not taken that is of no patient type."""
        return self._followed[partition].pressing > 0

    def arrived(self, partition: int) -> asyncio.Event:
        """Set when records, a new position or an error came, or a take left some behind; the taker
        clears it, and takes after that."""
        return self._followed[partition].arrived

    async def _new_consumer(self) -> Any:
        return await log_consumer(
            self._connection,
            "intake",
            isolation=self._isolation,
            fetch_seconds=self._fetch_seconds,
        )

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def _assign(self) -> None:
        """Anew for all of them, each from behind what it has buffered."""
        reading = {p: each for p, each in self._followed.items() if each.error is None}
        if not reading:
            # An empty assignment would make the client ask for all topics of the cluster.
            self._wanted.clear()
            return
        if self._consumer is None:
            return
        self._consumer.assign([self._place(partition) for partition in reading])
        for partition, followed in reading.items():
            self._consumer.seek(self._place(partition), followed.position)
            followed.moved_at = _now()
            if followed.paused:
                self._consumer.pause(self._place(partition))
        self._wanted.set()

    async def _pump(self) -> None:
        wait_ms = int(self._connection.bounds.poll_seconds * 1000)
        while True:
            await self._wanted.wait()
            consumer = self._consumer
            try:
                found = await consumer.getmany(timeout_ms=wait_ms)
                if found:
                    reach("intake.after_poll")
            except OffsetOutOfRangeError as error:
                for place, offset in error.args[0].items():
                    self._fail(place.partition, offset, "the intake holds no such record")
                continue
            except FetchTooSmall as error:
                place, offset = error.args[1], error.args[2]
                self._fail(place.partition, offset, "a batch is larger than a fetch may be")
                continue
            if consumer is not self._consumer:
                continue  # The one in its place begins where this one was last heard.
            pressing = 0
            for place, records in found.items():
                followed = self._followed.get(place.partition)
                if followed is not None:
                    its = self._pressing(records)
                    followed.buffer += records
                    followed.pressing += its
                    pressing += its
            await self._note_positions(consumer)
            # What is there already is handed out without a pause; others must live too.
            await asyncio.sleep(PATIENCE_SECONDS if found and not pressing else 0)

    def _pressing(self, records: Sequence[Record]) -> int:
        """How many of them are of no patient type. Hot: 0.3 us a record."""
        patient = self._patient
        if not patient:
            return len(records)
        pressing = len(records)
        for record in records:
            for name, value in record.headers:
                if name == "ce_type":
                    pressing -= value == patient
                    break
        return pressing

    async def _note_positions(self, consumer: Any) -> None:
        """Also of partitions where only control records or aborted transactions passed by."""
        for partition, followed in list(self._followed.items()):
            place = self._place(partition)
            if consumer is not self._consumer or place not in consumer.assignment():
                continue
            position = await consumer.position(place)  # It is known, so this does not wait.
            if position == followed.position:
                continue
            followed.position = position
            followed.moved_at = _now()
            followed.arrived.set()
            if not followed.paused and len(followed.buffer) >= self._buffered_max:
                followed.paused = True
                consumer.pause(place)

    def _fail(self, partition: int, offset: int, what: str) -> None:
        followed = self._followed.get(partition)
        if followed is not None and followed.position == offset:
            followed.error = OffsetOutOfRange(self._topic, partition, offset, what)
            followed.arrived.set()
            self._assign()

    async def _watch(self) -> None:
        """A consumer can stop fetching for good after a broker's restart: make it anew, once."""
        stuck_seconds = self._connection.bounds.stuck_seconds
        before: dict[int, int] = {}
        while True:
            await asyncio.sleep(stuck_seconds / 4)
            stuck = await self._stuck(stuck_seconds)
            if not stuck:
                continue
            if stuck.items() & before.items():
                raise ReaderStuck(f"{self._topic}{sorted(stuck)}: records are there, none comes")
            try:
                consumer = await self._new_consumer()
            except LogUnavailable:
                continue  # Gone again: waiting is right.
            before = stuck
            old, self._consumer = self._consumer, consumer
            self._assign()
            await stop(old, self._connection)

    async def _stuck(self, stuck_seconds: float) -> dict[int, int]:
        """The partitions that lag and do not move, and where they stand."""
        silent = {
            partition: each.position
            for partition, each in self._followed.items()
            if not each.paused and not each.error and _now() - each.moved_at > stuck_seconds
        }
        if not silent:
            return {}
        try:
            ends = await self._offsets.ends(self._topic, silent)
        except LogUnavailable:
            return {}  # The broker is away: waiting is right, and others report it.
        return {each: position for each, position in silent.items() if ends[each] > position}

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, KafkaError | CorruptRecordException):
            error = LogUnavailable(f"{self._topic}: {error!r}")
        self._failure = self._failure or error
        for followed in self._followed.values():
            followed.arrived.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
