"""How many jobs a second go from an appended request to a row that says they succeeded, and how
soon a job starts: `python -m benchmarks.end_to_end [JOBS] [ROUNDS]`. JSON lines."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import time
from typing import Any

import msgspec

from benchmarks.stack import SETTLE_SECONDS, BenchStack, bench_stack
from ledger.client.producer import Producer

PAYLOAD = {"text": "x" * 170}
LATENCY_JOBS = 200
LATENCY_RATE = 20
SLOTS = 500


async def submit(stack: BenchStack, queue: str, many: int) -> None:
    async with Producer(stack.kafka) as producer:
        requests: list[Any] = [
            {"type": "noop", "queue": queue, "payload": PAYLOAD, "labels": {"user": f"u{n % 50}"}}
            for n in range(many)
        ]
        await producer.submit_many(requests)


async def trickle(stack: BenchStack, queue: str) -> None:
    async with Producer(stack.kafka) as producer:
        for _ in range(LATENCY_JOBS):
            sent = time.time_ns() // 1000  # noqa: TID251 (two processes compare)
            await producer.submit("noop", {"sent": sent}, queue=queue, wait=False)
            await asyncio.sleep(1 / LATENCY_RATE)


def throughput(stack: BenchStack, round_number: int, many: int) -> dict[str, Any]:
    queue = f"drain{round_number}"
    runtime = stack.runtime(queue, SLOTS)
    asyncio.run(submit(stack, queue, 1))
    stack.wait_until_succeeded(queue, 1, seconds=20)
    time.sleep(SETTLE_SECONDS)
    before, began = stack.cpu(), time.perf_counter()
    asyncio.run(submit(stack, queue, many))
    submitted = time.perf_counter() - began
    stack.wait_until_succeeded(queue, many + 1, seconds=300)
    took = time.perf_counter() - began
    time.sleep(SETTLE_SECONDS)
    after = stack.cpu()
    runtime.send_signal(signal.SIGTERM)
    runtime.wait(30)
    stack.runtimes.remove(runtime)
    spent = {
        name: round((getattr(after, name) - getattr(before, name)) / many * 1e6, 1)
        for name in before.__dataclass_fields__
    }
    return {
        "measure": "end_to_end",
        "jobs": many,
        "jobs_per_second": round(many / took),
        "submitted_per_second": round(many / submitted),
        "cpu_us_per_job": spent,
        "cpu_us_per_job_without_broker": round(sum(spent.values()) - spent["kafka"], 1),
        "load": os.getloadavg()[0],
    }


def latency(stack: BenchStack) -> dict[str, Any]:
    queue = "trickle"
    runtime = stack.runtime(queue, 100)
    asyncio.run(submit(stack, queue, 1))
    stack.wait_until_succeeded(queue, 1, seconds=20)
    asyncio.run(trickle(stack, queue))
    stack.wait_until_succeeded(queue, LATENCY_JOBS + 1, seconds=60)
    runtime.send_signal(signal.SIGTERM)
    printed, _ = runtime.communicate(timeout=30)
    stack.runtimes.remove(runtime)
    waited = sorted(int(line) / 1e3 for line in printed.split())
    return {
        "measure": "submit_to_start",
        "jobs_per_second": LATENCY_RATE,
        "p50_ms": round(statistics.median(waited), 1),
        "p99_ms": round(waited[int(len(waited) * 0.99)], 1),
        "max_ms": round(waited[-1], 1),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with bench_stack() as stack:
        stack.worker()
        for number in range(rounds):
            print(msgspec.json.encode(throughput(stack, number, many)).decode(), flush=True)
        print(msgspec.json.encode(latency(stack)).decode(), flush=True)


if __name__ == "__main__":
    main()
