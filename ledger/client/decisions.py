"""Waits for owners' answers: reads one partition of the replies topic from its end on."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack, suppress

import structlog

from ledger.domain.ids import CommandId
from ledger.log.connection import Connection
from ledger.log.errors import LogUnavailable
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.partitions import REPLIES_PARTITIONS, partition_of
from ledger.log.replies import Reply, reply_from
from ledger.log.topics import Topics

log = structlog.get_logger(__name__)

WATCH_SECONDS = 1.0
RETRY_SECONDS = 1.0
REPLIES_MAX = 5_000
"""Taken at once."""


class Decisions:
    """`expect` a command before it is sent; its future gets the owner's reply.

    A reply is a hint: while the brokers are away some are missed, and whoever waits gives up in
    time.
    """

    def __init__(self, connection: Connection, topics: Topics) -> None:
        self._connection = connection
        self._topics = topics
        address = secrets.token_hex(8)
        self._key = address.encode()
        self._partition = partition_of(address, REPLIES_PARTITIONS)
        self.reply_to = f"{self._partition}/{address}"
        self._expected: dict[CommandId, asyncio.Future[Reply]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._reads = asyncio.Event()
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Returns once replies to what is sent from now on will be read. Raises LogUnavailable."""
        if self._reads.is_set() and self._reader is not None and not self._reader.done():
            return
        async with self._starting:
            if self._reader is None or self._reader.done():
                self._reads.clear()
                self._reader = asyncio.create_task(self._read(), name="ledger-decisions")
            reads = asyncio.ensure_future(self._reads.wait())
            try:
                seconds = self._connection.bounds.connect_seconds
                await asyncio.wait(
                    [reads, self._reader], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                reads.cancel()
            if not self._reads.is_set():
                raise LogUnavailable(f"{self._topics.replies} cannot be read")

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        for future in self._expected.values():
            future.cancel()

    def expect(self, command_id: CommandId) -> asyncio.Future[Reply]:
        future = self._expected.get(command_id)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._expected[command_id] = future
        return future

    def forget(self, command_id: CommandId) -> None:
        self._expected.pop(command_id, None)

    async def _read(self) -> None:
        while True:
            try:
                await self._read_from_end()
            except Exception as error:  # Whatever it was: who is deaf hears no decision.
                self._reads.clear()
                log.warning(
                    "client.replies_unread", reason=repr(error), retry_seconds=RETRY_SECONDS
                )
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_from_end(self) -> None:
        topic, partition = self._topics.replies, self._partition
        async with AsyncExitStack() as stack:
            intake = Intake(self._connection, topic, isolation="read_uncommitted")
            async with Offsets(self._connection) as offsets:
                end = await offsets.end(topic, partition)
            await intake.start()
            stack.push_async_callback(intake.close)
            intake.follow(partition, end)
            self._reads.set()
            arrived = intake.arrived(partition)
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(WATCH_SECONDS):
                        await arrived.wait()
                arrived.clear()
                while records := intake.take(partition, REPLIES_MAX):
                    for record in records:
                        if record.key == self._key:
                            self._answer(reply_from(record))

    def _answer(self, reply: Reply | None) -> None:
        if reply is None or reply.outcome == "parked":
            return
        future = self._expected.pop(reply.command_id, None)
        if future is not None and not future.done():
            future.set_result(reply)
