"""What runs in each simulated process: the real owner with its projector's feed, the real runtime,
the real gateway, the real producer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from api.claims import Claims
from api.gateway import opened
from api.positions import Seen
from api.settings import Settings
from api.wire import open_wire
from ledger.client.clock import wall_clock
from ledger.client.operators import Operator
from ledger.client.runtime import Runtime
from ledger.client.runtime_link import RuntimeLink
from ledger.log.partitions import partition_of
from processors.owner.service import OwnerService, OwnerSettings
from projections.feed import ProjectorFeed
from projections.log_source import log_source
from tests.simulation.loop import Inline

if TYPE_CHECKING:
    from tests.simulation.world import World

LEDGER_ID = "simulated"


class _Link(RuntimeLink):
    """In the loop of the handlers, which nothing blocks here, not in a thread."""

    def start(self) -> None:
        self._live_task = asyncio.get_running_loop().create_task(self._live())

    async def left(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self._live_task], timeout=seconds)
        return bool(done)


class SimulatedRuntime(Runtime):
    _Link = _Link


async def owner(world: World, name: str, stop: asyncio.Event) -> None:
    connection = world.connection(name)
    feed = ProjectorFeed(
        world.views.projector(),
        log_source(connection, world.topics),
        now=wall_clock,
        thread=Inline(),
    )
    service = OwnerService(
        OwnerSettings(
            connection=connection,
            topics=world.topics,
            partitions=world.partitions,
            ledger_id=LEDGER_ID,
            process=name.replace("#", "_"),
        ),
        feed,
    )
    world.owners[name] = service
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(feed.run(over))
        await service.run(stop)
        over.set()


async def runtime(world: World, name: str, stop: asyncio.Event) -> None:
    plan = world.plan
    its = SimulatedRuntime(
        name.partition("#")[0],
        world.connection(name),
        queue=plan.queues,
        slots=plan.slots,
        drain_seconds=2.0,
        beat_seconds=plan.beat_seconds,
        partitions=world.partitions,
    )
    for job_type in plan.types:
        its.job(job_type)(world.handler(name))
    serving = asyncio.create_task(its.serve())
    await asyncio.wait([serving, asyncio.ensure_future(stop.wait())], return_when="FIRST_COMPLETED")
    its.stop()
    await serving


async def gateway(world: World, name: str, stop: asyncio.Event) -> None:
    settings = Settings(
        connection=world.connection(name),
        dsn="",
        topics=world.topics,
        partitions=world.partitions,
    )
    async with (
        open_wire(settings) as wire,
        opened(wire, Seen(), in_flight_max=1_000) as its,
    ):
        claims = Claims(its, partition_of=lambda queue: partition_of(queue, world.partitions))
        await world.callers(name, its, claims, stop)
        await claims.close()


async def producer(world: World, name: str, stop: asyncio.Event) -> None:
    async with Operator(
        world.connection(name),
        partitions=world.partitions,
        wait_seconds=world.plan.wait_seconds,
        source="simulation",
        actor="simulation",
    ) as its:
        await world.requests(name, its, stop)
