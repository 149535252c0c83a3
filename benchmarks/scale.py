"""Whether a job costs its workers the same whatever their number: one, two and three in turns, the
same jobs over the same queues: `python -m benchmarks.scale [JOBS] [ROUNDS] [RATE]`. JSON lines; the
last says whether the gate holds: within 10 % of one worker's, by the median of the rounds' ratios.

What is shown is CPU a job, without what the workers take when they have nothing to do (that is a
term of its own in docs/scaling.md): where it stays the same, each further core carries as much as
the first. All jobs are asked for at once, so that turns are as full as under full load; at a
RATE a second that is a fraction of what workers can do, turns of many partitions are small, and
smaller the fewer of them share a fetch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import truediv
from typing import Any

import httpx
import msgspec
import psycopg

from benchmarks.processes import cpu_of
from benchmarks.stack import SETTLE_SECONDS, BenchStack, bench_stack
from ledger.client.producer import Producer
from ledger.embedded.processes import free_ports
from ledger.log.partitions import partition_of

WORKERS = (1, 2, 3)
PARTITIONS = 12
"""An equal part to each worker, whatever their number."""
JOBS_A_SECOND = 100_000
"""More than anything here can do: at once."""
STEPS_A_SECOND = 20
"""Of the producer."""
SLOTS = 400
IDLE_SECONDS = 3.0
GATE = 0.10
SHARED_SECONDS = 180.0
DONE_SECONDS = 120.0
STOP_SECONDS = 60.0
PAYLOAD = {"text": "x" * 170}


def queues_of(partitions: int) -> list[str]:
    """One in each partition."""
    names: dict[int, str] = {}
    number = 0
    while len(names) < partitions:
        name = f"scale{number}"
        names.setdefault(partition_of(name, partitions), name)
        number += 1
    return list(names.values())


def measure(stack: BenchStack, workers: int, jobs: int, rate: int, done: int) -> dict[str, Any]:
    """`done`: jobs that earlier rounds have left in the read models."""
    queues = queues_of(PARTITIONS)
    with _workers(stack, workers) as running, _runtime(stack, queues):
        asyncio.run(_submit(stack, queues, len(queues), rate))
        _until_done(stack, done + len(queues))
        time.sleep(SETTLE_SECONDS)
        idle = _spent(running)
        time.sleep(IDLE_SECONDS)
        before, began = _spent(running), time.perf_counter()
        asyncio.run(_submit(stack, queues, jobs, rate))
        _until_done(stack, done + len(queues) + jobs)
        took = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
        after = _spent(running)
    spent = [now - then for now, then in zip(after, before, strict=True)]
    resting = (sum(before) - sum(idle)) / IDLE_SECONDS
    return {
        "measure": "scale",
        "workers": workers,
        "jobs": jobs,
        "jobs_per_second": round(jobs / took),
        "worker_us_per_job": round((sum(spent) - resting * took) / jobs * 1e6, 1),
        "shares": [round(one / sum(spent), 2) for one in spent],
        "idle_us_per_second": round(resting * 1e6),
        "load": os.getloadavg()[0],
    }


def verdict(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the rounds, each of which is a line for each number of workers."""
    costs = {
        workers: [line["worker_us_per_job"] for line in lines if line["workers"] == workers]
        for workers in WORKERS
    }
    to_one = {
        workers: round(statistics.median(map(truediv, its, costs[1])), 3)
        for workers, its in costs.items()
    }
    return {
        "measure": "scale",
        "worker_us_per_job": {n: statistics.median(its) for n, its in costs.items()},
        "to_one": to_one,
        "gate": GATE,
        "passed": all(abs(ratio - 1) <= GATE for ratio in to_one.values()),
    }


@contextmanager
def _workers(stack: BenchStack, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Each owns its part of the partitions."""
    ports = free_ports(count)
    running = [_worker(stack, port) for port in ports]
    try:
        _until_shared(ports, PARTITIONS // count)
        yield running
    finally:
        _stop(running)


@contextmanager
def _runtime(stack: BenchStack, queues: Sequence[str]) -> Iterator[None]:
    runtime = stack.runtime(",".join(queues), slots=SLOTS)
    try:
        yield
    finally:
        _stop([runtime])


def _worker(stack: BenchStack, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cli.main", "worker", "--health-port", str(port)]
    with (stack.logs / f"scale-{port}.log").open("wb") as log:
        process = subprocess.Popen(command, env=stack.environment, stdout=log, stderr=log)
    stack.workers.append(process)  # It ends with the stack, whatever happens here.
    return process


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_shared(ports: Sequence[int], partitions: int) -> None:
    deadline = time.monotonic() + SHARED_SECONDS
    while (owned := [_owned(port) for port in ports]) != [partitions] * len(ports):
        if time.monotonic() > deadline:
            raise SystemExit(f"after {SHARED_SECONDS:.0f} s the workers own {owned} partitions")
        time.sleep(0.2)


def _owned(port: int) -> int:
    try:
        report = httpx.get(f"http://127.0.0.1:{port}/healthz").json()
    except httpx.TransportError:
        return 0  # It is not there yet.
    return sum(one["owner"] for one in report["owner"]["partitions"].values())


def _spent(processes: Sequence[subprocess.Popen[bytes]]) -> list[float]:
    return [cpu_of([process.pid]) for process in processes]


async def _submit(stack: BenchStack, queues: Sequence[str], jobs: int, rate: int) -> None:
    """Evenly over the queues, at the rate."""
    requests: list[Any] = [
        {"type": "noop", "queue": queues[number % len(queues)], "payload": PAYLOAD}
        for number in range(jobs)
    ]
    step = max(1, rate // STEPS_A_SECOND)
    async with Producer(stack.kafka) as producer:
        began = time.perf_counter()
        for number, first in enumerate(range(0, jobs, step)):
            due = began + number * step / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await producer.submit_many(requests[first : first + step])


def _until_done(stack: BenchStack, jobs: int) -> None:
    deadline = time.monotonic() + DONE_SECONDS
    with psycopg.connect(stack.postgres, autocommit=True) as connection:
        while (done := _done(connection)) < jobs:
            if time.monotonic() > deadline:
                raise SystemExit(f"after {DONE_SECONDS:.0f} s {done} of {jobs} jobs have succeeded")
            time.sleep(0.05)


def _done(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute("select coalesce(sum(succeeded), 0)::bigint from ledger.queues")
    return (row.fetchone() or (0,))[0]


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    rate = int(sys.argv[3]) if len(sys.argv) > 3 else JOBS_A_SECOND
    lines: list[dict[str, Any]] = []
    done = 0
    with bench_stack(partitions=PARTITIONS) as stack:
        for number in range(rounds):
            # In either direction: a machine may become slower, or faster, over the rounds.
            for workers in WORKERS[:: -1 if number % 2 else 1]:
                lines.append(measure(stack, workers, jobs, rate, done))
                done += PARTITIONS + jobs
                print(msgspec.json.encode(lines[-1]).decode(), flush=True)
    print(msgspec.json.encode(verdict(lines)).decode())


if __name__ == "__main__":
    main()
