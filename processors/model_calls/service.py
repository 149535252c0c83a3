"""The runtime that calls models: it takes jobs of the queue `models`, one type a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from ledger.client import Connection, LogUnavailable, Runtime
from ledger.client.carrying import Carrier
from ledger.client.command_ids import new_session
from ledger.client.runtime import TYPES_MAX
from ledger.domain.commands import Model
from ledger.domain.ids import MODELS_QUEUE
from ledger.log.offsets import Offsets
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics
from ledger.objects import open_store
from ledger.sealing.api_keys import open_api_key
from ledger.sealing.keyring import Keyring
from ledger.sealing.sealed import SealingError
from processors.model_calls.addresses import AllowList, Guard
from processors.model_calls.attempt import ModelCalls
from processors.model_calls.calling import Bounds, ModelCaller
from processors.model_calls.registry import Registry
from projections.reads import ReadsUnavailable, open_reads
from projections.schema import SCHEMA

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 1.0
"""Between two looks at which models there are."""
RETRY_SECONDS = 1.0
"""Between attempts to reach Kafka at the start."""
DRAIN_SECONDS = 10.0
"""What calls have left at the end; the rest is given back, and called again by another."""
READS_MAX = 4
"""Connections to Postgres: a call needs one for a moment, at its beginning."""
AWAY = "the read models are away"


class KeysMissing(ValueError):
    """Models have API keys, and there is nothing to open them with."""

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__(
            f"there is no key ring to open the API keys of {', '.join(models)} with:"
            " set LEDGER_SEALING_KEYS to what the api has"
        )


@dataclass(frozen=True, kw_only=True)
class ModelCallsSettings:
    connection: Connection
    topics: Topics
    partitions: int
    dsn: str
    """Postgres, of the read models."""
    objects: str
    """The address of the object store that answers go to."""
    schema: str = SCHEMA
    keyring: Keyring | None = None
    allowed: AllowList = field(default_factory=AllowList)
    slots: int = 16
    """Calls at once."""
    answer_bytes_max: int = Bounds().bytes_max
    redirects_max: int = 0
    beat_seconds: float = 5.0


class ModelCallsService:
    def __init__(self, settings: ModelCallsSettings) -> None:
        self._settings = settings
        self._runtime: Runtime | None = None
        self._calls: ModelCalls | None = None
        self._error: str | None = "nobody has looked yet"
        self._models = 0
        self._closed: Mapping[str, str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises `RuntimeFailed`, and `InvalidAddress` of the object store."""
        settings = self._settings
        partition = partition_of(MODELS_QUEUE, settings.partitions)
        async with AsyncExitStack() as stack:
            store = open_store(settings.objects)
            stack.push_async_callback(store.close)
            reads = await stack.enter_async_context(
                open_reads(
                    settings.dsn,
                    schema=settings.schema,
                    connections_max=READS_MAX,
                )
            )
            offsets = Offsets(settings.connection)
            if not await _started(offsets, stop):
                return
            stack.push_async_callback(offsets.close)
            registry = Registry(
                reads,
                partition=partition,
                events_end=partial(offsets.end, settings.topics.events, partition),
            )
            caller = ModelCaller(
                Guard(settings.allowed),
                bounds=Bounds(
                    bytes_max=settings.answer_bytes_max,
                    # The slots bound them already, and a wait would count as the model's time.
                    connections_per_origin_max=settings.slots,
                    follow_redirects_max=settings.redirects_max,
                ),
            )
            self._calls = ModelCalls(registry.find, caller, Carrier(store), settings.keyring)
            await self._serve(registry, self._calls, stop)

    def health(self) -> dict[str, Any]:
        """`ready`: what there is to call can be called."""
        runtime, calls = self._runtime, self._calls
        is_served = runtime is not None and (runtime.is_served or not runtime.types)
        return {
            "ready": self._error is None and is_served,
            "error": self._error,
            "models": self._models,
            "api_keys_closed": len(self._closed),
            "under_way": calls.under_way if calls else 0,
            "answered": calls.answered if calls else 0,
            "failed": calls.failed.total() if calls else 0,
            "codes": dict(calls.failed) if calls else {},
        }

    async def _serve(self, registry: Registry, calls: ModelCalls, stop: asyncio.Event) -> None:
        runtime = self._runtime = self._new_runtime()
        stopping = asyncio.ensure_future(stop.wait())
        waits_for: set[asyncio.Future[Any]] = {stopping}
        serving: asyncio.Task[None] | None = None
        try:
            while not any(one.done() for one in waits_for):
                await self._refresh(registry, runtime, calls)
                if serving is None and runtime.types:
                    serving = asyncio.ensure_future(runtime.serve())
                    waits_for.add(serving)
                await asyncio.wait(
                    waits_for, timeout=REFRESH_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            stopping.cancel()
            runtime.stop()
            if serving is not None:
                await serving

    def _new_runtime(self) -> Runtime:
        settings = self._settings
        return Runtime(
            f"model-calls-{new_session()}",
            settings.connection,
            queue=MODELS_QUEUE,
            slots=settings.slots,
            drain_seconds=DRAIN_SECONDS,
            beat_seconds=settings.beat_seconds,
            partitions=settings.partitions,
            prefix=settings.topics.prefix,
            fetches=False,  # Decoded, it could not be sent byte for byte.
        )

    async def _refresh(self, registry: Registry, runtime: Runtime, calls: ModelCalls) -> None:
        try:
            names = await registry.offered(TYPES_MAX)
        except ReadsUnavailable as error:
            if self._error != AWAY:
                log.warning("model_calls.read_models_away", reason=str(error))
            self._error = AWAY
            return
        self._error = None
        self._models = len(registry.known)
        self._warn_of_keys(registry.known)
        for name in runtime.types - set(names):
            runtime.forget(name)
        for name in set(names) - runtime.types:
            runtime.job(name)(calls.call)

    def _warn_of_keys(self, models: Mapping[str, Model]) -> None:
        """Once for each: calls of such a model fail."""
        closed = closed_keys(models, self._settings.keyring)
        for name, why in closed.items():
            if name not in self._closed:
                log.warning("model_calls.api_key_closed", model=name, reason=why)
        self._closed = closed


async def require_keys(settings: ModelCallsSettings) -> None:
    """Raises `KeysMissing` where there is no key ring and a model has an API key. Read models that
    are away are none of its business."""
    if settings.keyring is not None:
        return
    async with open_reads(settings.dsn, schema=settings.schema, connections_max=1) as reads:
        with suppress(ReadsUnavailable):
            models = (await reads.models()).items
            closed = closed_keys({state.name: state.model for state in models}, None)
            if closed:
                raise KeysMissing(sorted(closed))


def closed_keys(models: Mapping[str, Model], keyring: Keyring | None) -> dict[str, str]:
    """The models whose API key the key ring has no key for, and why not."""
    closed = {}
    for name, model in models.items():
        if not isinstance(model.api_key, str):
            continue
        if keyring is None:
            closed[name] = "there is no key ring"
            continue
        try:
            open_api_key(keyring, model.api_key, model=name)
        except SealingError as error:
            closed[name] = str(error)
    return closed


async def _started(offsets: Offsets, stop: asyncio.Event) -> bool:
    """Whether it has, before `stop`."""
    while not stop.is_set():
        try:
            await offsets.start()
        except LogUnavailable as error:
            log.warning("model_calls.log_away", reason=str(error), retry_seconds=RETRY_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
        else:
            return True
    return False
