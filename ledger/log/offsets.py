"""Asks for the ends of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self

from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from ledger.log.connection import Connection
from ledger.log.consumers import log_consumer, stop
from ledger.log.crash_points import reach
from ledger.log.errors import LogUnavailable

Isolation = Literal["read_committed", "read_uncommitted"]


class Offsets:
    """A client of its own: a consumer's `end_offsets` would queue behind its long-poll fetches.

    Under `read_committed` an end is where the first open transaction begins. Raises
    `LogUnavailable` when no answer comes in time.
    """

    def __init__(self, connection: Connection, isolation: Isolation = "read_uncommitted") -> None:
        self._connection = connection
        self._isolation = isolation
        self._client: Any = None
        self._is_open = False
        self._starting = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._gathering: dict[str, tuple[set[int], asyncio.Task[dict[int, int]]]] = {}
        """Topics whose ends the next turn of the loop asks for."""
        self._asking: set[asyncio.Task[dict[int, int]]] = set()

    async def start(self) -> None:
        self._is_open = True
        await self._started()

    async def close(self) -> None:
        self._is_open = False
        for task in self._asking:
            task.cancel()
        if self._asking:
            await asyncio.wait(self._asking)
        self._drop(self._client)
        if self._closing:
            await asyncio.wait(self._closing)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def end(self, topic: str, partition: int) -> int:
        """The offset after the last record, asked for after this call began. Calls that are made
        together, of several partitions of a topic, are one request."""
        if (gathering := self._gathering.get(topic)) is None:
            task = asyncio.create_task(self._gathered(topic))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            gathering = self._gathering[topic] = set(), task
        partitions, asking = gathering
        partitions.add(partition)
        ends = await asyncio.shield(asking)
        return ends[partition]

    async def _gathered(self, topic: str) -> dict[int, int]:
        partitions, _ = self._gathering.pop(topic)
        return await self.ends(topic, partitions)

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """One request a broker for all of them."""
        return await self._ask("end_offsets", topic, partitions)

    async def first(self, topic: str, partition: int) -> int:
        """The offset of the first record that is there."""
        firsts = await self._ask("beginning_offsets", topic, (partition,))
        return firsts[partition]

    async def since(self, topic: str, partition: int, milliseconds: int) -> int | None:
        """The first offset whose record was appended at an instant or later; None: none was."""
        place = TopicPartition(topic, partition)
        answer = await self._answered("offsets_for_times", topic, {place: milliseconds})
        return answer[place].offset if answer.get(place) is not None else None

    async def _ask(self, question: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        answer = await self._answered(question, topic, wanted)
        return {found.partition: offset for found, offset in answer.items()}

    async def _answered(self, question: str, topic: str, wanted: object) -> Any:
        client = await self._started()
        try:
            async with asyncio.timeout(self._connection.bounds.offsets_seconds):
                # Without it the first question about a topic waits for a retry: 100 ms.
                await client._client._wait_on_metadata(topic)
                answer = await getattr(client, question)(wanted)
                reach("offsets.after_answer")
                return answer
        except (KafkaError, TimeoutError) as error:
            # The server may have forgotten a connection without a word. aiokafka gives one up when
            # its own time-out passes, never when a question is taken back before that.
            self._drop(client)
            raise LogUnavailable(f"no offsets of {topic}: {error!r}") from error

    async def _started(self) -> Any:
        async with self._starting:
            if not self._is_open:
                raise LogUnavailable("nobody may ask for offsets: closed")
            if self._client is None:
                self._client = await log_consumer(
                    self._connection, "offsets", isolation=self._isolation
                )
            return self._client

    def _drop(self, client: Any) -> None:
        """The next question is asked through another."""
        if client is None or client is not self._client:
            return
        self._client = None
        closing = asyncio.create_task(stop(client, self._connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
