"""Whether the server lives, whether it can serve, and what it counts."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace
from starlette.responses import Response

from api import metrics
from api.answers import json_response
from api.operation import Answer, Ask, Operation
from api.problems import refused
from api.views import HealthView, ReadinessView
from ledger.log.errors import LogError
from ledger.objects import ObjectStore, StoreUnavailable
from projections.reads import ReadsUnavailable

CHECK_SECONDS = 2.0


async def healthz(ask: Ask) -> Response:
    return json_response(HealthView("ok"))


async def readyz(ask: Ask) -> Response:
    log, replies, views = await asyncio.gather(_log(ask), _replies(ask), _views(ask))
    checks = {"log": log, "replies": replies, "views": views}
    if ask.services.objects is not None:
        checks["objects"] = await _objects(ask.services.objects)
    if any(state != "ok" for state in checks.values()):
        refusal = refused("NOT_READY", "; ".join(f"{k}: {v}" for k, v in checks.items()))
        refusal.problem = replace(refusal.problem, checks=checks)
        raise refusal
    return json_response(ReadinessView("ready", checks))


async def _log(ask: Ask) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await ask.services.wire.events_end(0)
    except (LogError, TimeoutError):
        return "no broker answers in time"
    return "ok"


async def _replies(ask: Ask) -> str:
    return "ok" if ask.services.gateway.is_hearing else "cannot be read: writes answer 202"


async def _views(ask: Ask) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await ask.services.reads.positions()
    except (ReadsUnavailable, TimeoutError):
        return "Postgres does not answer in time"
    return "ok"


async def _objects(store: ObjectStore) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await store.check()
    except TimeoutError:
        return "the object store does not answer in time"
    except StoreUnavailable as error:
        return str(error)
    return "ok"


async def show_metrics(ask: Ask) -> Response:
    text = ask.services.metrics.text()
    return Response(text, headers={"Content-Type": metrics.MEDIA_TYPE})


OPERATIONS = (
    Operation(
        method="GET",
        path="/healthz",
        name="healthz",
        tag="server",
        summary="Whether the process lives",
        endpoint=healthz,
        answers={200: Answer(content=HealthView, description="It does")},
    ),
    Operation(
        method="GET",
        path="/readyz",
        name="readyz",
        tag="server",
        summary="Whether log, views and object store can be reached",
        endpoint=readyz,
        answers={200: Answer(content=ReadinessView, description="They can")},
        codes=("NOT_READY",),
    ),
    Operation(
        method="GET",
        path="/metrics",
        name="metrics",
        tag="server",
        summary="Counters, as Prometheus reads them",
        endpoint=show_metrics,
        answers={200: Answer(content=None, description="Text format", media_type="text/plain")},
    ),
)
