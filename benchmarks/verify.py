"""How fast `ledger verify` reads: `python -m benchmarks.verify [--full]`.

Archives of a log that is made with the rules alone are checked in this process, one layer after the
other: read (unpacked), decoded (chain and sequence), folded, checked (all rules), deep (sorted on
disk); CPU us an event. Then by a process each core, as the command does, against the clock. JSON
lines.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.offline_log import TOPIC, OfflineLog
from benchmarks.processes import cpu_of
from benchmarks.results import Result, run
from ledger.audit.log_check import Report
from ledger.audit.processes import GC_THRESHOLD, Task, check, check_all
from ledger.audit.sources import ArchiveSource
from ledger.domain.entries import Proven
from ledger.domain.partition import Bounds, Partition
from ledger.log.archive import Archive
from ledger.log.effective import EffectiveEntries
from ledger.log.records import LogRecord

EVENTS, PARTITIONS, ROUNDS = 320_000, 8, 3


def read(path: Path) -> None:
    for _ in Archive(path).blocks():
        pass


def decoded(path: Path) -> None:
    entries = EffectiveEntries(TOPIC, Archive(path).partition)
    for block in Archive(path).blocks():
        entries.feed_all(block)


def folded(path: Path) -> None:
    fold(Archive(path).partition, Archive(path).blocks())


def fold(number: int, blocks: Iterable[Iterable[LogRecord]]) -> None:
    entries, partition = EffectiveEntries(TOPIC, number), Partition(number)
    for block in blocks:
        for item in entries.feed_all(block):
            if isinstance(item, Proven):
                partition.apply(item.entry)
                partition.drain_touched()
            else:
                partition.take_over(item.take_over)


def checked(path: Path) -> None:
    assert report(path, None).is_sound


def deep(path: Path) -> None:
    assert report(path, path.parent).is_sound


def report(path: Path, deep_in: Path | None) -> Report:
    return check(task(path, deep_in), lambda progress: None)


def task(path: Path, deep_in: Path | None = None) -> Task:
    number = Archive(path).partition
    return Task(TOPIC, number, ArchiveSource((path,)), Bounds(), deep_in=deep_in)


LAYERS: tuple[Callable[[Path], None], ...] = (read, decoded, folded, checked, deep)


def all_at_once(paths: list[Path], events: int) -> tuple[float, float]:
    """Events a second by the clock; CPU us an event, of all processes."""
    tasks = [task(path) for path in paths]
    before, began = cpu_of([os.getpid()]), time.perf_counter()
    reports = check_all(tasks, processes=os.cpu_count() or 1, show=lambda progress: None)
    took = time.perf_counter() - began
    assert all(one.is_sound for one in reports)
    return events / took, (cpu_of([os.getpid()]) - before) / events * 1e6


def measure(full: bool) -> Iterator[Result]:
    many = EVENTS * 5 if full else EVENTS
    gc.set_threshold(*GC_THRESHOLD)
    with TemporaryDirectory() as directory:
        paths, events = [], 0
        for number in range(PARTITIONS):
            log = OfflineLog(number, PARTITIONS)
            log.write(many // PARTITIONS)
            events += log.events
            paths.append(log.save(Path(directory)))
        one = events / PARTITIONS
        for layer in LAYERS:
            found = []
            for path in paths[:ROUNDS]:
                began = time.process_time()
                layer(path)
                found.append((time.process_time() - began) / one * 1e6)
            spent = round(statistics.median(found), 1)
            yield Result(f"verify_{layer.__name__}", "us", ours=spent, detail="CPU of an event")
        rounds = [all_at_once(paths, events) for _ in range(ROUNDS)]
    yield Result(
        "verify",
        "events/s",
        ours=round(statistics.median(rate for rate, _ in rounds)),
        detail=f"{events:,} events",
        figures={"cpu_us_an_event": round(statistics.median(cpu for _, cpu in rounds), 1)},
    )


if __name__ == "__main__":
    run(measure, __doc__)
