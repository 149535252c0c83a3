"""Reads a runtime's partition of a queue's inbox, from its end on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Never

import structlog

from ledger.client.clock import monotonic
from ledger.client.held import Order
from ledger.client.runtime_session import QueueSession
from ledger.client.waking import woken
from ledger.log.admin import Admin
from ledger.log.connection import Connection
from ledger.log.errors import LogUnavailable, OffsetOutOfRange
from ledger.log.inbox import inbox_from
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.partitions import INBOX_PARTITIONS, partition_of
from ledger.log.topics import Topics

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
"""Between one look and the next whether the owner has made the inbox."""
WATCH_SECONDS = 1.0
"""The longest wait for a record."""
RECORDS_MAX = 1_000

Heard = Callable[[QueueSession, list[Order]], None]


class RuntimeInbox:
    """`listen` on one connection after another: it goes on where it was."""

    def __init__(self, connection: Connection, topics: Topics, session: QueueSession) -> None:
        self._connection = connection
        self._topic = topics.assigned(session.queue)
        self._session = session
        self._partition = partition_of(session.runtime_id, INBOX_PARTITIONS)
        self._key = session.runtime_id.encode()
        self._position: int | None = None

    async def listen(self, heard: Heard) -> Never:
        """Gives the session what comes, and says so once the inbox is open and after each batch.
        Raises `LogError`."""
        session = self._session
        async with AsyncExitStack() as stack:
            await self._wait_until_made()
            offsets = await stack.enter_async_context(Offsets(self._connection))
            intake = Intake(self._connection, self._topic, isolation="read_uncommitted")
            await intake.start()
            stack.push_async_callback(intake.close)
            if self._position is None:
                self._position = await offsets.end(self._topic, self._partition)
            intake.follow(self._partition, self._position)
            session.open_inbox()
            heard(session, [])
            arrived = intake.arrived(self._partition)
            while True:
                await woken(arrived, WATCH_SECONDS)
                if intake.failure is not None:
                    raise LogUnavailable(f"{self._topic} cannot be read: {intake.failure!r}")
                orders: list[Order] = []
                try:
                    self._read(intake, orders)
                except OffsetOutOfRange as error:
                    # What was assigned there meanwhile is sent again, by its number.
                    log.warning("runtime.inbox_lost", queue=session.queue, reason=str(error))
                    self._position = await offsets.end(self._topic, self._partition)
                    intake.follow(self._partition, self._position)
                finally:  # What came before an error is not sent again either.
                    heard(session, orders)

    async def _wait_until_made(self) -> None:
        """The owner makes it when it first hears a runtime of the queue."""
        async with Admin(self._connection) as admin:
            while True:
                if self._topic in await admin.find([self._topic]):
                    return
                await asyncio.sleep(LOOK_SECONDS)

    def _read(self, intake: Intake, orders: list[Order]) -> None:
        """Hot: one plain loop over what has arrived."""
        session, key, partition = self._session, self._key, self._partition
        while records := intake.take(partition, RECORDS_MAX):
            now = monotonic()
            for record in records:
                if record.key is not None and record.key != key:
                    continue
                content = inbox_from(record)
                if content is not None:
                    orders += session.take(content, now)
        self._position = intake.position(partition)
