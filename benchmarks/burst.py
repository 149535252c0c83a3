"""How long a burst of requests delays what runs: `python -m benchmarks.burst [--full]`.

While the requests are being decided, results, heartbeats and cancels of other jobs are sent, one
after another; each is awaited until its owner has decided it. JSON lines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.results import Result, run
from benchmarks.stack import BenchStack, bench_stack
from ledger.client.producer import Accepted, Producer
from ledger.domain.commands import CancelJob, Heartbeat, LockJob, SubmitResult
from ledger.domain.ids import Fence, JobId, RuntimeId
from ledger.log.connection import Connection
from ledger.log.replies import Reply
from ledger.log.topics import Topics
from tests.support.ledger import Client

REQUESTS = 20_000
FULL_REQUESTS = 200_000
PROBES = 60
QUEUE = "bench"
"""All in one queue, so that burst and probes meet in one partition."""


async def burst(stack: BenchStack, many: int) -> None:
    async with Producer(stack.kafka) as producer:
        for first in range(0, many, 10_000):
            count = min(10_000, many - first)
            requests: list[Any] = [{"type": "noop", "queue": QUEUE} for _ in range(count)]
            await producer.submit_many(requests)


async def timed(client: Client, command: Any) -> tuple[float, Reply]:
    began = time.perf_counter()
    reply = await client.ask(command)
    if reply.outcome != "accepted":
        raise SystemExit(f"{command} was not accepted: {reply}")
    return time.perf_counter() - began, reply


async def probe(client: Client, job_ids: list[JobId]) -> dict[str, list[float]]:
    waits: dict[str, list[float]] = {"lock": [], "heartbeat": [], "result": [], "cancel": []}
    for ends, cancels in zip(job_ids[::2], job_ids[1::2], strict=True):
        wait, locked = await timed(client, LockJob(ends, RuntimeId("probe")))
        waits["lock"].append(wait)
        assert locked.data is not None
        fence = Fence(msgspec.json.decode(locked.data)["fence"])
        waits["heartbeat"].append((await timed(client, Heartbeat(ends, fence)))[0])
        waits["result"].append((await timed(client, SubmitResult(ends, fence)))[0])
        waits["cancel"].append((await timed(client, CancelJob(cancels)))[0])
    return waits


async def probed(stack: BenchStack, many: int) -> Result:
    connection = Connection(bootstrap=stack.kafka)
    async with (
        Producer(stack.kafka) as producer,
        Client(connection, Topics(), stack.partitions) as client,
    ):
        requests: list[Any] = [{"type": "probe", "queue": QUEUE} for _ in range(2 * PROBES)]
        accepted = await producer.submit_many(requests, await_decision=True)
        job_ids = [one.job_id for one in accepted if isinstance(one, Accepted)]
        sending = asyncio.create_task(burst(stack, many))
        began = time.perf_counter()
        waits = await probe(client, job_ids)
        took = time.perf_counter() - began
        await sending
    worst = {f"{name}_ms": round(max(each) * 1000, 1) for name, each in waits.items()}
    return Result(
        "burst",
        "ms",
        ours=max(worst.values()),
        detail=f"the longest wait, {many:,} requests",
        figures={**worst, "probes_seconds": round(took, 2)},
    )


def measure(full: bool) -> Iterator[Result]:
    with bench_stack() as stack:
        stack.worker()
        yield asyncio.run(probed(stack, FULL_REQUESTS if full else REQUESTS))


if __name__ == "__main__":
    run(measure, __doc__)
