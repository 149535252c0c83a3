"""What limits by key cost: the same load over 200 tenants, without limits and with one each, in
turns: `python -m benchmarks.limits [--full]`. JSON lines."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.load import request, submit
from benchmarks.results import Result, progress, run
from benchmarks.stack import SETTLE_SECONDS, BenchStack, bench_stack
from ledger.client.producer import Producer

JOBS, ROUNDS = 10_000, 3
TENANTS = 200
MAX = 4
RUNTIMES = 4
SLOTS = 100
LIMITED: dict[str, Any] = {"limits": [{"key": ["/labels/tenant"], "max": MAX}]}


def of_tenant(queue: str, number: int) -> dict[str, Any]:
    return request(queue, number, payload={}, labels={"tenant": f"t{number % TENANTS}"})


async def prepare(stack: BenchStack, queue: str, template: dict[str, Any]) -> None:
    async with Producer(stack.kafka, wait_seconds=60.0) as producer:
        await producer.put_template(queue, "noop", template)
        await producer.submit("noop", {}, queue=queue, labels={"tenant": "first"})


def jobs_per_second(stack: BenchStack, queue: str, many: int, template: dict[str, Any]) -> float:
    runtimes = [stack.runtime(queue, slots=SLOTS, name=f"{queue}-{n}") for n in range(RUNTIMES)]
    asyncio.run(prepare(stack, queue, template))
    stack.wait_until("succeeded", 1, queue, seconds=20)
    time.sleep(SETTLE_SECONDS)
    began = time.perf_counter()
    asyncio.run(submit(stack, [queue], many, of_tenant))
    stack.wait_until("succeeded", many + 1, queue, seconds=300)
    took = time.perf_counter() - began
    for runtime in runtimes:
        stack.end(runtime)
    return many / took


def measure(full: bool) -> Iterator[Result]:
    many = JOBS * 3 if full else JOBS
    found: dict[str, list[float]] = {"free": [], "limited": []}
    with bench_stack() as stack:
        stack.worker()
        for number in range(ROUNDS):
            for name, template in (("free", {}), ("limited", LIMITED)):
                rate = jobs_per_second(stack, f"{name}{number}", many, template)
                found[name].append(rate)
                progress(f"{name}: {rate:.0f} jobs/s")
    free, limited = (statistics.median(found[name]) for name in ("free", "limited"))
    yield Result(
        "limits",
        "x",
        ours=limited / free,
        ours_as_beside=limited,
        beside=free,
        beside_is="jobs/s, without",
        detail=f"{TENANTS} tenants",
    )


if __name__ == "__main__":
    run(measure, __doc__)
