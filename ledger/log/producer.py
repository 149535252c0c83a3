"""The one way to append: whole batches to a named partition, acknowledged by all replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from msgspec import Struct

from ledger.domain.ids import Micros
from ledger.log.connection import BATCH_BYTES_MAX, RECORD_BYTES_MAX, Connection
from ledger.log.errors import AppendRefused, LogUnavailable
from ledger.log.records import Outgoing

CANCEL_SECONDS = 0.2
"""Between one attempt to stop aiokafka's sender and the next."""
CANCELS_MAX = 25


class Appended(Struct, frozen=True, gc=False):
    """What the broker acknowledged of one batch."""

    offset: int | None
    """Of its first record. None: appended, but the broker does not say where."""
    at: Micros | None
    """The broker's clock; None where the topic keeps the sender's."""


class Batch:
    """A filled batch. Whole or not at all, once sent."""

    def __init__(self, producer: Any, records: Iterable[Outgoing], *, timestamp: int) -> None:
        """`timestamp` in milliseconds; the broker sets its own on topics with LogAppendTime."""
        self.count = 0
        self.builder = producer.create_batch()
        append = self.builder.append
        for key, value, headers in records:
            if append(timestamp=timestamp, key=key, value=value, headers=headers) is None:
                raise ValueError(f"record {self.count} exceeds a batch of {BATCH_BYTES_MAX} bytes")
            self.count += 1
        self.builder.close()


class Producer:
    """An idempotent producer whose every wait is bounded.

    aiokafka never gives up a batch in idempotent mode; after a time-out of ours it goes on trying
    until `close`. So whoever gets `LogUnavailable` must close this producer, and count the batch as
    unknown: it may have landed, and may still land.
    """

    def __init__(self, connection: Connection, role: str) -> None:
        self._bounds = connection.bounds
        self._where = connection.bootstrap
        self._producer = connection.clients.producer(
            **connection.client(role),
            enable_idempotence=True,
            acks="all",
            compression_type="zstd",
            max_batch_size=BATCH_BYTES_MAX,
            max_request_size=RECORD_BYTES_MAX,
            linger_ms=0,
        )

    async def start(self) -> None:
        """Raises `LogUnavailable`, closed."""
        try:
            async with asyncio.timeout(self._bounds.connect_seconds):
                await self._producer.start()
        except (KafkaError, TimeoutError) as error:
            await self.close()
            raise LogUnavailable(f"{self._where} does not answer") from error
        except BaseException:
            await self.close()
            raise

    def batch(self, records: Iterable[Outgoing], *, timestamp: int) -> Batch:
        return Batch(self._producer, records, timestamp=timestamp)

    async def send(self, topic: str, partition: int, batch: Batch) -> asyncio.Future[Any]:
        """Hand the batch over; `acknowledged` awaits what becomes of it.

        Batches of one producer to one partition land in the order in which they were handed over.
        """
        try:
            async with asyncio.timeout(self._bounds.append_seconds):
                sent: asyncio.Future[Any] = await self._producer.send_batch(
                    batch.builder, topic, partition=partition
                )
        except (KafkaError, TimeoutError, AssertionError) as error:
            raise LogUnavailable(f"{topic}[{partition}] takes no batch: {error!r}") from error
        # Somebody may give up before it is done; its error is then nobody's to report.
        sent.add_done_callback(_retrieve)
        return sent

    async def acknowledged(self, sent: asyncio.Future[Any]) -> Appended:
        try:
            async with asyncio.timeout(self._bounds.append_seconds):
                found = await asyncio.shield(sent)
        except TimeoutError as error:
            seconds = self._bounds.append_seconds
            raise LogUnavailable(f"no acknowledgement within {seconds:g} s") from error
        except asyncio.CancelledError:
            if sent.cancelled():
                raise LogUnavailable("the producer was closed") from None
            raise
        except _REFUSALS as error:
            raise AppendRefused(f"the broker refuses the append: {error!r}") from error
        except KafkaError as error:
            raise LogUnavailable(f"the append failed: {error!r}") from error
        if found is None:
            return Appended(None, None)
        # A repeated sequence number counts as success without an offset.
        offset = found.offset if found.offset is not None and found.offset >= 0 else None
        known_at = found.timestamp is not None and found.timestamp >= 0
        return Appended(offset, Micros(found.timestamp * 1000) if known_at else None)

    async def close(self) -> None:
        """Sends what is handed over if the broker answers soon; else drops it. Bounded."""
        try:
            async with asyncio.timeout(self._bounds.close_seconds):
                await self._producer.stop()
        except (KafkaError, TimeoutError):
            await self._abandon()

    async def _abandon(self) -> None:
        # `stop` waits for a flush that may never come. A first cancel makes the sender wait for its
        # requests, each further one cancels a request.
        sender = self._producer._sender.sender_task
        for _ in range(CANCELS_MAX):
            if sender is None or sender.done():
                break
            sender.cancel()
            await asyncio.wait([sender], timeout=CANCEL_SECONDS)
        self._producer._message_accumulator.fail_all(KafkaError("the producer was closed"))
        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(self._bounds.close_seconds):
                await self._producer.client.close()


_REFUSALS = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)


def _retrieve(sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled():
        sent.exception()
