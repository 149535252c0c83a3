"""What a read costs over HTTP: `python -m benchmarks.queries [--full]`. JSON lines.

One job, a page of fifty, a runtime's look at what waits; one after another, over one connection.
CPU of the api and of Postgres.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from benchmarks.load import drained, percentile, request, submit
from benchmarks.results import Result, progress, run
from benchmarks.stack import BenchStack, bench_stack

JOBS = 5_000
WAITING = 1_000
REQUESTS = 400
Ask = Callable[[httpx.Client], httpx.Response]


def asks(client: httpx.Client) -> dict[str, Ask]:
    [job] = client.get("/v1/jobs", params={"limit": 1}).raise_for_status().json()["items"]
    path = f"/v1/jobs/{job['id']}"
    wanted = {"queues": ["waiting"], "types": ["waits"], "limit": 10}
    return {
        "get_job": lambda its: its.get(path),
        "list_jobs": lambda its: its.get("/v1/jobs", params={"queue": "done", "limit": 50}),
        "poll": lambda its: its.post("/v1/runtimes/r1/poll", json=wanted),
    }


def cost(stack: BenchStack, client: httpx.Client, measure: str, ask: Ask, many: int) -> Result:
    for _ in range(20):
        ask(client).raise_for_status()
    waits = []
    before = stack.cpu()
    for _ in range(many):
        began = time.perf_counter()
        ask(client).raise_for_status()
        waits.append((time.perf_counter() - began) * 1e3)
    after = stack.cpu()
    waits.sort()
    api, postgres = after.apis - before.apis, after.postgres - before.postgres
    progress(f"{measure}: {statistics.median(waits):.1f} ms")
    return Result(
        measure,
        "us",
        ours=(api + postgres) / many * 1e6,
        detail="CPU of a request",
        figures={
            "api_us": round(api / many * 1e6),
            "postgres_us": round(postgres / many * 1e6),
            "p50_ms": round(statistics.median(waits), 2),
            "p99_ms": round(percentile(waits, 0.99), 2),
        },
    )


def waiting(queue: str, number: int) -> dict[str, Any]:
    return request(queue, number, type="waits")


def measure(full: bool) -> Iterator[Result]:
    times = 10 if full else 1
    with bench_stack() as stack:
        stack.worker()
        drained(stack, ["done"], JOBS * times)
        asyncio.run(submit(stack, ["waiting"], WAITING * times, waiting))
        stack.wait_until("pending", WAITING * times, "waiting", seconds=60)
        with httpx.Client(base_url=stack.api(), trust_env=False) as client:
            for name, ask in asks(client).items():
                yield cost(stack, client, name, ask, REQUESTS * times)


if __name__ == "__main__":
    run(measure, __doc__)
