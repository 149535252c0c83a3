"""How fast `ledger verify` reads: `python -m benchmarks.verify [EVENTS] [PARTITIONS] [ROUNDS]`.

Archives of a log that is made with the rules alone are checked in this process, one layer after the
other: read (unpacked), decoded (chain and sequence), folded, checked (all rules), deep (sorted on
disk); CPU us an event. Then by a process each core, as the command does, against the clock. JSON
lines.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.offline_log import TOPIC, OfflineLog
from benchmarks.processes import cpu_of
from ledger.audit.log_check import Report
from ledger.audit.processes import GC_THRESHOLD, Task, check, check_all
from ledger.audit.sources import ArchiveSource
from ledger.domain.entries import Proven
from ledger.domain.partition import Bounds, Partition
from ledger.log.archive import Archive
from ledger.log.effective import EffectiveEntries


def read(path: Path) -> None:
    for _ in Archive(path).blocks():
        pass


def decoded(path: Path) -> None:
    entries = EffectiveEntries(TOPIC, Archive(path).partition)
    for block in Archive(path).blocks():
        entries.feed_all(block)


def folded(path: Path) -> None:
    number = Archive(path).partition
    entries, partition = EffectiveEntries(TOPIC, number), Partition(number)
    for block in Archive(path).blocks():
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


def say(measure: str, **figures: float) -> None:
    line = {"measure": measure, **figures, "load": round(os.getloadavg()[0], 1)}
    print(msgspec.json.encode(line).decode(), flush=True)


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 320_000
    partitions = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    gc.set_threshold(*GC_THRESHOLD)
    with TemporaryDirectory() as directory:
        paths, events = [], 0
        for number in range(partitions):
            log = OfflineLog(number, partitions)
            log.write(many // partitions)
            events += log.events
            paths.append(log.save(Path(directory)))
        one = events / partitions
        for layer in LAYERS:
            found = []
            for path in paths[:rounds]:
                began = time.process_time()
                layer(path)
                found.append((time.process_time() - began) / one * 1e6)
            say(layer.__name__, cpu_us_an_event=round(statistics.median(found), 1))
        for _ in range(rounds):
            rate, cpu = all_at_once(paths, events)
            say("verify", events=events, events_a_second=round(rate), cpu_us_an_event=round(cpu, 1))


if __name__ == "__main__":
    main()
