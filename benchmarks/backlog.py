"""What a job costs while others wait before it: `python -m benchmarks.backlog [--full]`.

The whole ledger, with jobs that wait for a runtime which nobody runs. Then the rules, the codec and
the chain alone, a process for each size, in turns: jobs are asked for, and as many of the oldest
are given and end, so that the backlog stays. JSON lines.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.load import drained, request, submit
from benchmarks.offline_log import OfflineLog
from benchmarks.pace import Pace
from benchmarks.results import Result, progress, run
from benchmarks.stack import BenchStack, bench_stack
from ledger.domain.partition import Bounds
from processors.app import GC_THRESHOLD

SIZES = (10_000, 100_000)
FULL_SIZES = (*SIZES, 1_000_000)
ROUNDS = 15
JOBS = 2_000
"""Of one round."""
AT_ONCE = 100
"""In one turn of the owner."""
LIVE_JOBS = 6_000
LIVE_ROUNDS = 5
BOUNDS = Bounds(open_bytes_max=1 << 36)


def hold(backlog: int, pipe: Connection) -> None:
    """In a process of its own: a round whenever it is told so; CPU us a job."""
    gc.set_threshold(*GC_THRESHOLD)
    log = OfflineLog(mixed=False, keeps=False, bounds=BOUNDS)
    for _ in range(0, backlog, 1_000):
        log.request(1_000)
        log.partition.drain_touched()
    pipe.send(0.0)
    while pipe.recv():
        began = time.process_time()
        for _ in range(0, JOBS, AT_ONCE):
            log.request(AT_ONCE)
            log.report(log.grant(AT_ONCE))
            log.partition.drain_touched()
        pipe.send((time.process_time() - began) / JOBS * 1e6)


class Held:
    def __init__(self, backlog: int) -> None:
        context = get_context("spawn")
        self.backlog = backlog
        self.found: list[float] = []
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=hold, args=(backlog, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def wait(self) -> float:
        return float(self._pipe.recv())

    def round(self) -> None:
        self._pipe.send(True)
        self.found.append(self.wait())

    def end(self) -> None:
        self._pipe.send(False)
        self._process.join()

    @property
    def median(self) -> float:
        return statistics.median(self.found)

    def ratio(self, other: Held) -> float:
        """Of its cost to another's, taken within each round."""
        pairs = zip(self.found, other.found, strict=True)
        return statistics.median(ours / its for ours, its in pairs)


def offline(sizes: tuple[int, ...]) -> Result:
    all_held = [Held(size) for size in (0, *sizes)]
    for held in all_held:
        held.wait()
    progress(f"{max(sizes):,} jobs wait")
    for _ in range(ROUNDS):
        for held in all_held:
            held.round()
    for held in all_held:
        held.end()
    without, behind = all_held[0], all_held[1:]
    return Result(
        "backlog_rules",
        "x",
        ours=max(held.ratio(without) for held in behind),
        ours_as_beside=max(held.median for held in behind),
        beside=without.median,
        beside_is="us, rules alone",
        detail=f"{max(sizes):,} jobs",
        figures={f"us_{held.backlog}": round(held.median, 1) for held in all_held},
    )


def waiting(queue: str, number: int) -> dict[str, Any]:
    return request(queue, number, type="waits")


def ledger() -> AbstractContextManager[BenchStack]:
    return bench_stack(partitions=1, open_bytes_max=str(BOUNDS.open_bytes_max))


def live(backlog: int) -> Result:
    """Two ledgers, of which one has the backlog, in turns: ratios are taken within a round, each in
    paces."""
    queues = [f"live{number}" for number in range(LIVE_ROUNDS)]
    with ledger() as empty, ledger() as filled, Pace() as pace:
        for stack in (empty, filled):
            stack.worker()
            drained(stack, ["warm"], LIVE_JOBS)
        asyncio.run(submit(filled, queues, backlog, waiting))
        filled.wait_until("pending", backlog, *queues, seconds=1_200)
        for stack in (empty, filled):
            stack.tidy_up()
        progress(f"{backlog:,} jobs wait in the ledger")
        rounds = []
        for queue in queues:
            without, behind = (cost_in_paces(stack, queue, pace) for stack in (empty, filled))
            progress(f"{behind:.1f} paces behind them, {without:.1f} without")
            rounds.append((without, behind))
    return Result(
        "backlog",
        "x",
        ours=statistics.median(behind / without for without, behind in rounds),
        ours_as_beside=statistics.median(behind for _, behind in rounds),
        beside=statistics.median(without for without, _ in rounds),
        beside_is="paces, without the broker",
        detail=f"{backlog:,} jobs",
        is_reduced=backlog < FULL_SIZES[-1],
    )


def cost_in_paces(stack: BenchStack, queue: str, pace: Pace) -> float:
    run, pace_us = pace.during(lambda: drained(stack, [queue], LIVE_JOBS))
    return run.without_broker / pace_us


def measure(full: bool) -> Iterator[Result]:
    sizes = FULL_SIZES if full else SIZES
    yield live(sizes[-1])
    yield offline(sizes)


if __name__ == "__main__":
    run(measure, __doc__)
