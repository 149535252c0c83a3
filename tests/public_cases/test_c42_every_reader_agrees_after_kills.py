"""faust-streaming/faust #517 and #323: exactly-once is switched on, a worker is killed under load,
and what it had half done is there twice.

Here the log may hold what a dead owner wrote; it counts for every reader or for none (I2, G7). No
reader is told more than another, however it is cut off and resumed, and nothing that was
acknowledged is missing (G2) or there twice (I4, I10).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from ledger.client.auditor import Auditor
from ledger.domain.entries import Proven
from ledger.domain.events import JobRequested, JobSucceeded
from ledger.domain.ids import JobId
from ledger.log.effective import START, Effective
from ledger.log.entries_reader import EntriesReader
from tests.support.insisting import insist
from tests.support.processes import Cluster
from tests.support.verdicts import sound_history

QUEUES = ("red", "green", "blue")
KILLS = int(os.environ.get("LEDGER_TEST_KILLS", "5"))
JOBS_A_KILL = 150


def requests(first: int, many: int) -> list[Any]:
    return [
        {
            "type": "work",
            "queue": QUEUES[n % len(QUEUES)],
            "idempotency_key": f"job-{n}",
            "lease_seconds": 2,
            "retry": {"max_attempts": 20, "backoff_seconds": [0.1]},
        }
        for n in range(first, first + many)
    ]


Told = list[tuple[int, bytes]]
"""Number and hash of each entry, in order."""


def told(items: list[Effective]) -> Told:
    return [(item.entry.number, item.hash) for item in items if isinstance(item, Proven)]


@asynccontextmanager
async def listening(cluster: Cluster) -> AsyncIterator[list[Told]]:
    """What readers are told who were there all the time."""
    heard: list[Told] = [[] for _ in range(cluster.partitions)]

    async def listen(partition: int) -> None:
        async with EntriesReader(cluster.connection, cluster.topics, partition) as reader:
            async for items in reader.batches():
                heard[partition] += told(items)

    listeners = [asyncio.create_task(listen(n)) for n in range(cluster.partitions)]
    try:
        yield heard
    finally:
        for listener in listeners:
            listener.cancel()
        await asyncio.wait(listeners)


async def read_in_pieces(cluster: Cluster, partition: int) -> Told:
    """By readers of whom each goes on where the one before stopped, in the middle of anything."""
    found: Told = []
    cursor, position = START, 0
    async with EntriesReader(cluster.connection, cluster.topics, partition) as reader:
        end = await reader.end()
    while position < end:
        position = min(end, position + 1 + end // 7)
        async with EntriesReader(cluster.connection, cluster.topics, partition, cursor) as reader:
            async for items in reader.batches(position):
                found += told(items)
            cursor = reader.cursor
    return found


@pytest.mark.slow
async def test_every_reader_is_told_the_same_however_often_the_owner_is_killed(
    cluster: Cluster,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    cluster.lone_worker("projector", "projector")
    cluster.runtime("runtime", ",".join(QUEUES))
    answers: list[asyncio.Task[list[JobId]]] = []
    async with cluster.operator(wait_seconds=10.0) as operator, listening(cluster) as heard:
        for kill in range(KILLS):
            # Every third is a whole worker, whose projector is fed by its owner; the others leave
            # the views to the projector that reads the log.
            start = cluster.lone_worker if kill % 3 == 0 else cluster.lone_owner
            start("owner")
            batch = requests(kill * JOBS_A_KILL, JOBS_A_KILL)
            answers.append(asyncio.create_task(insist(operator, batch)))
            await cluster.until_says("owner", "owner.took_over")
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            cluster.kill("owner")
        # The last is not dead but frozen: what it had under way lands after its successor's start.
        cluster.lone_owner("zombie")
        await cluster.until_says("zombie", "owner.took_over")
        batch = requests(KILLS * JOBS_A_KILL, JOBS_A_KILL)
        answers.append(asyncio.create_task(insist(operator, batch)))
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        cluster.freeze("zombie")
        cluster.lone_worker("owner")
        job_ids = [job_id for batch in await asyncio.gather(*answers) for job_id in batch]
        cluster.thaw("zombie")
        await cluster.until_ended(*job_ids, seconds=120)
        cluster.kill("zombie")
        history = await sound_history(cluster)
        assert len(job_ids) == len(set(job_ids)) == (KILLS + 1) * JOBS_A_KILL
        assert set(job_ids) == history.jobs()
        assert history.endings().keys() == history.jobs()

        async with Auditor(
            cluster.connection, partitions=cluster.partitions, prefix=cluster.prefix
        ) as auditor:
            for partition in range(cluster.partitions):
                fresh = told([item async for item in auditor.replay(partition)])
                # Meanwhile an owner may append what only tells the time.
                pieces = await read_in_pieces(cluster, partition)
                assert pieces[: len(fresh)] == fresh
                await cluster.until(
                    partial(_is_as_long, heard[partition], fresh), seconds=30, what="it is heard"
                )
                assert heard[partition][: len(fresh)] == fresh
    await cluster.until(
        lambda: (
            counted(cluster) == (len(history.all(JobRequested)), len(history.all(JobSucceeded)))
        ),
        seconds=60,
        what="the rates have counted each event once",
    )


def _is_as_long(one: Told, other: Told) -> bool:
    return len(one) >= len(other)


def counted(cluster: Cluster) -> tuple[int, int]:
    with psycopg.connect(cluster.dsn) as connection:
        rows = connection.execute(
            "SELECT outcome, sum(count)::int FROM ledger.job_rates GROUP BY outcome"
        )
        counts: dict[str, int] = dict(rows.fetchall())
    return counts.get("requested", 0), counts.get("succeeded", 0)
