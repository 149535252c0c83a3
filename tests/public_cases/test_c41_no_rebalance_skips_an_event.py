"""faust-streaming/faust #216: during a rebalance a processor goes on from where Kafka's group says,
before it has looked where its own state stands: events in between are skipped.

Here the group says nothing but who looks after what. Where to read on is in the log: each entry
says how far both intakes are decided (I21), so that nothing is skipped and nothing done twice, and
what is told to others is what stands in the log, no more and no less (I2, I5).
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from typing import Any

import pytest

from ledger.domain.commands import RequestJob
from ledger.domain.entries import command_of
from ledger.domain.events import (
    AttemptExpired,
    CommandDuplicated,
    Event,
    JobRequested,
    LeaseGranted,
)
from ledger.domain.ids import JobId, QueueName
from ledger.log.headers import text_header
from ledger.log.inbox import Assigned, inbox_from
from ledger.log.partitions import INBOX_PARTITIONS
from tests.support.insisting import insist
from tests.support.processes import Cluster
from tests.support.records import records_of
from tests.support.verdicts import sound_history

QUEUES = ("red", "green", "blue")
MEMBERS = 4
JOINS_AND_LEAVES = 12
JOBS_A_ROUND = 100
GROUP = "storm"


def is_doubled(event: Event) -> bool:
    """A request that came again and made no second job."""
    return isinstance(event, CommandDuplicated) and event.command_type == RequestJob.TYPE


def join(cluster: Cluster, number: int) -> None:
    cluster.start(f"owner-{number}", "-m", "tests.support.rival_owner", GROUP)


@pytest.mark.slow
async def test_in_a_storm_of_rebalances_every_request_is_decided_once_and_its_effects_come(
    cluster: Cluster,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    cluster.runtime("runtime", ",".join(QUEUES), slots=50)
    answers: list[asyncio.Task[list[JobId]]] = []
    async with cluster.operator(wait_seconds=10.0) as operator:
        for change in range(JOINS_AND_LEAVES):
            name = f"owner-{change % MEMBERS}"
            child = cluster.children.get(name)
            if child is None or not child.alive:
                join(cluster, change % MEMBERS)
            elif chance.random() < 0.2:
                child.kill()  # It is missed only when its session ends.
                join(cluster, change % MEMBERS)
            else:
                await cluster.until_says(name, "owner.assigned")
                child.send(signal.SIGTERM)
                await asyncio.to_thread(child.wait, name=name, seconds=60)
            batch: list[Any] = [
                {
                    "type": "work",
                    "queue": QUEUES[n % len(QUEUES)],
                    "lease_seconds": 5,
                    "idempotency_key": f"{change}-{n}",
                }
                for n in range(JOBS_A_ROUND)
            ]
            answers.append(asyncio.create_task(insist(operator, batch)))
            await asyncio.sleep(chance.uniform(0.0, 0.6))
        for number in range(MEMBERS):
            if not cluster.children[f"owner-{number}"].alive:
                join(cluster, number)
        cluster.lone_worker("projector", "projector")
        job_ids = {job_id for batch in await asyncio.gather(*answers) for job_id in batch}
    assert len(job_ids) == JOINS_AND_LEAVES * JOBS_A_ROUND
    await cluster.until_ended(*job_ids, seconds=120)
    history = await sound_history(cluster)
    assert history.jobs() == job_ids
    assert history.endings().keys() == job_ids

    # No record of an intake was skipped, none has two outcomes.
    topics, partitions = cluster.topics, range(cluster.partitions)
    outcomes = Counter(
        command_of(proven.entry.cause)
        for proven in history.entries
        if any(isinstance(e, JobRequested) or is_doubled(e) for e in proven.entry.events)
    )
    asked = Counter(
        text_header(record.headers, "ce_id")
        for record in await records_of(cluster.connection, topics.requests, *partitions)
    )
    assert outcomes == asked
    # What any runtime was sent is a lease on record; a lease that was not sent has lapsed.
    sent = {
        (item.job_id, item.fence)
        for queue in QUEUES
        for record in await records_of(
            cluster.connection, topics.assigned(QueueName(queue)), *range(INBOX_PARTITIONS)
        )
        if isinstance(content := inbox_from(record), Assigned)
        for item in content.items
        if not item.void
    }
    granted = {(event.job_id, event.fence) for event in history.all(LeaseGranted)}
    lapsed = {(event.job_id, event.fence) for event in history.all(AttemptExpired)}
    assert sent <= granted
    assert granted - sent <= lapsed
