"""What an open job takes in its owner's memory: `python -m benchmarks.open_jobs [JOBS] [KIND …]`.

So many jobs are requested and nobody comes for them; the rules alone decide, no broker. Their
payload has 200 bytes; the kinds differ in what else a request says. Each is measured in a process
of its own, as the owner that decided them holds them, and as one that took over and read them from
a snapshot: bytes of resident memory a job, then by Python's own count, with the lines that hold
most. All that the partition keeps for such a job is in it: places, timers, keys, its command's id.
JSON lines.
"""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.offline_log import BEGIN, TURN_US
from ledger.audit.processes import GC_THRESHOLD
from ledger.client.command_ids import new_command_id
from ledger.domain import snapshot
from ledger.domain.commands import Asked, Command, PutTemplate, RequestJob, RetryAsk, Template
from ledger.domain.decide import Decided, decide
from ledger.domain.entries import Entry, TakeOver, cause_of
from ledger.domain.ids import Micros, QueueName
from ledger.domain.partition import Partition
from ledger.domain.raw_fields import decoder_of

QUEUE = QueueName("reports")
PAYLOAD = {"text": "x" * 189}
TEMPLATE = Template(timeout_seconds=600.0, retry=RetryAsk(max_attempts=2, backoff_seconds=(5.0,)))
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "declared": {"type": "declared"},
    "labelled": {"labels": {"user": "u{}", "plan": "free"}},
    "keyed": {"idempotency_key": "order-{}"},
    "in_time": {"start_timeout_seconds": 3_600.0},
    "delayed": {"delay_seconds": 3_600.0},
}
A_TURN = 50
"""Requests that an owner decides at one instant."""
LINES_MAX = 8

request_from = decoder_of(RequestJob)


def requested(kind: str, many: int) -> Partition:
    """Each request has strings of its own, as one that was read from an intake."""
    partition = Partition(0)
    partition.take_over(TakeOver("bench", BEGIN, "bench", 1))
    _say(partition, PutTemplate(QUEUE, "declared", TEMPLATE), BEGIN)
    said = {"type": "noop", "queue": QUEUE, "payload": PAYLOAD} | KINDS[kind]
    text = msgspec.json.encode(said).decode()
    at = BEGIN
    for number in range(many):
        if number % A_TURN == 0:
            at = Micros(at + TURN_US)
            partition.drain_touched()
        _say(partition, request_from(text.replace("{}", f"{number:012}").encode()), at)
    partition.drain_touched()
    return partition


def _say(partition: Partition, command: Command, at: Micros) -> None:
    asked = Asked(command, new_command_id(at), "bench", sent_at=at, appended_at=at)
    decided = decide(partition, asked, at)
    assert isinstance(decided, Decided), decided
    cause = cause_of(asked.command_id, awaited=False)
    partition.apply(Entry(partition.entry + 1, at, 0, 0, decided.events, "bench", cause))


def write(kind: str, many: int, path: Path) -> None:
    with path.open("wb") as parts:
        for part in snapshot.Taken(requested(kind, many)).parts():
            parts.write(snapshot.encoded(part) + b"\n")


def restored(path: Path) -> Partition:
    state = snapshot.Restored(Partition(0))
    with path.open("rb") as parts:
        for part in parts:
            state.add(snapshot.decoded(part))
    return state.partition


def held(kind: str, many: int, path: Path | None, counts: bool) -> dict[str, Any]:
    """Bytes a job of a partition that is made here. Counting takes memory and time, too."""
    gc.set_threshold(*GC_THRESHOLD)
    before = _resident()
    if counts:
        tracemalloc.start()
    partition = requested(kind, many) if path is None else restored(path)
    gc.collect()
    assert len(partition.jobs) == many
    if not counts:
        return {"resident": (_resident() - before) // many}
    counted, total = tracemalloc.take_snapshot(), tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    lines = {
        f"{Path(line.traceback[0].filename).name}:{line.traceback[0].lineno}": line.size // many
        for line in counted.statistics("lineno")[:LINES_MAX]
    }
    return {"counted": total // many, "lines": lines}


def _resident() -> int:
    """Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    kinds = sys.argv[2:] or list(KINDS)
    fresh = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with TemporaryDirectory() as directory, fresh:
        for kind in kinds:
            path = Path(directory, kind)
            fresh.submit(write, kind, many, path).result()
            for way, source in (("decided", None), ("restored", path)):
                found = {"memory": kind, "jobs": many, "way": way}
                for counts in (False, True):
                    found |= fresh.submit(held, kind, many, source, counts).result()
                print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main()
