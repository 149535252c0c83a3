"""kill -9 and SIGSTOP of every role, at random moments, under load. The seed is in the output."""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Any

import psycopg
import pytest

from ledger.client.producer import Producer
from tests.support.processes import Cluster
from tests.support.verdicts import read_history

QUEUES = ("red", "green", "blue")
JOBS = 5_000
LEASE_SECONDS = 2


def request(number: int, chance: random.Random, **fields: Any) -> dict[str, Any]:
    kind = chance.choices(["work", "flaky", "hopeless"], [90, 8, 2])[0]
    return {
        "type": kind,
        "queue": QUEUES[number % len(QUEUES)],
        "payload": {"seconds": chance.choice([0.0, 0.0, 0.05])},
        "lease_seconds": LEASE_SECONDS,
        "retry": {"max_attempts": 20, "backoff_seconds": [0.1]},
        "idempotency_key": f"job-{number}",
        **fields,
    }


async def submit_all(cluster: Cluster, chance: random.Random) -> None:
    """As a careful producer does: what is not acknowledged is sent again under the same key."""
    async with Producer(
        cluster.connection, partitions=cluster.partitions, prefix=cluster.prefix
    ) as producer:
        for first in range(0, JOBS, 250):
            requests: Any = [request(n, chance) for n in range(first, first + 250)]
            await producer.submit_many(requests)
            await asyncio.sleep(0.2)  # Spread over the time in which things die.


def ended(cluster: Cluster) -> int:
    with psycopg.connect(cluster.dsn) as connection:
        row = connection.execute(
            "select count(*) from ledger.jobs where status in"
            " ('succeeded', 'failed', 'cancelled', 'expired')"
        ).fetchone()
    return int(row[0]) if row else 0


async def kill_at_random(cluster: Cluster, chance: random.Random, times: int) -> list[str]:
    killed = []
    for _ in range(times):
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        name = chance.choice(["worker-1", "worker-2", "runtime-1", "runtime-2", "api"])
        cluster.kill(name)
        killed.append(name)
        if name == "api":
            cluster.api()
        elif name.startswith("worker"):
            cluster.worker(name)
        else:
            cluster.runtime(name, ",".join(QUEUES))
    return killed


@pytest.mark.slow
async def test_whoever_is_killed_every_job_ends_exactly_once(cluster: Cluster) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for name in ("worker-1", "worker-2"):
        cluster.worker(name)
    for name in ("runtime-1", "runtime-2"):
        cluster.runtime(name, ",".join(QUEUES))
    cluster.api()
    _, killed = await asyncio.gather(
        submit_all(cluster, chance), kill_at_random(cluster, chance, times=12)
    )
    await cluster.until(
        lambda: ended(cluster) >= JOBS, seconds=150, what=f"{JOBS} jobs have ended; {killed}"
    )
    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    assert len(history.jobs()) == JOBS
    endings = history.endings()
    assert set(endings) == history.jobs()
    assert set(endings.values()) == {1}
    assert set(history.outcomes().values()) == {1}


async def test_a_frozen_owner_that_wakes_is_fenced_and_comes_back_as_a_newcomer(
    cluster: Cluster,
) -> None:
    cluster.worker("first")
    async with Producer(
        cluster.connection,
        partitions=cluster.partitions,
        prefix=cluster.prefix,
        wait_seconds=60.0,
    ) as producer:
        chance = random.Random(1)
        for n in range(20):
            await producer.submit(**request(n, chance))
        cluster.freeze("first")
        frozen = asyncio.get_running_loop().time()
        cluster.worker("second")
        for n in range(20, 40):
            await producer.submit(**request(n, chance))
        await asyncio.sleep(
            max(0.0, frozen + 3 * LEASE_SECONDS - asyncio.get_running_loop().time())
        )
        cluster.thaw("first")
        for n in range(40, 60):
            await producer.submit(**request(n, chance))
    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    assert len(history.jobs()) == 60
    assert set(history.outcomes().values()) == {1}
