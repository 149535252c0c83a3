"""Limits by key over many runtimes in several processes, one of which is killed again and again."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest

from ledger.client.producer import Producer
from ledger.domain.events import JobRequested
from tests.support.processes import Cluster
from tests.support.verdicts import most_at_once, read_history

QUEUE = "limited"
JOBS = 4_000
TENANTS = 100
MAX = 2
LEASE_SECONDS = 2
CROWDS = {"a": 6, "b": 5, "c": 5}
"""Runtimes by process: sixteen in three."""


def requests(many: int, first: int = 0) -> list[Any]:
    return [
        {
            "type": "work",
            "queue": QUEUE,
            "payload": {"seconds": 0.002},
            "labels": {"tenant": f"t{number % TENANTS}"},
            "lease_seconds": LEASE_SECONDS,
            "retry": {"max_attempts": 20, "backoff_seconds": [0.1]},
        }
        for number in range(first, first + many)
    ]


TEMPLATE: dict[str, Any] = {
    "limits": [{"key": ["/labels/tenant"], "max": MAX}],
    "overridable": ["labels", "lease_seconds", "retry"],
}


def succeeded(cluster: Cluster) -> int:
    with psycopg.connect(cluster.dsn) as connection:
        row = connection.execute(
            "select succeeded from ledger.queues where name = %s", (QUEUE,)
        ).fetchone()
    return int(row[0]) if row else 0


def start(cluster: Cluster, name: str) -> None:
    words = ("-m", "tests.support.runtime_crowd", name, str(CROWDS[name]), QUEUE, "20")
    cluster.start(name, *words)


@pytest.mark.slow
@pytest.mark.rule("S4.2", "S4.4")
async def test_no_limit_is_passed_and_no_slot_lost_whoever_is_killed(cluster: Cluster) -> None:
    chance = random.Random(7)
    cluster.worker("worker-1")
    cluster.worker("worker-2")
    for name in CROWDS:
        start(cluster, name)
    async with Producer(
        cluster.connection, partitions=cluster.partitions, prefix=cluster.prefix, wait_seconds=60.0
    ) as producer:
        await producer.put_template(QUEUE, "work", TEMPLATE)
        await producer.submit_many(requests(JOBS))
        for _ in range(6):
            await asyncio.sleep(chance.uniform(0.5, 1.5))
            name = chance.choice([*CROWDS, "worker-1", "worker-2"])
            cluster.kill(name)
            if name.startswith("worker"):
                cluster.worker(name)
            else:
                start(cluster, name)
        await cluster.until(
            lambda: succeeded(cluster) == JOBS, seconds=150, what=f"{JOBS} jobs have succeeded"
        )
        # No slot was lost: every tenant has its two again.
        await producer.submit_many(requests(MAX * TENANTS, first=JOBS))
        every = JOBS + MAX * TENANTS
        await cluster.until(
            lambda: succeeded(cluster) == every, seconds=30, what=f"{every} jobs have succeeded"
        )
    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    tenants = {event.job_id: event.labels["tenant"] for event in history.all(JobRequested)}
    most = most_at_once(history, tenants.get)
    assert len(most) == TENANTS
    assert set(most.values()) == {MAX}, "reached, and never passed"
    assert set(history.endings().values()) == {1}
