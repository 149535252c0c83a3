"""What aiokafka's clients look like to `ledger.log`, in front of a simulated broker.

Only what is used of them is here, with their answers and their errors. What aiokafka's own clients
do by themselves (retries of an idempotent producer, the order of its batches, a member's
heartbeats) is done here as they do it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiokafka.admin.config_resource import ConfigResource
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, TopicAlreadyExistsError
from aiokafka.structs import OffsetAndTimestamp, RecordMetadata, TopicPartition

from ledger.log.clients import Clients
from ledger.log.records import Outgoing
from tests.simulation.broker import Broker, Log, Sent, Stored
from tests.simulation.loop import current

RETRY_SECONDS = 0.1
"""aiokafka's own pause before an append is tried again."""
RECORD_OVERHEAD = 70


def clients_of(broker: Broker) -> Clients:
    return Clients(
        producer=partial(Producer, broker),
        consumer=partial(Consumer, broker),
        admin=partial(Admin, broker),
    )


class Client:
    """The part of a network that one client has: a trip each way, none while it is cut off."""

    def __init__(self, broker: Broker, words: dict[str, Any]) -> None:
        self.broker = broker
        self.process = current()
        self.name = words["client_id"]
        self.request_seconds = words["request_timeout_ms"] / 1000

    async def start(self) -> None:
        await self.trip()

    async def trip(self) -> None:
        process, loop = self.process, self.broker.loop
        while process is not None and (left := process.cut_until - loop.now) > 0:  # noqa: ASYNC110 - it may grow
            await asyncio.sleep(left)
        await asyncio.sleep(self.broker.weather.trip_seconds(process))

    @property
    def is_cut(self) -> bool:
        return self.process is not None and self.process.cut_until > self.broker.loop.now


# --- Appending ------------------------------------------------------------------------------------
class Batch:
    def __init__(self, bytes_max: int) -> None:
        self.records: list[Outgoing] = []
        self._left = bytes_max

    def append(
        self,
        *,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> object | None:
        size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(content) for name, content in headers)
        if size > self._left:
            return None
        self._left -= size
        self.records.append((key, value, headers))
        return self

    def close(self) -> None:
        pass


class Lane:
    """What one producer sends to one partition: one batch under way at a time."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Sent, asyncio.Future[RecordMetadata]]] = deque()
        self.is_busy = False
        self.count = 0


class Producer:
    """Tries each batch until it is acknowledged, or until it is closed."""

    def __init__(self, broker: Broker, **words: Any) -> None:
        self._io = Client(broker, words)
        self._broker = broker
        self._id = next(broker.loop.numbers)
        self._bytes_max = words["max_batch_size"]
        self._lanes: dict[TopicPartition, Lane] = {}
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None
        # What `ledger.log.producer` reaches for when a producer will not stop.
        self._sender = SimpleNamespace(sender_task=None)
        self._message_accumulator = SimpleNamespace(fail_all=self._fail_all)
        self.client = SimpleNamespace(close=_nothing)

    async def start(self) -> None:
        await self._io.start()

    async def stop(self) -> None:
        """Waits for what was handed over."""
        if any(lane.waiting for lane in self._lanes.values()):
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied
        self._closed = True

    def create_batch(self) -> Batch:
        return Batch(self._bytes_max)

    async def send_batch(
        self, batch: Batch, topic: str, *, partition: int
    ) -> asyncio.Future[RecordMetadata]:
        await asyncio.sleep(0)
        place = TopicPartition(topic, partition)
        lane = self._lanes.setdefault(place, Lane())
        lane.count += 1
        by = f"{self._io.process.name if self._io.process else ''}/{self._io.name}"
        sent = Sent(self._id, lane.count, topic, partition, batch.records, by)
        done: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        lane.waiting.append((sent, done))
        if not lane.is_busy:
            self._send_next(place, lane)
        return done

    def _send_next(self, place: TopicPartition, lane: Lane) -> None:
        if self._closed or not lane.waiting:
            lane.is_busy = False
            is_empty = not any(each.waiting for each in self._lanes.values())
            if self._emptied is not None and is_empty:
                _set(self._emptied, None)
            return
        lane.is_busy = True
        loop = asyncio.get_running_loop()
        if self._io.is_cut:
            loop.call_later(self._io.request_seconds, self._send_next, place, lane)
            return
        sent, done = lane.waiting[0]
        settled = loop.create_future()
        settled.add_done_callback(lambda future: self._answered(place, lane, sent, done, future))
        answer: Callable[[int | None, int], None] = partial(self._answer, settled)
        way = self._broker.carry(sent, answer)
        patience = RETRY_SECONDS if way.refused else self._io.request_seconds
        loop.call_later(patience, _set, settled, None)

    def _answer(self, settled: asyncio.Future[Any], offset: int | None, at: int) -> None:
        """In nature's time; whoever is cut off meanwhile does not hear it."""
        if not self._io.is_cut and not settled.done():
            settled.set_result((offset, at))

    def _answered(
        self,
        place: TopicPartition,
        lane: Lane,
        sent: Sent,
        done: asyncio.Future[RecordMetadata],
        future: asyncio.Future[tuple[int | None, int] | None],
    ) -> None:
        answer = future.result()
        if self._closed:
            return
        if answer is not None:
            offset, at = answer
            lane.waiting.popleft()
            if not done.done():
                base = -1 if offset is None else offset
                done.set_result(RecordMetadata(*place, place, base, at, 1, None))
        self._send_next(place, lane)

    def _fail_all(self, error: KafkaError) -> None:
        self._closed = True
        for lane in self._lanes.values():
            while lane.waiting:
                _, done = lane.waiting.popleft()
                if not done.done():
                    done.set_exception(error)


# --- Reading --------------------------------------------------------------------------------------
class Consumer:
    def __init__(self, broker: Broker, **words: Any) -> None:
        self._io = Client(broker, words)
        self._broker = broker
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._membership: asyncio.Task[None] | None = None
        self._words = words
        self._member_id = ""
        # What `ledger.log.consumers` reaches for when a consumer will not stop.
        self._coordinator = SimpleNamespace()
        self._fetcher = None
        self._client = SimpleNamespace(close=_nothing, _wait_on_metadata=self._known)

    async def start(self) -> None:
        await self._io.start()

    async def stop(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.cancel()
            await asyncio.wait([membership])
            await self._io.trip()
            self._broker.group.leave(self._member_id)

    async def _known(self, topic: str) -> None:
        pass

    # --- By hand ---------------------------------------------------------------------------------
    def assign(self, places: Iterable[TopicPartition]) -> None:
        self._positions = {place: self._positions.get(place, -1) for place in places}
        self._paused &= self._positions.keys()

    def assignment(self) -> set[TopicPartition]:
        return set(self._positions)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._positions[place] = offset

    def pause(self, *places: TopicPartition) -> None:
        self._paused.update(places)

    def resume(self, *places: TopicPartition) -> None:
        self._paused.difference_update(places)

    async def position(self, place: TopicPartition) -> int:
        return self._positions[place]

    async def getmany(
        self,
        *places: TopicPartition,
        timeout_ms: int = 0,
        max_records: int | None = None,
    ) -> dict[TopicPartition, list[Stored]]:
        until = self._broker.loop.now + timeout_ms / 1000
        if self._membership is not None:
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        while True:
            wanted = [place for place in places or self._positions if place not in self._paused]
            logs = [(place, self._broker.log(*place)) for place in wanted]
            left = until - self._broker.loop.now
            if not any(self._positions[place] != log.end for place, log in logs):
                if left <= 0:
                    return {}
                await self._something(logs, left)
                continue
            await asyncio.sleep(min(left, self._broker.weather.fetch_seconds(self._io.process)))
            if not self._io.is_cut:
                return self._fetched(logs, max_records)
            if until <= self._broker.loop.now:
                return {}
            await asyncio.sleep(until - self._broker.loop.now)

    async def _something(self, logs: list[tuple[TopicPartition, Log]], seconds: float) -> None:
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for _, log in logs:
            log.waiting.append(come)
        timer = asyncio.get_running_loop().call_later(seconds, _set, come, None)
        try:
            await come
        finally:
            timer.cancel()
            for _, log in logs:
                if come in log.waiting:
                    log.waiting.remove(come)

    def _fetched(
        self, logs: list[tuple[TopicPartition, Log]], records_max: int | None
    ) -> dict[TopicPartition, list[Stored]]:
        found = {}
        for place, log in logs:
            offset = self._positions.get(place, -1)
            if place in self._paused or offset < 0:
                continue
            if not log.first <= offset <= log.end:
                raise OffsetOutOfRangeError({place: offset})
            many = self._broker.weather.records_max()
            records = log.read(offset, many if records_max is None else min(many, records_max))
            if records:
                found[place] = records
                self._positions[place] = records[-1].offset + 1
        return found

    # --- Asking ----------------------------------------------------------------------------------
    async def end_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self._io.trip()
        ends = {place: self._broker.log(*place).end for place in places}
        await self._io.trip()
        return ends

    async def beginning_offsets(
        self, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        await self._io.trip()
        return {place: self._broker.log(*place).first for place in places}

    async def offsets_for_times(
        self, wanted: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        await self._io.trip()
        return {place: self._since(self._broker.log(*place), at) for place, at in wanted.items()}

    @staticmethod
    def _since(log: Log, at: int) -> OffsetAndTimestamp | None:
        found = next((record for record in log.records if record.timestamp >= at), None)
        return None if found is None else OffsetAndTimestamp(found.offset, found.timestamp)

    # --- In a group ------------------------------------------------------------------------------
    def subscribe(self, topics: Sequence[str], *, listener: Any) -> None:
        member = self._be_member(list(topics), listener)
        self._membership = asyncio.get_running_loop().create_task(member)
        self._membership.add_done_callback(self._broker.loop.note_end)

    async def _be_member(self, topics: list[str], listener: Any) -> None:
        group, words = self._broker.group, self._words
        (assignor,) = words["partition_assignment_strategy"]
        heartbeat_seconds = words["heartbeat_interval_ms"] / 1000
        while True:
            listener.on_partitions_revoked(set(self._positions))
            await self._io.trip()
            self._member_id, joining = group.join(self._member_id, assignor.metadata(topics))
            joined = await joining
            await self._io.trip()
            shares = None
            if joined.members is not None:
                shares = assignor.assign(self._cluster(), joined.members)
            syncing = group.sync(self._member_id, joined.generation, shares)
            mine = None if syncing is None else await syncing
            if mine is None:
                continue
            await self._io.trip()
            assignor.on_assignment(mine)
            places = [TopicPartition(*place) for place in mine.partitions()]
            self._positions = dict.fromkeys(places, 0)
            listener.on_partitions_assigned(set(places))
            told = "stable"
            while told == "stable":
                await asyncio.sleep(heartbeat_seconds)
                if not self._io.is_cut:
                    told = group.heartbeat(self._member_id, joined.generation)
            if told == "unknown":
                self._member_id = ""

    def _cluster(self) -> Any:
        topics = self._broker.topics
        return SimpleNamespace(
            partitions_for_topic=lambda topic: set(range(len(topics[topic].logs)))
        )


# --- Topics ---------------------------------------------------------------------------------------
class Admin:
    def __init__(self, broker: Broker, **words: Any) -> None:
        self._io = Client(broker, words)
        self._broker = broker

    async def start(self) -> None:
        await self._io.start()

    async def close(self) -> None:
        pass

    async def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        await self._io.trip()
        return [self._described(name) for name in names]

    def _described(self, name: str) -> dict[str, Any]:
        topic = self._broker.topics.get(name)
        if topic is None:
            return {"topic": name, "error_code": 3, "partitions": []}
        partition = {"error_code": 0, "leader": 1, "replicas": list(range(topic.replicas))}
        return {"topic": name, "error_code": 0, "partitions": [partition] * len(topic.logs)}

    async def create_topics(self, wanted: Sequence[Any]) -> Any:
        await self._io.trip()
        errors = []
        for topic in wanted:
            settings = dict(topic.topic_configs)
            made = self._broker.create(
                topic.name, topic.num_partitions, topic.replication_factor, settings
            )
            errors.append((topic.name, 0 if made else TopicAlreadyExistsError.errno))
        return SimpleNamespace(topic_errors=errors)

    async def describe_configs(self, resources: Sequence[ConfigResource]) -> list[Any]:
        await self._io.trip()
        return [
            SimpleNamespace(
                API_VERSION=1,
                resources=[
                    (
                        0,
                        "",
                        2,
                        resource.name,
                        [
                            (name, value, False, 1)
                            for name, value in self._broker.topics[resource.name].settings.items()
                        ],
                    )
                    for resource in resources
                ],
            )
        ]

    async def delete_records(self, wanted: Any) -> None:
        await self._io.trip()
        for place, below in wanted.items():
            log = self._broker.log(*place)
            del log.records[: max(0, below.before_offset - log.first)]
            log.first = max(log.first, below.before_offset)


async def _nothing() -> None:
    pass


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
