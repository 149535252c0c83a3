"""The same of ours: a worker and a runtime of their own for each measurement, as a peer has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from benchmarks.peers.running import (
    DRAIN_SECONDS,
    READY_SECONDS,
    SETTLE_SECONDS,
    STOP_SECONDS,
    PeerFailed,
    PeerRun,
)
from benchmarks.processes import cpu_of
from benchmarks.stack import BenchStack
from ledger.client.producer import Producer

PAYLOAD = {"text": "x" * 170}
SLOTS = 500
POLL_SECONDS = 0.05
DONE = "select succeeded from ledger.queues where name = %s"
"""The read model's own count: what a dashboard would show."""


def drain(stack: BenchStack, queue: str, jobs: int) -> PeerRun:
    """See `benchmarks.peers.drain`; `queue` was never used."""
    with _serving(stack, queue) as (worker, runtime):
        before, began = _spent(stack, worker, runtime), time.perf_counter()
        asyncio.run(_submit(stack, queue, jobs))
        _until_done(stack, queue, jobs + 1)
        took = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
        after = _spent(stack, worker, runtime)
    parts = {name: round((after[name] - before[name]) / jobs * 1e6, 1) for name in after}
    return PeerRun(jobs / took, sum(parts.values()), parts)


def latency(stack: BenchStack, queue: str, rate: float, seconds: float) -> tuple[float, float]:
    with _serving(stack, queue) as (_, runtime):
        asyncio.run(_trickle(stack, queue, rate, seconds))
        _until_done(stack, queue, int(rate * seconds) + 1)
        runtime.send_signal(signal.SIGTERM)
        printed, _ = runtime.communicate(timeout=STOP_SECONDS)
    waited = sorted(int(line) / 1e3 for line in printed.split())
    return waited[len(waited) // 2], waited[int(len(waited) * 0.99)]


@contextmanager
def _serving(
    stack: BenchStack, queue: str
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """Both have done a job: what is only done once is done."""
    worker, runtime = stack.worker(), stack.runtime(queue, slots=SLOTS, name=queue)
    try:
        asyncio.run(_submit(stack, queue, 1))
        _until_done(stack, queue, 1, seconds=READY_SECONDS)
        time.sleep(SETTLE_SECONDS)
        yield worker, runtime
    finally:
        for process, all_of_them in ((runtime, stack.runtimes), (worker, stack.workers)):
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_SECONDS)
            all_of_them.remove(process)


def _spent(
    stack: BenchStack, worker: subprocess.Popen[bytes], runtime: subprocess.Popen[bytes]
) -> dict[str, float]:
    own = os.times()
    return {
        "submit": own.user + own.system,
        "worker": cpu_of([worker.pid]),
        "runtime": cpu_of([runtime.pid]),
        "postgres": cpu_of([stack.postgres_pid]),
        "broker": cpu_of(stack.kafka_pids),
    }


async def _submit(stack: BenchStack, queue: str, jobs: int) -> None:
    requests: list[Any] = [{"type": "noop", "queue": queue, "payload": PAYLOAD}] * jobs
    async with Producer(stack.kafka) as producer:
        await producer.submit_many(requests)


async def _trickle(stack: BenchStack, queue: str, rate: float, seconds: float) -> None:
    async with Producer(stack.kafka) as producer:
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            sent = time.time_ns() // 1000  # noqa: TID251 (two processes compare)
            await producer.submit("noop", {"sent": sent}, queue=queue, wait=False)


def _until_done(
    stack: BenchStack, queue: str, jobs: int, *, seconds: float = DRAIN_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    with psycopg.connect(stack.postgres, autocommit=True) as connection:
        while True:
            row = connection.execute(DONE, (queue,)).fetchone()
            if row and row[0] >= jobs:
                break
            if time.monotonic() > deadline:
                raise PeerFailed(f"ours: {row[0] if row else 0} of {jobs} jobs have succeeded")
            time.sleep(POLL_SECONDS)
    if row[0] != jobs:
        raise PeerFailed(f"ours: {row[0]} jobs have succeeded, of {jobs} that were asked")
