"""Partitions are checked beside each other, a process each: what is checked is the interpreter's
work, so that one interpreter keeps one core."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from msgspec import Struct

from ledger.audit.log_check import LogCheck, Noted, Report
from ledger.audit.sources import Source
from ledger.audit.whole_log import WholeLog
from ledger.domain.invariants import PATIENCE_US
from ledger.domain.partition import Bounds

GC_THRESHOLD = (50_000, 20, 50)
"""Traces of open jobs are many, and hold no cycles."""
LOOK_SECONDS = 0.2


class Task(Struct, frozen=True):
    """One partition to check."""

    topic: str
    partition: int
    source: Source
    bounds: Bounds
    told_from: int = 0
    until: int | None = None
    patience_us: int = PATIENCE_US
    noted: tuple[Noted, ...] = ()
    deep_in: Path | None = None
    """A directory for what spans the whole log; None: it is not looked at."""


class Progress(Struct, frozen=True):
    partition: int
    records: int
    """Since the last time."""
    position: int
    end: int | None


Show = Callable[[Progress], None]


def check(task: Task, show: Show) -> Report:
    """In this process."""
    with ExitStack() as closing:
        beyond = None
        if task.deep_in is not None:
            beyond = WholeLog(task.deep_in, task.partition, told_from=task.told_from)
            closing.enter_context(beyond)
        log_check = LogCheck(
            task.topic,
            task.partition,
            bounds=task.bounds,
            patience_us=task.patience_us,
            told_from=task.told_from,
            noted=task.noted,
            beyond=beyond,
        )
        partition = task.partition
        return task.source.run(
            log_check,
            task.until,
            lambda records, position, end: show(Progress(partition, records, position, end)),
        )


def check_all(tasks: Sequence[Task], *, processes: int, show: Show) -> list[Report]:
    """In the order of the tasks; in this process where one is enough."""
    many = min(processes, len(tasks))
    if many <= 1:
        return [check(task, show) for task in tasks]
    context = get_context("spawn")
    told: SimpleQueue[Progress] = context.SimpleQueue()
    with ProcessPoolExecutor(many, context, _begin, (told,)) as pool:
        futures: list[Future[Report]] = [pool.submit(_check, task) for task in tasks]
        try:
            left: set[Future[Report]] = set(futures)
            while left:
                _, left = wait(left, LOOK_SECONDS, FIRST_COMPLETED)
                while not told.empty():
                    show(told.get())
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_told: SimpleQueue[Progress] | None = None


def _begin(told: SimpleQueue[Progress]) -> None:
    global _told
    _told = told
    gc.set_threshold(*GC_THRESHOLD)


def _check(task: Task) -> Report:
    assert _told is not None
    return check(task, _told.put)
