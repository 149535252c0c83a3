"""Everything is killed at once with many jobs open, and started again."""

from __future__ import annotations

import random
from typing import Any

from projections.log_source import log_source
from projections.rebuild import verify
from tests.chaos.test_kills import ended, producer_of, request
from tests.support.processes import Cluster
from tests.support.verdicts import read_history

OPEN = 3_000
DONE = 200


async def test_a_restart_of_everything_goes_on_where_it_was(cluster: Cluster) -> None:
    chance = random.Random(3)
    cluster.worker("worker")
    cluster.api()
    cluster.runtime("runtime", "red,green,blue")
    async with producer_of(cluster) as producer:
        requests: Any = [request(n, chance) for n in range(DONE)]
        await producer.submit_many(requests)
        await cluster.until(lambda: ended(cluster) == DONE, seconds=60, what="some have ended")
        cluster.kill("runtime")
        requests = [request(n, chance) for n in range(DONE, DONE + OPEN)]
        await producer.submit_many(requests, await_decision=True)
    for name in ("worker", "api"):
        cluster.kill(name)

    cluster.worker("worker")
    cluster.api()
    cluster.runtime("runtime", "red,green,blue", slots=200)
    await cluster.until(
        lambda: ended(cluster) == DONE + OPEN, seconds=180, what="all that were open have ended"
    )
    history = await read_history(cluster.connection, cluster.topics, cluster.partitions)
    assert len(history.jobs()) == DONE + OPEN
    assert set(history.endings().values()) == {1}
    source = log_source(cluster.connection, cluster.topics)
    assert await verify(cluster.dsn, topic=cluster.topics.events, source=source) == []
