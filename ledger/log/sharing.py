"""Shares the partitions out among the owners: what the consumer group is used for, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.structs import TopicPartition
from msgspec import Struct

from ledger.log.connection import Connection
from ledger.log.consumers import started, stop
from ledger.log.errors import LogError, LogUnavailable
from ledger.log.shares import KeepingAssignor
from ledger.log.topics import Topics

HEARTBEATS_A_SESSION = 20
"""A member hears of a rebalance with the answer to its next heartbeat, and the group waits until
all have heard: a partition that changes hands is paused for one such period."""
JOIN_SESSIONS_MAX = 5
"""A rebalance that takes more sessions than this is stuck: join anew, then give up."""


class PartitionsAssigned(Struct, frozen=True, gc=False):
    """These are this process's partitions now: all of them, not only the new ones."""

    partitions: frozenset[int]


class PartitionsRevoked(Struct, frozen=True, gc=False):
    """A rebalance began: pause these; they may come back."""

    partitions: frozenset[int]


SharingChange = PartitionsAssigned | PartitionsRevoked


class Sharing:
    """A dynamic member of the owners' group on the commands topic. It reads nothing.

    `changes` has what the group decides, in order. The group's word is no permission to write:
    only a take-over is.
    """

    def __init__(self, connection: Connection, topics: Topics) -> None:
        self.changes: asyncio.Queue[SharingChange] = asyncio.Queue()
        self._connection = connection
        self._topics = topics
        self._consumer: Any = None
        self._partitions: frozenset[int] = frozenset()
        self._joining_since: float | None = None
        self._failure: BaseException | None = None
        self._polling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._renewing = asyncio.Lock()

    async def start(self) -> None:
        """Returns before the group has shared anything out."""
        await self._join()
        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(self._ended)

    async def close(self) -> None:
        """Leaves the group, so that the others need not wait for the session to end."""
        watching, self._watching = self._watching, None
        await _cancelled(watching)
        await self._leave()

    async def rejoin(self) -> None:
        """Leave and join anew: what a fenced owner does before it trusts its assignment."""
        async with self._renewing:
            await self._leave()
            await self._join()

    @property
    def partitions(self) -> frozenset[int]:
        """Assigned now; empty during a rebalance."""
        return self._partitions

    @property
    def failure(self) -> BaseException | None:
        """Why sharing stopped; the process should not go on."""
        return self._failure

    async def _join(self) -> None:
        bounds = self._connection.bounds
        session_ms = int(bounds.session_seconds * 1000)
        consumer = self._connection.clients.consumer(
            **self._connection.client("sharing"),
            group_id=self._topics.owners_group,
            enable_auto_commit=False,
            # No offset is ever committed and no record used; "none" would only raise errors.
            auto_offset_reset="latest",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // HEARTBEATS_A_SESSION,
            partition_assignment_strategy=(KeepingAssignor(),),
        )
        self._consumer = await started(consumer, self._connection)
        self._joining_since = _now()
        consumer.subscribe([self._topics.commands], listener=_Listener(self, consumer))
        self._polling = asyncio.create_task(self._poll(consumer))
        self._polling.add_done_callback(self._ended)

    async def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        polling, self._polling = self._polling, None
        self._revoked(self._partitions)
        await _cancelled(polling)
        if consumer is not None:
            await stop(consumer, self._connection)

    async def _poll(self, consumer: Any) -> None:
        """Keeps the membership alive: a member that never polls is taken for idle and leaves."""
        wait_ms = int(self._connection.bounds.session_seconds * 1000)
        while True:
            await consumer.getmany(timeout_ms=wait_ms)
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        session_seconds = self._connection.bounds.session_seconds
        joined_anew = False
        while True:
            await asyncio.sleep(session_seconds / 2)
            since = self._joining_since
            if since is None:
                joined_anew = False
            elif _now() - since > JOIN_SESSIONS_MAX * session_seconds:
                if joined_anew:
                    raise LogUnavailable("the owners' group shares nothing out")
                joined_anew = True
                await self.rejoin()

    def _assigned(self, consumer: Any, places: Iterable[TopicPartition]) -> None:
        if consumer is not self._consumer:
            return
        consumer.pause(*places)
        self._partitions = frozenset(place.partition for place in places)
        self._joining_since = None
        self.changes.put_nowait(PartitionsAssigned(self._partitions))

    def _revoked(self, partitions: frozenset[int]) -> None:
        self._partitions = frozenset()
        if self._joining_since is None:
            self._joining_since = _now()
        if partitions:
            self.changes.put_nowait(PartitionsRevoked(partitions))

    def _listener_failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failure = self._failure or task.exception() or LogError("sharing ended")


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """aiokafka logs and swallows what a listener raises; a flag must stop the process."""

    def __init__(self, sharing: Sharing, consumer: Any) -> None:
        self._sharing = sharing
        self._consumer = consumer

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        try:
            if self._consumer is self._sharing._consumer:
                self._sharing._revoked(frozenset(place.partition for place in revoked))
        except Exception as error:
            self._sharing._listener_failed(error)
            raise

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        try:
            self._sharing._assigned(self._consumer, list(assigned))
        except Exception as error:
            self._sharing._listener_failed(error)
            raise


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _now() -> float:
    return asyncio.get_running_loop().time()
