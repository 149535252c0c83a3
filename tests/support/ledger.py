"""A ledger on the tests' broker: owners in this process, and a client that asks and is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

from ledger.domain.commands import Command
from ledger.domain.entries import Proven
from ledger.domain.events import Event
from ledger.domain.ids import CommandId, Micros
from ledger.domain.partition import Partition
from ledger.log.command_codec import command_record, partition_for, topic_of
from ledger.log.connection import Bounds, Connection
from ledger.log.entries_reader import EntriesReader
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.replies import Reply, reply_from
from ledger.log.topics import Topics
from processors.owner.seams import wall_clock
from processors.owner.service import OwnerService, OwnerSettings

PATIENCE_SECONDS = 30.0
SNAPSHOT_EVENTS = 400
REPLIES = 0
"""The replies partition that the client reads."""


class Client:
    """Sends commands as any Kafka client could, and awaits their replies."""

    def __init__(self, connection: Connection, topics: Topics, partitions: int) -> None:
        self.connection = connection
        self.topics = topics
        self.partitions = partitions
        self.outbox = Outbox(connection)
        self._replies = Intake(connection, topics.replies, isolation="read_uncommitted")
        self._waiting: dict[str, asyncio.Queue[Reply]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Client:
        await self.outbox.start()
        await self._replies.start()
        async with Offsets(self.connection) as offsets:
            end = await offsets.end(self.topics.replies, REPLIES)
        self._replies.follow(REPLIES, end)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._replies.close()
        await self.outbox.close()

    async def _read(self) -> None:
        arrived = self._replies.arrived(REPLIES)
        while True:
            await arrived.wait()
            arrived.clear()
            for record in self._replies.take(REPLIES, 1000):
                reply = reply_from(record)
                if reply is not None and reply.command_id in self._waiting:
                    self._waiting[reply.command_id].put_nowait(reply)

    async def send(self, *commands: Command) -> None:
        """Without waiting for a decision; acknowledged by the log on return."""
        for command in commands:
            await self._append(command, f"t-{uuid4()}", "")

    async def ask(self, command: Command, *, command_id: str = "") -> Reply:
        """The owner's answer; of a claim that was parked, the one after that."""
        command_id = command_id or f"t-{uuid4()}"
        answers = self._waiting[command_id] = asyncio.Queue()
        await self._append(command, command_id, f"{REPLIES}/test")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (reply := await answers.get()).outcome == "parked":
                pass
            return reply

    async def _append(self, command: Command, command_id: str, reply_to: str) -> None:
        record = command_record(
            command,
            CommandId(command_id),
            source="tests",
            reply_to=reply_to,
            sent_at=Micros(wall_clock()),
            actor="tests",
        )
        target = partition_for(command, self.partitions)
        await self.outbox.send_one(topic_of(command, self.topics), target, record)


class Ledger:
    """Topics of one test, its owners, its history."""

    def __init__(self, connection: Connection, topics: Topics, partitions: int) -> None:
        self.connection = connection
        self.topics = topics
        self.partitions = partitions

    @asynccontextmanager
    async def owner(
        self, topics: Topics | None = None, *, objects: str = ""
    ) -> AsyncIterator[OwnerService]:
        """An owner service until the end of the block; its failure fails the test."""
        settings = OwnerSettings(
            connection=self.connection,
            topics=topics or self.topics,
            partitions=self.partitions,
            objects=objects,
            snapshot_events=SNAPSHOT_EVENTS,
        )
        service = OwnerService(settings)
        stop = asyncio.Event()
        running = asyncio.create_task(service.run(stop))
        try:
            yield service
        finally:
            stop.set()
            await running

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client(self.connection, self.topics, self.partitions) as client:
            yield client

    async def history(self, partition: int) -> list[Proven]:
        """Every effective entry that is in the log now."""
        async with EntriesReader(self.connection, self.topics, partition) as reader:
            return await _to_the_end(reader)

    async def events(self) -> list[Event]:
        """All events of all partitions, each partition's in order."""
        return [
            event
            for partition in range(self.partitions)
            for proven in await self.history(partition)
            for event in proven.entry.events
        ]

    async def fold(self, partition: int) -> Partition:
        state = Partition(partition)
        for proven in await self.history(partition):
            state.apply(proven.entry)
        return state

    async def until(self, holds: Callable[[list[Event]], bool]) -> list[Event]:
        """The events of all partitions, as soon as they show what is waited for."""
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as reading:
            readers = [
                await reading.enter_async_context(EntriesReader(self.connection, self.topics, n))
                for n in range(self.partitions)
            ]
            found: list[list[Event]] = [[] for _ in readers]
            while True:
                for reader, events in zip(readers, found, strict=True):
                    for proven in await _to_the_end(reader):
                        events += proven.entry.events
                every = [event for events in found for event in events]
                if holds(every):
                    return every
                await asyncio.sleep(0.05)  # Between two looks at the log, not for luck.


async def _to_the_end(reader: EntriesReader) -> list[Proven]:
    """What it has not read yet."""
    end = await reader.end()
    return [
        item async for items in reader.batches(end) for item in items if isinstance(item, Proven)
    ]


@asynccontextmanager
async def ledger_on(
    bootstrap: str, prefix: str, *, partitions: int = 2, bounds: Bounds | None = None
) -> AsyncIterator[Ledger]:
    connection = Connection(bootstrap=bootstrap, bounds=bounds or Bounds())
    topics = Topics(prefix)
    await topics.apply(connection, partitions=partitions, mode="development")
    yield Ledger(connection, topics, partitions)
