"""How soon a job is leased again after the owner of many open jobs was killed with -9:
`python -m benchmarks.recovery [--full]`. JSON lines.

A second worker stands by; all jobs lie in one partition; snapshots are on, and the last events are
in none. Counted from the end of the group's session, which the dead owner can no longer prolong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from benchmarks.load import request, submit
from benchmarks.results import Result, progress, run
from benchmarks.stack import BenchStack, bench_stack
from ledger.client.producer import Accepted, Producer
from ledger.domain.commands import LockJob
from ledger.domain.ids import JobId, RuntimeId
from ledger.log.connection import Bounds, Connection
from ledger.log.topics import Topics
from tests.support.ledger import Client

JOBS = 100_000
FULL_JOBS = 1_000_000
TAIL = 5_000
"""Jobs asked for after the last snapshot."""
SNAPSHOT_SECONDS = 300
TRIES = 10
"""The client waits half a minute for an answer."""
QUEUE = "held"


async def asked(stack: BenchStack) -> list[JobId]:
    """Jobs to be leased later."""
    async with Producer(stack.kafka, wait_seconds=60.0) as producer:
        outcomes = await producer.submit_many(
            [request(QUEUE, number) for number in range(TRIES)], await_decision=True
        )
    return [one.job_id for one in outcomes if isinstance(one, Accepted)]


async def leased(stack: BenchStack, job_ids: list[JobId]) -> None:
    """Returns when an owner has leased one of them."""
    connection = Connection(bootstrap=stack.kafka)
    async with Client(connection, Topics(), stack.partitions) as client:
        for job_id in job_ids:
            try:
                reply = await client.ask(LockJob(job_id, RuntimeId("probe")))
            except TimeoutError:
                continue
            if reply.outcome != "accepted":
                raise SystemExit(f"the lease was refused: {reply}")
            return
    raise SystemExit("nobody answered")


def wait_for_snapshot(stack: BenchStack, events: int) -> None:
    """One that holds nearly all of them."""
    deadline = time.monotonic() + SNAPSHOT_SECONDS
    while time.monotonic() < deadline:
        snapshots = stack.logs.rglob("snapshots/**/*.zst")
        if any(int(path.name.partition("-")[0]) > 0.85 * events for path in snapshots):
            return
        time.sleep(0.1)
    raise SystemExit(f"no snapshot within {SNAPSHOT_SECONDS} s")


def measure(full: bool) -> Iterator[Result]:
    jobs = FULL_JOBS if full else JOBS
    with bench_stack(partitions=1, snapshots=True, open_bytes_max=str(1 << 36)) as stack:
        owner = stack.worker()
        asyncio.run(submit(stack, [QUEUE], jobs))
        stack.wait_until("pending", jobs, QUEUE, seconds=1_800)
        progress(f"{jobs:,} jobs are open")
        wait_for_snapshot(stack, jobs)
        stack.worker()
        asyncio.run(submit(stack, [QUEUE], TAIL))
        job_ids = asyncio.run(asked(stack))
        stack.wait_until("pending", jobs + TAIL + TRIES, QUEUE, seconds=60)
        owner.kill()
        killed = time.perf_counter()
        owner.wait()
        asyncio.run(leased(stack, job_ids))
        took = time.perf_counter() - killed
    session = Bounds().session_seconds
    yield Result(
        "recovery",
        "s",
        ours=max(0.0, took - session),
        detail=f"{jobs:,} open jobs",
        is_reduced=not full,
        figures={"from_the_kill_s": took, "session_s": session},
    )


if __name__ == "__main__":
    run(measure, __doc__)
