"""What an open job takes in its owner's memory: `python -m benchmarks.memory [--full]`. JSON lines.

Jobs with 200 bytes of payload each their own, asked for by the rules, written to a log and folded
from it in a fresh process, as a take-over does it; resident memory before and after. They were
asked for over days, so that few of their commands are still remembered; `in_an_hour` is with all of
them.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Raw

from benchmarks.load import random_payload
from benchmarks.offline_log import TOPIC, OfflineLog
from benchmarks.results import Result, run
from ledger.domain.entries import Proven
from ledger.domain.ids import SECOND
from ledger.domain.partition import Bounds, Partition
from ledger.log.archive import Archive
from ledger.log.effective import EffectiveEntries
from processors.app import GC_THRESHOLD

JOBS = 60_000
FULL_JOBS = 1_000_000
APART = 10 * 60 * SECOND
"""Between two thousands of them."""
BOUNDS = Bounds(open_bytes_max=1 << 36)


def resident() -> int:
    """Bytes of this process, after what is free was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def bytes_a_job(path: Path) -> float:
    gc.set_threshold(*GC_THRESHOLD)
    entries, partition = EffectiveEntries(TOPIC, 0), Partition(0, BOUNDS)
    before = resident()
    for block in Archive(path).blocks():
        for item in entries.feed_all(block):
            if isinstance(item, Proven):
                partition.apply(item.entry)
                partition.drain_touched()
    return (resident() - before) / len(partition.jobs)


def written(directory: Path, jobs: int, apart: int) -> Path:
    random = Random(1)

    def payload() -> Raw:
        return Raw(msgspec.json.encode(random_payload(random)))

    log = OfflineLog(mixed=False, bounds=BOUNDS, payload=payload)
    log.entries.clear()
    for _ in range(0, jobs, 1_000):
        log.pass_time(apart)
        log.request(1_000)
        log.entries.clear()
        log.partition.drain_touched()
    return log.save(directory)


def measure(full: bool) -> Iterator[Result]:
    jobs = FULL_JOBS if full else JOBS
    found = []
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        for apart in (APART, 0):
            with TemporaryDirectory() as directory:
                path = written(Path(directory), jobs, apart)
                found.append(fresh.submit(bytes_a_job, path).result())
    yield Result(
        "memory",
        "B",
        ours=round(found[0]),
        detail=f"{jobs:,} open jobs",
        figures={"in_an_hour": round(found[1])},
    )


if __name__ == "__main__":
    run(measure, __doc__)
