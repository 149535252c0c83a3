"""Jobs for a measurement: how they are asked for, and what it took until they were done."""

from __future__ import annotations

import asyncio
import base64
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.stack import SETTLE_SECONDS, BenchStack
from ledger.client.producer import Producer

PAYLOAD = {"text": "x" * 189}
"""200 bytes of JSON."""
CHUNK = 500
"""Requests a step and queue, as of the peers."""
TICK_SECONDS = 0.01
WARM_SECONDS = 180
"""For the first job of each queue: its inbox is made, its runtimes join."""
WARM_JOBS = 30_000
DRAIN_SECONDS = 300
SLOTS = 500


class Drained(Struct, frozen=True):
    jobs_per_second: float
    submitted_per_second: float
    cpu_us: Mapping[str, float]
    """A job, by who spent it."""

    @property
    def with_broker(self) -> float:
        return sum(self.cpu_us.values())

    @property
    def without_broker(self) -> float:
        return self.with_broker - self.cpu_us["kafka"]


def request(queue: str, number: int, **fields: Any) -> dict[str, Any]:
    return {
        "type": "noop",
        "queue": queue,
        "payload": PAYLOAD,
        "labels": {"user": f"u{number % 50}"},
        **fields,
    }


def random_payload(random: Random) -> dict[str, str]:
    """200 bytes that no compression makes much smaller."""
    return {"text": base64.b64encode(random.randbytes(144)).decode()[:189]}


async def submit(
    stack: BenchStack,
    queues: Sequence[str],
    many: int,
    make: Callable[[str, int], dict[str, Any]] = request,
) -> None:
    """In the log on return. Every queue gets its share."""
    async with Producer(stack.kafka) as producer:
        for first in range(0, many, step := CHUNK * len(queues)):
            numbers = range(first, min(first + step, many))
            await producer.submit_many(make(queues[n % len(queues)], n) for n in numbers)


async def trickle(stack: BenchStack, queue: str, rate: float, seconds: float) -> int:
    """So many a second, whatever becomes of them. How many that were."""
    sent = 0
    loop = asyncio.get_running_loop()
    async with Producer(stack.kafka) as producer, asyncio.TaskGroup() as sending:
        began = loop.time()
        while (passed := loop.time() - began) < seconds:
            due = int(passed * rate) - sent
            if due:
                now = time.time_ns() // 1000  # noqa: TID251 (two processes compare)
                requests = [request(queue, sent + n, payload={"sent": now}) for n in range(due)]
                sending.create_task(producer.submit_many(requests))
                sent += due
            await asyncio.sleep(TICK_SECONDS)
    return sent


def drained(
    stack: BenchStack,
    queues: Sequence[str],
    many: int,
    make: Callable[[str, int], dict[str, Any]] = request,
) -> Drained:
    """`many` jobs that do nothing, from the first append until the read model says they succeeded.
    The queues are new."""
    runtimes = [
        stack.runtime(*share, slots=SLOTS, name=f"bench-{share[0]}") for share in _shares(queues)
    ]
    warm = len(queues)
    asyncio.run(submit(stack, queues, warm, make))
    stack.wait_until("succeeded", warm, *queues, seconds=WARM_SECONDS)
    time.sleep(SETTLE_SECONDS)
    before, began = stack.cpu(), time.perf_counter()
    asyncio.run(submit(stack, queues, many, make))
    submitted = time.perf_counter() - began
    # Who looks on afterwards is nobody's cost, as where peers are measured.
    producer = stack.cpu().producer
    stack.wait_until("succeeded", warm + many, *queues, seconds=DRAIN_SECONDS)
    took = time.perf_counter() - began
    time.sleep(SETTLE_SECONDS)
    after = replace(stack.cpu(), producer=producer)
    if (done := stack.count("succeeded", *queues)) != warm + many:
        raise SystemExit(f"{done} jobs have succeeded, of {warm + many} that were asked")
    for runtime in runtimes:
        stack.end(runtime)
    spent = {
        name: (getattr(after, name) - getattr(before, name)) / many * 1e6
        for name in before.__dataclass_fields__
    }
    return Drained(many / took, many / submitted, spent)


def warm(stack: BenchStack, jobs: int) -> None:
    """Before rounds of so many: the broker's machine code is made meanwhile. Beside what is
    measured that would take a fifth of the time, and peers on Postgres have no such start."""
    drained(stack, ["warm"], min(2 * jobs, WARM_JOBS))


def start_delays(stack: BenchStack, queue: str, rate: float, seconds: float) -> list[float]:
    """Milliseconds from asking for a job to its start, in order of length."""
    runtime = stack.runtime(queue, slots=SLOTS)
    asyncio.run(submit(stack, [queue], 1))
    stack.wait_until("succeeded", 1, queue, seconds=WARM_SECONDS)
    sent = asyncio.run(trickle(stack, queue, rate, seconds))
    stack.wait_until("succeeded", 1 + sent, queue, seconds=DRAIN_SECONDS)
    return sorted(int(line) / 1e3 for line in stack.end(runtime).split())


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median_of(runs: Sequence[Drained]) -> dict[str, float]:
    """For the figures of a result."""
    names = runs[0].cpu_us
    return {
        "jobs_per_second": round(statistics.median(run.jobs_per_second for run in runs)),
        "submitted_per_second": round(statistics.median(run.submitted_per_second for run in runs)),
        **{
            f"{name}_us": round(statistics.median(run.cpu_us[name] for run in runs), 1)
            for name in names
        },
    }


def _shares(queues: Sequence[str]) -> list[Sequence[str]]:
    """As many queues as one runtime serves."""
    return [queues[first : first + 32] for first in range(0, len(queues), 32)]
