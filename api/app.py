"""The app: every route of the table, and all that it needs opened and closed with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from api import (
    attempts,
    collecting,
    commands,
    contents,
    documentation,
    event_streams,
    health,
    jobs,
    models,
    openapi,
    operations,
    owners,
    progress_sockets,
    queues,
    runtimes,
    schedules,
    stats,
    templates,
)
from api.catalogue import opened_catalogue
from api.claims import Claims
from api.clock import wall_clock
from api.gateway import opened
from api.large_bodies import LargeBodies
from api.live import opened_live
from api.metrics import Metrics
from api.operation import Answer, Ask, Operation, Principal, Services
from api.positions import Seen
from api.router import no_route, routes_of
from api.settings import Settings
from api.wire import Wire, open_wire
from ledger.domain.ids import Micros, QueueName
from ledger.log.partitions import partition_of
from ledger.objects import ObjectStore, open_store
from projections.reads import Reads, open_reads

OPERATIONS: tuple[Operation, ...] = (
    *jobs.OPERATIONS,
    *contents.OPERATIONS,
    *collecting.OPERATIONS,
    *operations.OPERATIONS,
    *attempts.OPERATIONS,
    *runtimes.OPERATIONS,
    *queues.OPERATIONS,
    *stats.OPERATIONS,
    *templates.OPERATIONS,
    *schedules.OPERATIONS,
    *models.OPERATIONS,
    *owners.OPERATIONS,
    *commands.OPERATIONS,
    *event_streams.OPERATIONS,
    *health.OPERATIONS,
)
"""Every route, in the order of the documentation."""

DOCUMENT = openapi.document(OPERATIONS)


@dataclass(frozen=True, slots=True)
class Ports:
    """What answers come from, outside."""

    wire: Wire
    reads: Reads
    objects: ObjectStore | None = None


OpenPorts = Callable[[Settings], AbstractAsyncContextManager[Ports]]


@asynccontextmanager
async def real_ports(settings: Settings) -> AsyncIterator[Ports]:
    """Kafka, Postgres, the object store. Raises `LogUnavailable` if no broker answers, and
    `InvalidAddress` for a store that is none; Postgres and the store may come later."""
    async with AsyncExitStack() as closing:
        wire = await closing.enter_async_context(open_wire(settings))
        reads = await closing.enter_async_context(
            open_reads(
                settings.dsn, schema=settings.schema, connections_max=settings.connections_max
            )
        )
        objects = open_store(settings.objects) if settings.objects else None
        if objects is not None:
            closing.push_async_callback(objects.close)
        yield Ports(wire, reads, objects)


def anybody(_: Request) -> str:
    """Nobody is asked who they are yet."""
    return "api"


def create_app(
    settings: Settings,
    *,
    open_ports: OpenPorts = real_ports,
    principal: Principal = anybody,
    now: Callable[[], Micros] = wall_clock,
) -> Starlette:
    """Connects when the lifespan begins, and lets go of everything when it ends."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        seen = Seen()
        async with (
            open_ports(settings) as ports,
            opened(ports.wire, seen, in_flight_max=settings.in_flight_max) as gateway,
            opened_catalogue(ports.reads) as catalogue,
        ):
            metrics.watch_in_flight(lambda: gateway.in_flight)

            def partition(queue: QueueName) -> int:
                return partition_of(queue, settings.partitions)

            claims = Claims(gateway, partition)
            async with opened_live(
                ports.reads,
                partitions=settings.partitions,
                partition_of=partition,
                listeners_max=settings.listeners_max,
                metrics=metrics,
            ) as live:
                metrics.watch_listeners(lambda: live.listening)
                app.state.services = Services(
                    settings=settings,
                    wire=ports.wire,
                    gateway=gateway,
                    claims=claims,
                    reads=ports.reads,
                    catalogue=catalogue,
                    objects=ports.objects,
                    large_bodies=LargeBodies(),
                    live=live,
                    seen=seen,
                    metrics=metrics,
                    principal=principal,
                    now=now,
                )
                try:
                    yield
                finally:
                    await claims.close()

    app = Starlette(
        routes=[*progress_sockets.ROUTES, *routes_of((*OPERATIONS, *_SELF_DESCRIPTION))],
        exception_handlers={404: no_route},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


# --- What the server says of itself --------------------------------------------------------------
_DOCUMENT_JSON = msgspec.json.encode(DOCUMENT)
_PAGE = documentation.page(DOCUMENT)


async def _openapi(_: Ask) -> Response:
    return Response(_DOCUMENT_JSON, media_type="application/json")


async def _docs(_: Ask) -> Response:
    headers = {"Content-Security-Policy": documentation.POLICY}
    return Response(_PAGE, media_type="text/html", headers=headers)


_SELF_DESCRIPTION = (
    Operation(
        method="GET",
        path="/openapi.json",
        name="openapi",
        tag="server",
        summary="This API as OpenAPI 3.1",
        endpoint=_openapi,
        answers={200: Answer(content=None, description="The document")},
    ),
    Operation(
        method="GET",
        path="/docs",
        name="docs",
        tag="server",
        summary="This API as a page",
        endpoint=_docs,
        answers={200: Answer(content=None, description="HTML", media_type="text/html")},
    ),
)
