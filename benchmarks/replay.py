"""How fast a log is read back: decoded, its chain verified, folded; by one process, and
by two beside each other: `python -m benchmarks.replay [--full]`. JSON lines.

The rate is of events by CPU second, summed over the processes: what a machine gives that does
nothing else. By the clock it is among the figures.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.offline_log import OfflineLog
from benchmarks.results import Result, progress, run
from benchmarks.verify import fold
from ledger.audit.processes import GC_THRESHOLD
from ledger.log.archive import Archive

EVENTS = 80_000
"""Of each of two partitions."""
ROUNDS = 3


def written(directory: Path, number: int, events: int) -> tuple[Path, int]:
    log = OfflineLog(number, 2)
    log.write(events)
    return log.save(directory), log.events


def timed(path: Path) -> tuple[float, float]:
    """Seconds of CPU, and by the clock, once the records are in memory."""
    blocks = list(Archive(path).blocks())
    gc.collect()
    gc.freeze()
    began, cpu = time.perf_counter(), time.process_time()
    fold(Archive(path).partition, blocks)
    spent = time.process_time() - cpu, time.perf_counter() - began
    gc.unfreeze()
    return spent


def begin() -> None:
    gc.set_threshold(*GC_THRESHOLD)


def measure(full: bool) -> Iterator[Result]:
    with TemporaryDirectory() as directory:
        logs = [
            written(Path(directory), number, EVENTS * 5 if full else EVENTS) for number in (0, 1)
        ]
        paths, events = [path for path, _ in logs], [events for _, events in logs]
        progress(f"{sum(events):,} events written")
        one, two = [], []
        with ProcessPoolExecutor(2, get_context("spawn"), begin) as pool:
            list(pool.map(timed, paths))  # They are up, and the files in memory.
            for _ in range(ROUNDS):
                one.append(pool.submit(timed, paths[0]).result())
                two.append(list(pool.map(timed, paths)))
    yield _result(
        "replay_one", events[0], [events[0] / cpu for cpu, _ in one], [took for _, took in one]
    )
    by_cpu = [sum(n / cpu for n, (cpu, _) in zip(events, both, strict=True)) for both in two]
    yield _result("replay_two", sum(events), by_cpu, [max(t for _, t in both) for both in two])


def _result(measure: str, events: int, rates: list[float], seconds: list[float]) -> Result:
    return Result(
        measure,
        "events/s",
        ours=round(statistics.median(rates)),
        detail=f"{events:,} events",
        figures={"by_the_clock": round(events / statistics.median(seconds))},
    )


if __name__ == "__main__":
    run(measure, __doc__)
