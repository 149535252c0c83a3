"""The worker process: a Faust app that supervises the owner, the projector and the reactions.

Faust runs them and stops them; it speaks to no broker itself, so it needs no topic, no group and no
table of its own. Our own clients do, under `ledger.log`. Why: docs/decisions/0002-faust-supervises.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import faust
import structlog
from faust.app.base import BootStrategy
from mode import Service

from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job
from ledger.log.effective import Effective
from ledger.log.entries_reader import EntriesReader
from processors.clean.cleaner import Cleaner, CleanerSettings
from processors.health import HealthServer, Report
from processors.model_calls.service import ModelCallsService, ModelCallsSettings, require_keys
from processors.owner.seams import Feed, wall_clock
from processors.owner.service import OwnerService, OwnerSettings
from processors.rates import BATCHES_MAX, RatesFeed
from processors.rates_store import RatesBatch, RatesStore
from processors.sources import shared
from projections.feed import ProjectorFeed
from projections.log_source import log_source
from projections.projector import Projector
from projections.schema import migrate

log = structlog.get_logger(__name__)

Only = Literal["owner", "projector", "model-calls"]
"""The last one runs nowhere else: it holds secrets that no other part needs."""
Work = Callable[[asyncio.Event], Awaitable[None]]
"""Runs until the event is set, then drains and returns. An exception ends the process."""

DRAIN_SECONDS = 20.0
"""How long a service may take to hand over before it is cancelled."""
WATCH_SECONDS = 1.0
"""How often the event loop's own delay is measured."""
GC_THRESHOLD = (50_000, 20, 50)
"""Of a process with millions of small objects: the default's collections took a fifth of it."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    owner: OwnerSettings
    dsn: str
    """Postgres, of the read models."""
    schema: str = "ledger"
    health_port: int | None = None
    model_calls: ModelCallsSettings | None = None
    objects: str = ""
    """Where what is too large for the log lies; empty: nowhere."""
    clean_seconds: float = 5.0
    """Between two looks at what has outlived its time."""
    orphan_seconds: float = 192 * 3600.0
    processing_guarantee: str = "at_least_once"


class ExactlyOnceRefused(ValueError):
    """Faust's exactly_once lost and doubled data in trials; only at_least_once is run.

    The owner's protocol gives every command one outcome without it.
    """

    def __init__(self) -> None:
        super().__init__(
            "processing_guarantee=exactly_once is refused: Faust's exactly_once lost and doubled"
            " data in trials. Leave it at at_least_once; every command has one outcome all the same"
        )


class WorkerCrashed(Exception):
    """A supervised service ended by itself."""


class _NoKafka(BootStrategy):
    """Starts sensors, agents, timers and services: nothing that connects anywhere."""

    enable_kafka = False
    enable_web = False


class LedgerApp(faust.App):
    """Every setting that matters is given here: none is inherited, none comes from a variable."""

    BootStrategy = _NoKafka
    mundane_level = "debug"

    def __init__(self, *, processing_guarantee: str = "at_least_once", datadir: str) -> None:
        asked = {processing_guarantee, os.environ.get("PROCESSING_GUARANTEE", "at_least_once")}
        if asked != {"at_least_once"}:
            raise ExactlyOnceRefused
        super().__init__(
            "ledger-worker",
            processing_guarantee="at_least_once",
            # Never connected to: see _NoKafka.
            broker="kafka://127.0.0.1:9092",
            broker_session_timeout=20.0,
            broker_heartbeat_interval=3.0,
            broker_commit_interval=2.8,
            broker_request_timeout=90.0,
            topic_allow_declare=False,
            topic_disable_leader=True,
            store="memory://",
            table_standby_replicas=0,
            stream_wait_empty=True,
            stream_buffer_maxsize=BATCHES_MAX,
            web_enabled=False,
            autodiscover=False,
            datadir=datadir,
            debug=False,
        )

    async def on_started(self) -> None:
        # Faust opens its channels when a consumer is assigned partitions; this app has none.
        self.flow_control.resume()
        await super().on_started()


class Supervised(Service):
    """One part of the process, as Faust supervises it.

    A stop lets the work drain for DRAIN_SECONDS; work that raises, or ends without being asked to,
    crashes the app and so the process.
    """

    abstract = True
    mundane_level = "debug"
    work: Work

    def __post_init__(self) -> None:
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    async def on_stop(self) -> None:
        self._stop.set()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            log.error("worker.drain_timed_out", service=self.label, seconds=DRAIN_SECONDS)

    @Service.task
    async def _run(self) -> None:
        if self._stop.is_set():
            return
        self._ended.clear()
        try:
            await type(self).work(self._stop)
        except asyncio.CancelledError as error:
            # Such as comes out of a library's own task. Faust takes any for a task that was ended
            # on purpose, and the process would live on without this part, and say nothing.
            task = asyncio.current_task()
            if self._stop.is_set() or (task is not None and task.cancelling()):
                raise
            raise WorkerCrashed(f"{self.label} was cancelled although nobody asked it") from error
        finally:
            self._ended.set()
        if not self._stop.is_set():
            raise WorkerCrashed(f"{self.label} ended although nobody asked it to")


def supervised(name: str, work: Work) -> type[Supervised]:
    """A service class, as `app.service` wants one."""
    return type(name, (Supervised,), {"work": staticmethod(work), "__module__": __name__})


class Tee:
    """Both take what the owner proves."""

    def __init__(self, *feeds: Feed) -> None:
        self._feeds = feeds

    def follow(self, partition: int, offset: int | None = None) -> None:
        for feed in self._feeds:
            feed.follow(partition, offset)

    def offer(
        self,
        partition: int,
        before: int,
        items: Sequence[Effective],
        jobs: Mapping[JobId, Job] | None = None,
    ) -> bool:
        taken = [feed.offer(partition, before, items, jobs) for feed in self._feeds]
        return all(taken)

    def unfollow(self, partition: int) -> None:
        for feed in self._feeds:
            feed.unfollow(partition)


class Parts:
    """What a worker process is made of, and its report."""

    def __init__(self, settings: WorkerSettings, only: Only | None, closing: ExitStack) -> None:
        self._settings = settings
        self._only = only
        self.loop_delay_seconds = 0.0
        self.projector: ProjectorFeed | None = None
        self.rates: RatesFeed | None = None
        self.owner: OwnerService | None = None
        self.model_calls: ModelCallsService | None = None
        self.cleaner: Cleaner | None = None
        owner = settings.owner
        feeds: list[Feed] = []
        if only == "model-calls":
            assert settings.model_calls is not None
            self.model_calls = ModelCallsService(settings.model_calls)
            return
        if only != "owner":
            if applied := migrate(settings.dsn, schema=settings.schema):
                log.info("worker.migrated", migrations=applied)
            self.rates = RatesFeed(
                RatesStore(settings.dsn, topic=owner.topics.events, schema=settings.schema),
                partial(EntriesReader, owner.connection, owner.topics),
            )
            source = shared(log_source(owner.connection, owner.topics), self.rates)
            projector = Projector(settings.dsn, topic=owner.topics.events, schema=settings.schema)
            closing.enter_context(projector)
            self.projector = ProjectorFeed(projector, source, now=_now)
            feeds = [self.projector, self.rates]
        if only != "projector":
            self.owner = OwnerService(owner, Tee(*feeds) if feeds else None)
        else:
            for partition in range(owner.partitions):
                Tee(*feeds).follow(partition)
        if only != "owner":
            self.cleaner = Cleaner(_cleaner_settings(settings), owned=self._cleans, now=_now)

    def _cleans(self) -> frozenset[int]:
        if self.owner is None:
            return frozenset(range(self._settings.owner.partitions))
        return self.owner.owned

    def report(self) -> Report:
        """For the health endpoint and the log."""
        owner = self.owner.health() if self.owner else {"partitions": {}}
        projector = (
            {partition: _facts(health) for partition, health in self.projector.health().items()}
            if self.projector
            else {}
        )
        errors = [facts["error"] for facts in projector.values() if facts["error"]]
        lags = [facts["lag_seconds"] for facts in projector.values()]
        owned = owner["partitions"].values()
        # Which partitions are ours is known once the group was joined.
        joined = self.owner is None or owner.get("joined", bool(owned))
        return {
            "ready": joined
            and not errors
            and (self.model_calls is None or self.model_calls.health()["ready"])
            and all(facts["owner"] and not facts["missing"] for facts in owned),
            "runs": self._only or "owner and projector",
            "loop_delay_seconds": round(self.loop_delay_seconds, 4),
            "lag_seconds": round(max(lags, default=0.0), 3),
            "last_error": errors[0] if errors else None,
            "owner": owner,
            "projector": {"partitions": projector},
            "rates": self.rates.health() if self.rates else {},
            "model_calls": self.model_calls.health() if self.model_calls else {},
            "cleaner": self.cleaner.health() if self.cleaner else {},
        }


def _cleaner_settings(settings: WorkerSettings) -> CleanerSettings:
    owner = settings.owner
    return CleanerSettings(
        connection=owner.connection,
        dsn=settings.dsn,
        topics=owner.topics,
        partitions=owner.partitions,
        ledger_id=owner.ledger_id,
        schema=settings.schema,
        objects=settings.objects,
        round_seconds=settings.clean_seconds,
        orphan_seconds=settings.orphan_seconds,
    )


def _now() -> Micros:
    return Micros(wall_clock())


def _facts(health: Any) -> dict[str, Any]:
    return {name: getattr(health, name) for name in health.__struct_fields__}


def worker_app(settings: WorkerSettings, parts: Parts, *, datadir: str) -> LedgerApp:
    """The app of one process. What is added last is stopped first: the owner hands over, what it
    has proven is projected and counted, then the rest ends."""
    app = LedgerApp(processing_guarantee=settings.processing_guarantee, datadir=datadir)
    if settings.health_port is not None:
        server = HealthServer(settings.health_port, parts.report)
        app.service(supervised("Health", server.run))
    if parts.rates is not None:
        _add_rates(app, parts.rates)
    if parts.projector is not None:
        app.service(supervised("Projector", parts.projector.run))
    if parts.owner is not None:
        app.service(supervised("Owner", parts.owner.run))
    if parts.model_calls is not None:
        app.service(supervised("ModelCalls", parts.model_calls.run))
    if parts.cleaner is not None:
        app.service(supervised("Cleaner", parts.cleaner.run))

    @app.task  # type: ignore[untyped-decorator]
    async def watch_the_loop() -> None:
        """A loop that is late is a loop that some handler blocks."""
        loop = asyncio.get_running_loop()
        while not app.should_stop:
            due = loop.time() + WATCH_SECONDS
            await app.sleep(WATCH_SECONDS)
            parts.loop_delay_seconds = max(0.0, loop.time() - due)

    return app


def _add_rates(app: LedgerApp, rates: RatesFeed) -> None:
    batches = app.channel(maxsize=BATCHES_MAX)

    @app.agent(batches, name="rates", concurrency=1)
    async def count(stream: faust.StreamT[RatesBatch]) -> None:
        async for batch in stream:
            await rates.count(batch)

    rates.sends_to(lambda batch: batches.send(value=batch))
    app.service(supervised("Rates", rates.run))


class _Worker(faust.Worker):
    """Faust's, without its way with signals, standard output, the log and the process title."""

    def install_signal_handlers(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._schedule_shutdown, number)

    async def on_execute(self) -> None:
        pass

    async def on_startup_finished(self) -> None:
        log.info("worker.ready")

    async def end(self) -> None:
        """Returns when everything has stopped, whoever asked for it."""
        if self._signal_stop_future is not None:
            await self._signal_stop_future
        await self.stop()


def run_worker(settings: WorkerSettings, only: Only | None = None) -> int:
    """Until SIGTERM or SIGINT, or until a part of it fails. Returns the exit code: 0 or 1. Raises
    `KeysMissing` where models cannot be called for want of keys."""
    gc.set_threshold(*GC_THRESHOLD)
    return asyncio.run(_run(settings, only))


async def _run(settings: WorkerSettings, only: Only | None) -> int:
    log.info("worker.starting", only=only or "everything")
    if settings.model_calls is not None:
        await require_keys(settings.model_calls)
    with ExitStack() as closing:
        datadir = closing.enter_context(tempfile.TemporaryDirectory(prefix="ledger-worker-"))
        parts = Parts(settings, only, closing)
        app = worker_app(settings, parts, datadir=datadir)
        worker = _Worker(
            app,
            quiet=True,
            override_logging=False,
            redirect_stdouts=False,
            loop=asyncio.get_running_loop(),
        )
        worker.spinner = None
        try:
            await worker.start()
        finally:
            await worker.end()
        if worker.crash_reason is not None:
            log.critical("worker.crashed", reason=repr(worker.crash_reason))
            return 1
        log.info("worker.stopped")
        return 0
