"""The gateway's end of the log: commands go out, replies come in."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from msgspec import Struct

from api.settings import Settings
from ledger.domain.commands import Command
from ledger.domain.ids import CommandId
from ledger.log.command_codec import command_record, partition_for, topic_of
from ledger.log.connection import COMMAND_BYTES_MAX
from ledger.log.errors import LogError, OffsetOutOfRange, RecordTooLarge
from ledger.log.inbox import OwnerChanged, inbox_from
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.partitions import REPLIES_PARTITIONS
from ledger.log.records import Record
from ledger.log.replies import Reply, reply_from

RECORDS_MAX = 1_000
"""Replies taken at once."""


class Sent(Struct, frozen=True, gc=False):
    """A command with what travels around it."""

    command: Command
    command_id: CommandId
    actor: str
    traceparent: str = ""


class Place(Struct, frozen=True, gc=False):
    """Where a command lies."""

    topic: str
    partition: int
    offset: int


Heard = Reply | OwnerChanged
"""What comes back. After an owner's change, whatever only waited in its memory is gone."""


class Wire(Protocol):
    """What the gateway needs of the log; tests have one with an owner behind it."""

    async def append(self, sent: Sent, *, awaited: bool = True) -> Place:
        """Raises `LogError` (it may still land) and `RecordTooLarge` (it will not)."""
        ...

    def partition_of(self, command: Command) -> int:
        """Whose owner decides it."""
        ...

    async def hear(self) -> Sequence[Heard]:
        """Waits for the next that came to this gateway's address. Raises `LogError`, after which
        it may be called again: what came meanwhile is lost."""
        ...

    async def events_end(self, partition: int) -> int:
        """The end of the partition's history, asked for now. Raises `LogError`."""
        ...


class KafkaWire:
    """Reads one partition of the replies, from its end, and passes over what is not for it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._outbox = Outbox(settings.connection, role="api")
        self._offsets = Offsets(settings.connection)
        self._replies: Intake | None = None
        self._address = f"api-{secrets.token_hex(8)}"
        self._partition = secrets.randbelow(REPLIES_PARTITIONS)

    async def start(self) -> None:
        await self._outbox.start()
        await self._offsets.start()
        self._replies = await self._open_replies()

    async def close(self) -> None:
        await self._outbox.close()
        await self._close_replies()
        await self._offsets.close()

    async def append(self, sent: Sent, *, awaited: bool = True) -> Place:
        topic = topic_of(sent.command, self._settings.topics)
        partition = self.partition_of(sent.command)
        record = command_record(
            sent.command,
            sent.command_id,
            source=self._settings.source,
            reply_to=f"{self._partition}/{self._address}" if awaited else "",
            actor=sent.actor,
            traceparent=sent.traceparent,
        )
        if len(record[1] or b"") > COMMAND_BYTES_MAX:
            raise RecordTooLarge(f"a command has at most {COMMAND_BYTES_MAX} bytes")
        offset = await self._outbox.send_one(topic, partition, record)
        return Place(topic, partition, offset)

    def partition_of(self, command: Command) -> int:
        return partition_for(command, self._settings.partitions)

    async def hear(self) -> Sequence[Heard]:
        if self._replies is None:
            self._replies = await self._open_replies()
        replies = self._replies
        while True:
            arrived = replies.arrived(self._partition)
            arrived.clear()
            try:
                records = replies.take(self._partition, RECORDS_MAX)
            except OffsetOutOfRange:
                # Slept for longer than replies are kept: who waited has long been told 202.
                replies.follow(self._partition, await self._replies_end())
                continue
            except LogError:
                await self._close_replies()
                raise
            if heard := [one for record in records if (one := self._heard(record)) is not None]:
                return heard
            if not records:
                await arrived.wait()

    def _heard(self, record: Record) -> Heard | None:
        if record.key is None:
            told = inbox_from(record)
            return told if isinstance(told, OwnerChanged) else None
        return reply_from(record) if record.key == self._address.encode() else None

    async def events_end(self, partition: int) -> int:
        return await self._offsets.end(self._settings.topics.events, partition)

    async def _open_replies(self) -> Intake:
        """The position is taken before anything can be sent: no reply comes earlier than that."""
        replies = Intake(
            self._settings.connection, self._settings.topics.replies, isolation="read_uncommitted"
        )
        await replies.start()
        try:
            replies.follow(self._partition, await self._replies_end())
        except BaseException:
            await replies.close()
            raise
        return replies

    async def _close_replies(self) -> None:
        replies, self._replies = self._replies, None
        if replies is not None:
            await replies.close()

    async def _replies_end(self) -> int:
        return await self._offsets.end(self._settings.topics.replies, self._partition)


@asynccontextmanager
async def open_wire(settings: Settings) -> AsyncIterator[KafkaWire]:
    """Connects to Kafka; closes everything. Raises `LogUnavailable`."""
    async with AsyncExitStack() as closing:
        wire = KafkaWire(settings)
        closing.push_async_callback(wire.close)
        await wire.start()
        yield wire
