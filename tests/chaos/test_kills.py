"""kill -9 and SIGSTOP of every role, at random moments, under load. The seed is in the output."""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Any

import psycopg
import pytest

from ledger.client.producer import Producer
from projections.log_source import log_source
from projections.rebuild import verify
from tests.support.processes import Cluster
from tests.support.verdicts import read_history

QUEUES = ("red", "green", "blue")
JOBS = 2_500
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
    async with producer_of(cluster) as producer:
        for first in range(0, JOBS, 250):
            requests: Any = [request(n, chance) for n in range(first, first + 250)]
            await producer.submit_many(requests)
            await asyncio.sleep(0.2)  # Spread over the time in which things die.


def producer_of(cluster: Cluster) -> Producer:
    return Producer(
        cluster.connection,
        partitions=cluster.partitions,
        prefix=cluster.prefix,
        wait_seconds=60.0,
    )


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
        submit_all(cluster, chance), kill_at_random(cluster, chance, times=8)
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
    source = log_source(cluster.connection, cluster.topics)
    assert await verify(cluster.dsn, topic=cluster.topics.events, source=source) == []


async def test_a_frozen_owner_that_wakes_is_fenced_and_comes_back_as_a_newcomer(
    cluster: Cluster,
) -> None:
    many = 2_000
    cluster.worker("first")
    async with producer_of(cluster) as producer:
        await producer.submit("work", queue=QUEUES[0])  # It is there, and at work.
        chance = random.Random(1)
        requests: Any = [request(n, chance) for n in range(many)]
        await producer.submit_many(requests)
        cluster.freeze("first")  # In the middle of them.
        frozen_at = asyncio.get_running_loop().time()
        cluster.worker("second")
        await producer.submit("work", queue=QUEUES[0])
        passed = asyncio.get_running_loop().time() - frozen_at
        await asyncio.sleep(max(0.0, 3 * LEASE_SECONDS - passed))
        cluster.thaw("first")
        await cluster.until(
            lambda: bool(cluster.logged("owner.fenced")), seconds=60, what="it says it was fenced"
        )
        await producer.submit("work", queue=QUEUES[0])
    await cluster.until(
        lambda: any(
            '"partitions": []' not in line for line in cluster.logged("owner.assigned")[2:]
        ),
        seconds=60,
        what="the partitions are shared out anew",
    )
    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    assert len(history.jobs()) == many + 3
    assert set(history.outcomes().values()) == {1}


async def test_two_owners_of_one_partition_do_not_duel_and_nothing_is_done_twice(
    cluster: Cluster,
) -> None:
    many = 400
    cluster.worker("worker")
    async with producer_of(cluster) as producer:
        await producer.submit("work", queue=QUEUES[0])
        cluster.lone_owner("rival")
        chance = random.Random(2)
        for n in range(many):
            await producer.submit(**request(n, chance))
            await asyncio.sleep(0.02)  # Long enough for a duel to show.
    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    assert len(history.jobs()) == many + 1
    assert set(history.outcomes().values()) == {1}
    fenced = len(cluster.logged("owner.fenced"))
    assert 1 <= fenced <= 10 * cluster.partitions, "pauses grow: they do not fight for ever"
