"""How fast the machine is meanwhile, in *paces*: a fixed piece of work that a process beside does
again and again, and the us of CPU that one took it.

A virtual core changes its speed by half within minutes, and two hyperthreads slow each other: us of
CPU of different minutes do not compare. Divided by the us a pace of the same time they become
paces, which do: of a worker's job they repeat within some percent where its us differ by half.

A pace is a row of 200 bytes out of 20,000 in no order, written as JSON and read back: strings and
dicts beyond the nearer caches, as workers have them. The process takes 3 % of a core.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from multiprocessing import get_context, parent_process
from random import Random
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

ROWS = 20_000
AT_ONCE = 100
"""So many that what it takes to wake up does not show."""
PAUSE_SECONDS = 0.03
START_SECONDS = 60.0
POLL_SECONDS = 0.01


class Mark(NamedTuple):
    """What was done since the start."""

    paces: float
    seconds: float
    """Of CPU."""


class Pace:
    """The process, for as long as the context lasts: `first = pace.mark()`, what is measured,
    `us_between(first, pace.mark())`."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._done: Any = context.Array("d", len(Mark._fields), lock=False)
        self._process = context.Process(target=_walk, args=(self._done,), daemon=True)

    def __enter__(self) -> Pace:
        """Returns after the first paces."""
        self._process.start()
        deadline = time.monotonic() + START_SECONDS
        while not self.mark().paces:
            if not self._process.is_alive() or time.monotonic() > deadline:
                self._end()
                raise RuntimeError("the process that does the paces has not begun")
            time.sleep(POLL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def mark(self) -> Mark:
        return Mark(*self._done)

    def during(self, ask: Callable[[], T]) -> tuple[T, float]:
        """What `ask` returns, and the us of CPU that a pace took meanwhile."""
        first = self.mark()
        found = ask()
        return found, us_between(first, self.mark())

    def _end(self) -> None:
        self._process.kill()
        self._process.join()


def us_between(first: Mark, last: Mark) -> float:
    """Of CPU, a pace. Raises ValueError where none was done between the two."""
    paces = last.paces - first.paces
    if paces <= 0:
        raise ValueError("no pace was done between the two marks: they are too close")
    return (last.seconds - first.seconds) / paces * 1e6


def _walk(done: Any) -> None:
    rows = {f"job-{number}": {"id": number, "text": "x" * 170} for number in range(ROWS)}
    keys = list(rows)
    Random(1).shuffle(keys)
    first = 0
    # Nobody ends it where the process that measures was killed.
    while (measuring := parent_process()) and measuring.is_alive():
        time.sleep(PAUSE_SECONDS)
        began = time.thread_time()
        for key in keys[first : first + AT_ONCE]:
            rows[key] = json.loads(json.dumps(rows[key]))
        done[1] += time.thread_time() - began
        done[0] += AT_ONCE
        first = (first + AT_ONCE) % ROWS
