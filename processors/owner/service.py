"""The owner service of a process: owns the partitions that the group gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import structlog

from ledger.domain.commands import Beat
from ledger.domain.ids import Micros
from ledger.domain.partition import Bounds
from ledger.log.admin import Admin
from ledger.log.connection import Connection
from ledger.log.errors import LogError
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.sharing import PartitionsAssigned, Sharing
from ledger.log.term import THIS_PROCESS
from ledger.log.topics import Mode, Topics
from ledger.objects import open_store
from processors.owner.gaps import Gap
from processors.owner.partition_owner import PartitionOwner
from processors.owner.seams import Feed, NoFeed, Seams, wall_clock
from processors.owner.snapshots import Snapshots
from processors.owner.trimming import trim

log = structlog.get_logger(__name__)

TRIM_SECONDS = 3_600.0
"""How often the intakes are trimmed."""
HAND_OVER_SECONDS = 3.0
"""How long what is under way in a partition that is let go may take to stand; after that its
outcome is the next owner's to find out. Shorter than a session, which others would wait out."""
WATCH_SECONDS = 0.5
"""How often the clients that run by themselves are asked for a failure."""


@dataclass(frozen=True, kw_only=True)
class OwnerSettings:
    connection: Connection
    topics: Topics = field(default_factory=Topics)
    partitions: int = 16
    ledger_id: str = "ledger"
    mode: Mode = "development"
    bounds: Bounds = field(default_factory=Bounds)
    objects: str = ""
    """The address of a store for snapshots; empty: none are made."""
    snapshot_events: int = 100_000
    wall: Callable[[], int] = wall_clock
    """Microseconds since 1970, as this machine's clock says."""
    process: str = THIS_PROCESS
    """Unlike any other's: by it an owner knows take-overs of its own."""


class OwnerService:
    """`run` until `stop` is set. A failure that no new term can mend ends it with an exception."""

    def __init__(self, settings: OwnerSettings, feed: Feed | None = None) -> None:
        self._settings = settings
        self._feed = feed or NoFeed()
        self._owners: dict[int, PartitionOwner] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._letting_go: dict[int, asyncio.Task[None]] = {}
        self._rejoin = asyncio.Event()
        self._joined = False

    async def run(self, stop: asyncio.Event) -> None:
        settings = self._settings
        await settings.topics.require_safe(
            settings.connection, partitions=settings.partitions, mode=settings.mode
        )
        async with AsyncExitStack() as stack:
            seams = await self._open(stack)
            sharing = Sharing(settings.connection, settings.topics)
            await sharing.start()
            stack.push_async_callback(sharing.close)
            stack.push_async_callback(self._stop_owners)
            trimming = asyncio.create_task(self._trim(seams))
            stack.callback(trimming.cancel)
            await self._follow(seams, sharing, trimming, stop)

    @property
    def owned(self) -> frozenset[int]:
        """Partitions in which this process may append now."""
        return frozenset(number for number, owner in self._owners.items() if owner.is_owner)

    def health(self) -> dict[str, Any]:
        """Partitions with what stands of each, for the health endpoint."""
        return {
            "joined": self._joined,
            "partitions": {
                number: {
                    "owner": owner.is_owner,
                    "fenced": owner.fenced,
                    "take_overs": owner.takeovers,
                    "folded": owner.folded,
                    "turns": owner.turns,
                    "missing": sum(gap.missing.end - gap.missing.first for gap in owner.gaps),
                    "gaps": [_told(gap) for gap in owner.gaps],
                    "last_error": owner.last_error or next(map(str, owner.gaps), None),
                }
                for number, owner in sorted(self._owners.items())
            },
        }

    async def _open(self, stack: AsyncExitStack) -> Seams:
        settings = self._settings
        connection, topics = settings.connection, settings.topics
        outbox = Outbox(connection)
        offsets = Offsets(connection)
        commands = Intake(
            connection,
            topics.commands,
            isolation="read_uncommitted",
            is_shared=True,
            patient=Beat.TYPE,
        )
        requests = Intake(connection, topics.requests, isolation="read_committed", is_shared=True)
        for client in (outbox, offsets, commands, requests):
            await client.start()
            stack.push_async_callback(client.close)
        return Seams(
            connection=connection,
            topics=topics,
            partitions=settings.partitions,
            ledger_id=settings.ledger_id,
            mode=settings.mode,
            outbox=outbox,
            offsets=offsets,
            commands=commands,
            requests=requests,
            feed=self._feed,
            bounds=settings.bounds,
            snapshots=self._snapshots(stack),
            wall=settings.wall,
            process=settings.process,
        )

    def _snapshots(self, stack: AsyncExitStack) -> Snapshots | None:
        settings = self._settings
        if not settings.objects:
            return None
        store = open_store(settings.objects)
        stack.push_async_callback(store.close)
        return Snapshots(
            store,
            ledger_id=settings.ledger_id,
            topic=settings.topics.events,
            events_min=settings.snapshot_events,
        )

    async def _trim(self, seams: Seams) -> None:
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            try:
                async with Admin(seams.connection) as admin:
                    for number, owner in list(self._owners.items()):
                        if owner.decided is None or not owner.is_owner:
                            continue
                        topics = (seams.topics.commands, seams.topics.requests)
                        for topic, decided in zip(topics, owner.decided, strict=True):
                            await trim(
                                admin,
                                seams.offsets,
                                topic,
                                number,
                                decided=decided,
                                now=Micros(seams.wall()),
                            )
            except LogError as error:
                log.warning("owner.intakes_not_trimmed", reason=str(error))

    async def _follow(
        self, seams: Seams, sharing: Sharing, trimming: asyncio.Task[None], stop: asyncio.Event
    ) -> None:
        stopped = asyncio.create_task(stop.wait())
        rejoin = asyncio.create_task(self._rejoin.wait())
        change = asyncio.create_task(sharing.changes.get())
        try:
            while not stopped.done():
                await asyncio.wait(
                    [stopped, rejoin, change, trimming, *self._tasks.values()],
                    timeout=WATCH_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for client in (sharing, seams.commands, seams.requests):
                    if client.failure is not None:
                        raise client.failure
                for task in (trimming, *self._tasks.values()):
                    if task.done():
                        task.result()
                if change.done():
                    self._change(seams, change.result())
                    change = asyncio.create_task(sharing.changes.get())
                if rejoin.done():
                    self._rejoin.clear()
                    rejoin = asyncio.create_task(self._rejoin.wait())
                    await sharing.rejoin()
        finally:
            stopped.cancel()
            rejoin.cancel()
            change.cancel()

    def _change(self, seams: Seams, change: object) -> None:
        if not isinstance(change, PartitionsAssigned):
            for owner in self._owners.values():
                owner.pause()
            return
        self._joined = True
        log.info("owner.assigned", partitions=sorted(change.partitions))
        for number in [n for n in self._owners if n not in change.partitions]:
            self._let_go(number)
        for number in change.partitions:
            if number not in self._owners:
                owner = self._owners[number] = PartitionOwner(number, seams)
                self._tasks[number] = asyncio.create_task(
                    self._own(owner, self._letting_go.get(number)), name=f"owner-{number}"
                )
            self._owners[number].resume()

    async def _own(self, owner: PartitionOwner, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # They share the intakes.
        await owner.run(self._rejoin)

    def _let_go(self, number: int) -> None:
        owner, task = self._owners.pop(number), self._tasks.pop(number)
        letting_go = asyncio.create_task(_let_go(owner, task), name=f"letting-go-{number}")
        self._letting_go[number] = letting_go
        letting_go.add_done_callback(lambda done: self._gone(number, done))

    def _gone(self, number: int, done: asyncio.Task[None]) -> None:
        if self._letting_go.get(number) is done:
            del self._letting_go[number]

    async def _stop_owners(self) -> None:
        for number in list(self._owners):
            self._let_go(number)
        if self._letting_go:
            await asyncio.wait(self._letting_go.values())


async def _let_go(owner: PartitionOwner, task: asyncio.Task[None]) -> None:
    """A fold is given up at once; what is under way has its time to stand."""
    owner.leave()
    await asyncio.wait([task], timeout=HAND_OVER_SECONDS if owner.holds_office else 0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("owner.left_in_doubt", partition=owner.number, reason=repr(error))


def _told(gap: Gap) -> dict[str, Any]:
    missing = gap.missing
    return {
        "topic": gap.topic,
        "first": missing.first,
        "end": missing.end,
        "fix": gap.declaration,
    }
