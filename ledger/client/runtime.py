"""Runs jobs: register handlers by job type, then `run`.

    runtime = Runtime("worker-1", "127.0.0.1:9092", queue="ai", slots=10)

    @runtime.job("quiz_generation")
    async def quiz(ctx: Context) -> dict[str, object]:
        ctx.progress(10, "reading the snapshot")
        return {"questions": await ask_the_model(ctx.payload)}

    runtime.run()

An async handler runs in the loop of `serve`, another in a thread. What it returns is the job's
output; how else an attempt may end is in `ledger.client.job_context`. The lease of a job is
prolonged by a thread of its own while the handler runs, however busy the loop is; only native code
that keeps the interpreter's lock for seconds can starve it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, TypeVar

import msgspec
import structlog

from ledger.client.carrying import Carrier
from ledger.client.handlers import Handler, Handlers
from ledger.client.held import Why
from ledger.client.layout import connection_to
from ledger.client.runtime_link import RuntimeLink
from ledger.client.runtime_session import SLOTS_MAX
from ledger.domain import commands
from ledger.domain.ids import QueueName, RuntimeId
from ledger.log.connection import Connection
from ledger.log.topics import Topics
from ledger.objects import ObjectStore

log = structlog.get_logger(__name__)

QUEUES_MAX = 50
TYPES_MAX = 200
"""That one beat can offer."""
STOP_SECONDS = 2.0
"""What a handler has left to stop once it was cancelled."""
LEAVE_SECONDS = 10.0
"""For the last reports to be acknowledged."""
JOIN_SECONDS = 30.0

H = TypeVar("H", bound=Handler)


class RuntimeFailed(Exception):
    """The runtime ended by itself, for what no retry can mend; the cause says why."""


class Runtime:
    """One process's offer to run jobs. `id` must not be in use elsewhere at the same time.

    `slots` are jobs at once, over all queues. A beat is sent every `beat_seconds` and at least
    three times in the shortest lease seen. After `stop` (SIGTERM and SIGINT in `run`) what runs may
    finish within `drain_seconds`; the rest is given back, and no attempt is spent on it.
    """

    _Link: ClassVar[type[RuntimeLink]] = RuntimeLink

    def __init__(
        self,
        id: str,
        bootstrap: str | Connection,
        *,
        queue: str | Sequence[str] = "default",
        slots: int = 10,
        drain_seconds: float = 30.0,
        beat_seconds: float = 5.0,
        partitions: int | None = None,
        prefix: str = "",
        objects: ObjectStore | None = None,
        fetches: bool = True,
    ) -> None:
        """`objects`: where payloads, inputs and outputs lie that are too large for the log, see
        docs/objects.md; the caller closes it. `fetches` False: handlers fetch by themselves what
        lies there, by `ctx.payload_ref` and `ctx.input_refs`."""
        self._fetches = fetches
        self._carrier = None if objects is None else Carrier(objects)
        self.id = _checked(id, commands.Runtime, "runtime id")
        queues = (queue,) if isinstance(queue, str) else tuple(dict.fromkeys(queue))
        if not 1 <= len(queues) <= QUEUES_MAX:
            raise ValueError(f"a runtime serves 1 to {QUEUES_MAX} queues")
        if not 1 <= slots <= SLOTS_MAX:
            raise ValueError(f"slots is 1 to {SLOTS_MAX}")
        if not 0.1 <= beat_seconds <= 3600:
            raise ValueError("beat_seconds is 0.1 to 3600")
        self.queues = tuple(
            QueueName(_checked(name, commands.Queue, "queue name")) for name in queues
        )
        self.slots = slots
        self.drain_seconds = drain_seconds
        self._beat_seconds = beat_seconds
        self._connection = connection_to(bootstrap)
        self._topics = Topics(prefix)
        self._partitions = partitions
        self._handlers: dict[str, Handler] = {}
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._running: Handlers | None = None
        self._link: RuntimeLink | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    def job(self, job_type: str) -> Callable[[H], H]:
        """Registers the handler of a job type. While it serves, in its loop: the next beat offers
        the type."""
        _checked(job_type, commands.Type, "job type")

        def register(handler: H) -> H:
            if job_type in self._handlers:
                raise ValueError(f"{job_type} has a handler already")
            if len(self._handlers) == TYPES_MAX:
                raise ValueError(f"a runtime serves {TYPES_MAX} job types at most")
            self._handlers[job_type] = handler
            if self._running is not None:
                self._running.add(job_type, handler)
            self._offer()
            return handler

        return register

    def forget(self, job_type: str) -> None:
        """Takes no more jobs of the type; what runs goes on. While it serves, in its loop."""
        if self._handlers.pop(job_type, None) is not None:
            self._offer()

    @property
    def types(self) -> frozenset[str]:
        """What it has handlers of."""
        return frozenset(self._handlers)

    @property
    def is_served(self) -> bool:
        """The owner of every queue has answered."""
        return self._link is not None and self._link.ready.is_set()

    def _offer(self) -> None:
        if self._link is not None:
            self._link.offer(sorted(self._handlers))

    def run(self) -> None:
        """Until SIGTERM or SIGINT. A second one cuts the drain short."""
        asyncio.run(self._run())

    async def serve(self) -> None:
        """In the running loop, until `stop`. Raises `RuntimeFailed`."""
        if not self._handlers:
            raise ValueError("register a handler first: @runtime.job(…)")
        if self._link is not None:
            raise ValueError("it serves already")
        self._loop = asyncio.get_running_loop()
        link = self._link = self._Link(
            self._connection,
            self._topics,
            runtime_id=RuntimeId(self.id),
            queues=self.queues,
            types=sorted(self._handlers),
            slots=self.slots,
            period_seconds=self._beat_seconds,
            partitions=self._partitions,
            give=lambda orders: handlers.take(orders),
            ended=self.stop,
        )
        handlers = Handlers(
            self._handlers,
            slots=self.slots,
            loop=self._loop,
            say=link.said,
            failed=self._fail,
            carrier=self._carrier,
            fetches=self._fetches,
        )
        self._running = handlers
        link.start()
        log.info("runtime.started", runtime=self.id, queues=self.queues, slots=self.slots)
        try:
            await self._stopping.wait()
            if link.failure is None:
                link.drain()
                await self._drain(handlers)
        finally:
            await self._leave(link, handlers)
        failure = self._failure or link.failure
        if failure is not None:
            raise RuntimeFailed(f"runtime {self.id} failed: {failure!r}") from failure

    def stop(self) -> None:
        """From any thread, and from signal handlers. A second call cuts the drain short."""
        loop = self._loop
        if loop is None:
            self._stopping.set()
            return
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(self._stop)

    async def ready(self, seconds: float = 30.0) -> None:
        """Returns once the owner of every queue has answered. Raises TimeoutError."""
        link = self._link
        if link is None:
            raise ValueError("it does not serve")
        if not await asyncio.to_thread(link.ready.wait, seconds):
            raise TimeoutError(f"no owner has answered within {seconds:g} s")

    # --- Ending ----------------------------------------------------------------------------------
    async def _run(self) -> None:
        with _signals(asyncio.get_running_loop(), self.stop):
            await self.serve()

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()

    async def _drain(self, handlers: Handlers) -> None:
        log.info("runtime.draining", runtime=self.id, running=handlers.running)
        idle = asyncio.ensure_future(handlers.idle(self.drain_seconds))
        hurry = asyncio.ensure_future(self._hurrying.wait())
        try:
            await asyncio.wait([idle, hurry], return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurry.cancel()

    async def _leave(self, link: RuntimeLink, handlers: Handlers) -> None:
        """Bounded, and done even if `serve` is cancelled a second time."""
        leaving = asyncio.ensure_future(self._give_back(link, handlers))
        while not leaving.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(leaving)
        self._link = self._running = None
        leaving.result()

    async def _give_back(self, link: RuntimeLink, handlers: Handlers) -> None:
        link.drain()  # Or what is given back would be given to it again.
        if handlers.running:
            log.warning("runtime.giving_back", runtime=self.id, jobs=handlers.running)
            handlers.stop(Why.LEAVING)
            await handlers.idle(STOP_SECONDS)
        link.leave(LEAVE_SECONDS)
        if not await link.left(LEAVE_SECONDS + JOIN_SECONDS):
            log.error("runtime.not_left", runtime=self.id)
        await handlers.close()
        log.info("runtime.left", runtime=self.id)


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    names = (signal.SIGTERM, signal.SIGINT)
    for name in names:
        loop.add_signal_handler(name, stop)
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(name)


def _checked(text: str, shape: object, what: str) -> str:
    try:
        return msgspec.convert(text, shape, strict=True)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise ValueError(f"{text!r} is no {what}: {error}") from None
