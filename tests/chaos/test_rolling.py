"""Workers are replaced one after the other under a steady stream of requests: no partition waits
for longer than a hand-over takes. The figures are in the output."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from cli.local import answers
from ledger.client.producer import Producer
from ledger.domain.ids import QueueName
from ledger.embedded.processes import free_ports
from ledger.log.connection import Bounds
from ledger.log.partitions import partition_of
from projections.log_source import log_source
from projections.rebuild import verify
from tests.chaos.test_kills import ended, producer_of
from tests.support.pauses import pauses_of
from tests.support.processes import Cluster
from tests.support.verdicts import read_history

QUEUES = tuple(f"q{number}" for number in range(12))
A_SECOND = 50
PAUSE_SECONDS_MAX = 5.0
"""Generous, for slow machines; yet whoever waits for a session to end waits for longer."""
START_SECONDS = 60.0
STOP_SECONDS = 20.0


async def start(cluster: Cluster, name: str) -> None:
    """As docs/operations.md says: start it, and wait until it is ready."""
    [port] = free_ports(1)
    cluster.worker(name, "--health-port", str(port))
    url = f"http://127.0.0.1:{port}/readyz"
    await cluster.until(lambda: answers(url), seconds=START_SECONDS, what=f"{name} is ready")


async def stop(cluster: Cluster, name: str) -> None:
    """SIGTERM; an exit code other than 0 fails the test."""
    child = cluster.children[name]
    child.send(signal.SIGTERM)
    await asyncio.to_thread(child.wait, name=name, seconds=STOP_SECONDS)


async def submit_steadily(producer: Producer, enough: asyncio.Event) -> int:
    """A_SECOND each second. How many there were."""
    loop = asyncio.get_running_loop()
    began, count = loop.time(), 0
    while not enough.is_set():
        due = int((loop.time() - began) * A_SECOND)
        requests: list[Any] = [
            {"type": "work", "queue": QUEUES[n % len(QUEUES)], "payload": {"seconds": 0.0}}
            for n in range(count, due)
        ]
        await producer.submit_many(requests)
        count = due
        await asyncio.sleep(1 / A_SECOND)
    return count


def assigned(cluster: Cluster, name: str) -> list[set[int]]:
    """What the group gave a worker, one set after the other."""
    return [set(line["partitions"]) for line in told(cluster, name, "owner.assigned")]


def told(cluster: Cluster, name: str, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in cluster.children[name].output.splitlines())
    return [line for line in lines if line["event"] == event]


@pytest.mark.slow
async def test_a_rolling_restart_pauses_no_partition_for_longer_than_the_hand_over(
    cluster: Cluster,
) -> None:
    numbers = range(cluster.partitions)
    assert {partition_of(QueueName(queue), cluster.partitions) for queue in QUEUES} == {*numbers}
    assert Bounds().session_seconds > PAUSE_SECONDS_MAX
    for name in ("worker-1", "worker-2"):
        await start(cluster, name)
    for name in ("runtime-1", "runtime-2"):
        cluster.runtime(name, ",".join(QUEUES))
    enough = asyncio.Event()
    async with producer_of(cluster) as producer:
        stream = asyncio.create_task(submit_steadily(producer, enough))
        await cluster.until(lambda: ended(cluster) > A_SECOND, seconds=60, what="jobs run")
        for old, new in (("worker-1", "worker-3"), ("worker-2", "worker-4")):
            await start(cluster, new)
            await stop(cluster, old)
        before = ended(cluster)
        await cluster.until(
            lambda: ended(cluster) > before + A_SECOND, seconds=60, what="jobs run on"
        )
        enough.set()
        many = await stream
    await cluster.until(lambda: ended(cluster) >= many, seconds=60, what=f"{many} jobs have ended")

    pauses = [await pauses_of(cluster.connection, cluster.topics, number) for number in numbers]
    for number, found in enumerate(pauses):
        print(
            f"partition {number}: {len(found.waits)} requests, the longest wait for a decision"
            f" {found.longest:.3f} s, usual {found.usual:.3f} s, {len(found.take_overs)} take-overs"
        )
    assert sum(len(found.waits) for found in pauses) == many
    assert max(found.longest for found in pauses) < PAUSE_SECONDS_MAX
    assert cluster.logged("owner.fenced") == []
    assert cluster.logged("owner.term_ended") == []

    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    assert len(history.jobs()) == many
    assert set(history.endings()) == history.jobs()
    assert set(history.endings().values()) == {1}
    assert set(history.outcomes().values()) == {1}
    source = log_source(cluster.connection, cluster.topics)
    assert await verify(cluster.dsn, topic=cluster.topics.events, source=source) == []

    kept = 0
    for name in ("worker-1", "worker-2", "worker-3", "worker-4"):
        shares = [set(), *assigned(cluster, name)]
        gained = Counter(number for a, b in pairwise(shares) for number in b - a)
        taken = Counter(line["partition"] for line in told(cluster, name, "owner.took_over"))
        assert taken <= gained, f"{name} takes over only what it did not have"
        kept += sum(len(a & b) for a, b in pairwise(shares))
    assert kept, "and some of them kept what they had"
