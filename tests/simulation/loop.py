"""An event loop without a clock or a socket of its own: time passes when nothing is left to do, and
a seed says whose turn it is. Processes share it; each is frozen or killed by itself.

A handle belongs to the process in whose context it was scheduled. Handles of one process run in
the order in which they were scheduled, as asyncio promises; processes take turns at random.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar, TypeVarTuple
from warnings import catch_warnings, simplefilter

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
STEP_SECONDS = 1e-6
"""What a handle takes, so that no loop of them stands still in time."""
THREAD_SECONDS = 0.002
"""About what a call in a thread takes."""
EPOCH_SECONDS = 1_790_000_025
"""The wall clock at the start: 15 s before a full minute, at which schedules fire."""


class Process:
    """What would be a process of the operating system: its tasks, its clocks, its network.

    One that was killed is gone: whatever its tasks awaited never comes, and no `finally` of theirs
    runs. `cut_until` and `frozen` belong to the faults.
    """

    def __init__(self, name: str, loop: Loop) -> None:
        self.name = name
        self.loop = loop
        self.alive = True
        self.frozen = False
        self.cut_until = 0.0
        """The network does not carry anything to it or from it before."""
        self.wall_offset = 0.0
        self.drift = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.context = Context()
        self.context.run(PROCESS.set, self)
        self.entropy = Random(f"{loop.seed}/{name}")

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work, context=self.context.copy())

    def freeze(self) -> None:
        self.frozen = True
        self.loop.reckon(self)

    def thaw(self) -> None:
        self.frozen = False
        self.loop.reckon(self)

    def kill(self) -> None:
        self.alive = False
        self.ready.clear()
        self.loop.reckon(self)

    def monotonic(self) -> float:
        return 1_000.0 + self.loop.now * (1.0 + self.drift)

    def wall(self) -> float:
        return EPOCH_SECONDS + self.loop.now * (1.0 + self.drift) + self.wall_offset


PROCESS: ContextVar[Process] = ContextVar("process")


def current() -> Process | None:
    """Whose code is running; None: nature's, which nothing freezes or kills."""
    return PROCESS.get(None)


class _Task(asyncio.Task[Any]):
    """Hashed by its number, not its address, so that sets of tasks have one order in every run."""

    def __init__(self, *args: Any, **words: Any) -> None:
        loop = words["loop"]
        self.number: int = next(loop.numbers)
        super().__init__(*args, **words)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: Loop) -> None:
        self.number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class StoodStill(Exception):
    """Nothing is ready and no timer runs: everybody waits for somebody."""


class Loop(asyncio.BaseEventLoop):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self.numbers = count(1)
        self.broken: list[str] = []
        """Callbacks and tasks that ended with an exception that nobody looks at."""
        self._turns = Random(f"{seed}/turns")
        self._nature: deque[asyncio.Handle] = deque()
        self._runnable: list[deque[asyncio.Handle]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._tasks: list[_Task] = []
        self._tasks_max = 256
        self._over = False
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._note_exception)

    # --- What asyncio asks of a loop -------------------------------------------------------------
    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self.numbers), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """In the middle of a moment, in the loop: a process may die before and after."""
        done = self.create_future()

        def work() -> None:
            try:
                outcome = func(*args)
            except Exception as error:
                self.call_later(THREAD_SECONDS, _fail, done, error)
            else:
                self.call_later(THREAD_SECONDS, _set, done, outcome)

        self.call_later(THREAD_SECONDS * self._turns.random(), work)
        return done

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # It is passed over when its time comes.

    def _write_to_self(self) -> None:
        pass  # Nobody sleeps in a selector.

    def _call_soon(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._make_ready(handle)
        return handle

    # --- Turns -----------------------------------------------------------------------------------
    def reckon(self, process: Process) -> None:
        """After a change of what may run."""
        runs = process.alive and not process.frozen and process.ready
        known = any(ready is process.ready for ready in self._runnable)
        if runs and not known:
            self._runnable.append(process.ready)
        elif not runs and known:
            self._runnable = [ready for ready in self._runnable if ready is not process.ready]

    def _make_ready(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is None:
            ready = self._nature
        elif process.alive:
            ready = process.ready
        else:
            return
        if not ready and (process is None or not process.frozen):
            self._runnable.append(ready)
        ready.append(handle)

    def _run_once(self) -> None:
        timers, runnable = self._timers, self._runnable
        if not runnable:
            if not timers:
                raise StoodStill
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            timer = heappop(timers)[2]
            if not timer.cancelled():
                self._make_ready(timer)
        if not runnable:
            return
        place = self._turns.randrange(len(runnable)) if len(runnable) > 1 else 0
        ready = runnable[place]
        handle = ready.popleft()
        if not ready:
            del runnable[place]
        if not handle.cancelled():
            self.now += STEP_SECONDS
            self.steps += 1
            handle._run()

    # --- The end ---------------------------------------------------------------------------------
    def _new_task(self, loop: Loop, work: Coroutine[Any, Any, T], **words: Any) -> asyncio.Task[T]:
        task = _Task(work, loop=loop, **words)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tasks_max = 2 * len(self._tasks) + 256
        return task

    def _note_exception(self, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        if not self._over:
            self.broken.append(f"{told['message']}: {told.get('exception')!r}")

    def note_end(self, task: asyncio.Task[Any]) -> None:
        """Of a task that nobody awaits, and that must not fail."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append(f"{task!r} ended with {error!r}")

    def give_up(self) -> None:
        """Ends what still waits, when nothing that it does counts any more."""
        self._over = True
        hook, sys.unraisablehook = sys.unraisablehook, lambda told: None
        events._set_running_loop(self)
        try:
            with catch_warnings():
                simplefilter("ignore")
                while self._tasks:
                    tasks, self._tasks = self._tasks, []
                    for task in tasks:
                        _unwind(task)
                self._runnable.clear()
                self._timers.clear()
                self._nature.clear()
                gc.collect()
        finally:
            events._set_running_loop(None)
            sys.unraisablehook = hook
            self.close()


def _unwind(task: asyncio.Task[Any]) -> None:
    """Somebody's `finally` may await something, and another's around it."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    for _ in range(UNWOUND_MAX):
        try:
            task.get_coro().close()
            return
        except BaseException:
            continue


UNWOUND_MAX = 20
"""`finally` blocks that await something, one inside the other."""


class Inline(Executor):
    """A thread pool whose work is done at once, where it is handed over."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **words: Any) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(fn(*args, **words))
        return done


def _set(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
