"""Runs the user's handlers: async ones in the user's loop, others in threads, and makes a word of
what becomes of each. It knows nothing of Kafka."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, TypeVar, assert_never

import structlog
from msgspec import UNSET, Struct

from ledger.client.carrying import Carrier
from ledger.client.endings import (
    NO_OBJECT_STORE,
    Large,
    failure,
    of_store,
    raised,
    released,
    result_of,
    stopped,
)
from ledger.client.errors import Refused, StoreFailed
from ledger.client.held import AskToStop, Begin, Ending, Held, Order, Stop, Why
from ledger.client.job_context import (
    Context,
    GiveBack,
    JobFailure,
)
from ledger.client.requests import PAYLOAD_TOO_LARGE
from ledger.domain.commands import (
    ProgressSaid,
    ReportedFailure,
    ReportedResult,
)
from ledger.domain.ids import INLINE_BYTES_MAX
from ledger.log.crash_points import reach

log = structlog.get_logger(__name__)

T = TypeVar("T")
PARKED_MAX = 100
"""Tasks kept for the next jobs."""

AsyncHandler = Callable[[Context], Awaitable[object]]
SyncHandler = Callable[[Context], object]
Handler = AsyncHandler | SyncHandler
Say = Callable[[Held, Ending | ProgressSaid | None], None]


class Run(Struct, gc=False, eq=False):
    """One job in the hands of its handler. Equal to itself only."""

    held: Held
    context: Context
    handler: Handler
    is_async: bool
    task: asyncio.Task[None] | None = None
    """While an async handler runs."""
    why: Why | None = None
    """It was told to stop."""


class Handlers:
    """`take` orders from any thread; `say` is called with what became of each job, from the thread
    that its handler ran in."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        slots: int,
        loop: asyncio.AbstractEventLoop,
        say: Say,
        failed: Callable[[BaseException], None],
        carrier: Carrier | None = None,
        fetches: bool = True,
    ) -> None:
        """`failed` is told what is no failure of a job but one of ours. `fetches`: what lies in the
        object store is there when a handler is called."""
        self._carrier = carrier
        self._fetches = fetches
        self._handlers: dict[str, tuple[Handler, bool]] = {}
        for job_type, handler in handlers.items():
            self.add(job_type, handler)
        self._loop = loop
        self._say = say
        self._failed = failed
        self._runs: dict[Held, Run] = {}
        self._ready: deque[Run] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._parked: list[asyncio.Future[None]] = []
        self._runner_is_coming = False
        self._clean = contextvars.copy_context()
        self._threads = Threads(slots, self._run_in_thread)
        self._closed = False
        self._idle: asyncio.Event | None = None

    def add(self, job_type: str, handler: Handler) -> None:
        """Before jobs of the type are offered. None is ever removed: some may be under way."""
        self._handlers[job_type] = (handler, _is_async(handler))

    # --- From any thread -------------------------------------------------------------------------
    def take(self, orders: list[Order]) -> None:
        """Those for threads at once: a loop that is busy must not keep them waiting."""
        for_loop: list[tuple[Run, Order]] = []
        for order in orders:
            run = self._run_of(order)
            if run is None:
                continue
            if run.is_async:
                for_loop.append((run, order))
            elif isinstance(order, Begin):
                self._threads.put(run)
            else:
                self._tell(run, order)
        if for_loop:
            try:
                self._loop.call_soon_threadsafe(self._take_in_loop, for_loop)
            except RuntimeError:  # The loop is closed: nobody is there to do the work.
                for run, _ in for_loop:
                    self._end(run, released(run.held, Why.LEAVING))

    def stop(self, why: Why) -> None:
        """Tell all that run to stop. Called in the loop."""
        for run in list(self._runs.values()):
            self._tell(run, Stop(run.held, why))
        while self._ready:
            run = self._ready.popleft()
            self._end(run, released(run.held, why))

    @property
    def running(self) -> int:
        return len(self._runs)

    async def idle(self, seconds: float) -> bool:
        """Whether all had come back before the time was up."""
        idle = self._idle = asyncio.Event()
        if self._runs:
            with suppress(TimeoutError):
                await asyncio.wait_for(idle.wait(), seconds)
        return not self._runs

    async def close(self) -> None:
        """Ends the tasks and threads that wait for jobs; a thread at work is left alone."""
        self._closed = True
        self._threads.close()
        for runner in self._runners:
            runner.cancel()
        if self._runners:
            await asyncio.wait(self._runners)

    def _run_of(self, order: Order) -> Run | None:
        held = order.held
        if not isinstance(order, Begin):
            return self._runs.get(held)
        handler, is_async = self._handlers[held.worker_type]
        run = self._runs[held] = Run(held, Context(held, self._say), handler, is_async)
        return run

    def _tell(self, run: Run, order: Order) -> None:
        cancelled = run.context.cancelled
        match order:
            case AskToStop():
                cancelled.set(order.reason, order.deadline)
            case Stop():
                lost = order.why is Why.LOST or order.why is Why.RAN_OUT
                cancelled.set(order.why.value, None, is_lost=lost)
                first = run.why is None
                run.why = run.why or order.why
                if first and run.task is not None:
                    run.task.cancel()
            case Begin():
                pass
            case _:
                assert_never(order)

    def _ended_unbegun(self, run: Run) -> bool:
        """It was told to stop before its turn came."""
        if run.why is not None:
            self._end(run, stopped(run.held, run.why))
        return run.why is not None

    def _end(self, run: Run, word: Ending | None) -> None:
        self._runs.pop(run.held, None)
        self._say(run.held, word)
        if self._idle is not None and not self._runs:
            with suppress(RuntimeError):  # The loop is closed: nobody waits.
                self._loop.call_soon_threadsafe(self._idle.set)

    # --- In the loop -----------------------------------------------------------------------------
    def _take_in_loop(self, orders: list[tuple[Run, Order]]) -> None:
        for run, order in orders:
            if isinstance(order, Begin):
                self._ready.append(run)
            else:
                self._tell(run, order)
        if self._ready:
            self._call_runner()

    def _call_runner(self) -> None:
        """See that somebody looks at what is ready."""
        if self._runner_is_coming or self._closed:
            return
        self._runner_is_coming = True
        while self._parked:
            parked = self._parked.pop()
            if not parked.done():
                parked.set_result(None)
                return
        runner = self._loop.create_task(self._runner(), context=self._clean.copy())
        self._runners.add(runner)
        runner.add_done_callback(self._runner_ended)

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self._failed(error)
        if self._ready:
            self._call_runner()

    async def _runner(self) -> None:
        """Job after job in one task: a task for each would cost more than all else together. While
        one is under way that may wait, another runner comes for what is ready behind it."""
        task = asyncio.current_task()
        assert task is not None
        ready = self._ready
        while True:
            self._runner_is_coming = False
            while ready:
                run = ready.popleft()
                if ready:
                    self._call_runner()
                await self._run_async(run, task)
                if contextvars.copy_context() != self._clean or task.cancelling():
                    return  # The job left something behind; the next one starts clean.
            if len(self._parked) >= PARKED_MAX or self._closed:
                return
            parked = self._loop.create_future()
            self._parked.append(parked)
            await parked

    async def _run_async(self, run: Run, task: asyncio.Task[None]) -> None:
        held = run.held
        if self._ended_unbegun(run):
            return
        run.task = task
        held.entered = True
        word: Ending | None
        try:
            if self._fetches and (held.job.payload_ref is not None or held.job.input_refs):
                await self._fetch(run)
            reach("runtime.before_call")
            output = await run.handler(run.context)  # type: ignore[misc]
            reach("runtime.after_call")
            said = result_of(held, output)
            word = await self._store(said) if isinstance(said, Large) else said
        except asyncio.CancelledError as error:
            if run.why is None and (self._closed or task.cancelling()):
                self._end(run, released(held, Why.LEAVING))
                raise
            while run.why is not None and task.cancelling():
                task.uncancel()
            word = raised(held, error, run.context.cancelled, run.why)
        except Exception as error:
            word = raised(held, error, run.context.cancelled, run.why)
        finally:
            run.task = None
        self._end(run, word)

    # --- What lies in the object store -----------------------------------------------------------
    async def _fetch(self, run: Run) -> None:
        """Before the handler is called. Raises `JobFailure`."""
        brief = run.held.job
        if self._carrier is None:
            message = "its input lies in an object store: start the runtime with `objects`"
            raise JobFailure(NO_OBJECT_STORE, message)
        try:
            payload = UNSET
            if brief.payload_ref is not None:
                payload = await self._carrier.payload_of(brief)
            inputs = await self._carrier.inputs_of(brief)
            reach("runtime.after_fetch")
            run.context.give(payload, inputs)
        except StoreFailed as failed:
            raise of_store(failed) from failed

    async def _store(self, large: Large) -> ReportedResult | ReportedFailure:
        held = large.held
        if self._carrier is None:
            message = f"the output takes {len(large.data)} bytes; {INLINE_BYTES_MAX} fit"
            return failure(held, PAYLOAD_TOO_LARGE, message, retryable=False)
        try:
            ref, extract = await self._carrier.output_of(
                held.job_id, held.fence, held.job, large.data
            )
        except Refused as refused:
            return failure(held, PAYLOAD_TOO_LARGE, str(refused), retryable=False)
        except StoreFailed as failed:
            raise of_store(failed) from failed
        return ReportedResult(
            held.job_id, held.fence, UNSET, ref, large.output_hash, extract or None
        )

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """From a handler's thread: the store's calls belong to the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RuntimeError as error:  # The loop is closed: nobody is there to do the work.
            work.close()
            raise GiveBack(str(error)) from error

    # --- In threads ------------------------------------------------------------------------------
    def _run_in_thread(self, run: Run) -> None:
        held = run.held
        if self._ended_unbegun(run):
            return
        held.entered = True
        word: Ending | None
        try:
            if self._fetches and (held.job.payload_ref is not None or held.job.input_refs):
                self._in_loop(self._fetch(run))
            reach("runtime.before_call")
            output = run.handler(run.context)
            reach("runtime.after_call")
            said = result_of(held, output)
            word = self._in_loop(self._store(said)) if isinstance(said, Large) else said
        except BaseException as error:  # Also what asks a process to exit: this is only a thread.
            word = raised(held, error, run.context.cancelled, run.why)
        self._end(run, word)


class Threads:
    """Daemon threads, as many as jobs at once, made when needed: one that never comes back does not
    keep the process from ending."""

    def __init__(self, threads_max: int, work: Callable[[Run], None]) -> None:
        self._max = threads_max
        self._work = work
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._threads = 0
        self._idle = Semaphore(0)

    def put(self, run: Run) -> None:
        """Called from one thread."""
        self._queue.put(run)
        if not self._idle.acquire(blocking=False) and self._threads < self._max:
            self._threads += 1
            name = f"ledger-job-{self._threads}"
            Thread(target=self._serve, name=name, daemon=True).start()

    def close(self) -> None:
        for _ in range(self._threads):
            self._queue.put(None)

    def _serve(self) -> None:
        while (run := self._queue.get()) is not None:
            self._work(run)
            self._idle.release()


def _is_async(handler: Handler) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 (an object with an async __call__)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
