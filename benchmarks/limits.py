"""What limits by key cost: the same load over 200 tenants, without limits and with one each, in
turns: `python -m benchmarks.limits [JOBS] [ROUNDS]`. JSON lines, and the ratio of the medians."""

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

TENANTS = 200
MAX = 4
RUNTIMES = 4
SLOTS = 100
LIMITED: dict[str, Any] = {"limits": [{"key": ["/labels/tenant"], "max": MAX}]}


async def prepare(stack: BenchStack, queue: str, template: dict[str, Any]) -> None:
    async with Producer(stack.kafka, wait_seconds=60.0) as producer:
        await producer.put_template(queue, "noop", template)
        await producer.submit("noop", {}, queue=queue, labels={"tenant": "first"})


async def submit(stack: BenchStack, queue: str, many: int) -> None:
    async with Producer(stack.kafka) as producer:
        requests: list[Any] = [
            {"type": "noop", "queue": queue, "labels": {"tenant": f"t{number % TENANTS}"}}
            for number in range(many)
        ]
        await producer.submit_many(requests)


def jobs_per_second(stack: BenchStack, queue: str, many: int, template: dict[str, Any]) -> float:
    runtimes = [stack.runtime(queue, SLOTS, name=f"{queue}-{n}") for n in range(RUNTIMES)]
    asyncio.run(prepare(stack, queue, template))
    stack.wait_until_succeeded(queue, 1, seconds=20)
    time.sleep(SETTLE_SECONDS)
    began = time.perf_counter()
    asyncio.run(submit(stack, queue, many))
    stack.wait_until_succeeded(queue, many + 1, seconds=300)
    took = time.perf_counter() - began
    for runtime in runtimes:
        runtime.send_signal(signal.SIGTERM)
        runtime.wait(30)
        stack.runtimes.remove(runtime)
    return many / took


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    found: dict[str, list[float]] = {"free": [], "limited": []}
    with bench_stack() as stack:
        stack.worker()
        for number in range(rounds):
            for name, template in (("free", {}), ("limited", LIMITED)):
                rate = jobs_per_second(stack, f"{name}{number}", many, template)
                found[name].append(rate)
                line = {"measure": name, "jobs_per_second": round(rate), "load": os.getloadavg()[0]}
                print(msgspec.json.encode(line).decode(), flush=True)
    ratio = statistics.median(found["limited"]) / statistics.median(found["free"])
    print(msgspec.json.encode({"measure": "limited_to_free", "ratio": round(ratio, 3)}).decode())


if __name__ == "__main__":
    main()
