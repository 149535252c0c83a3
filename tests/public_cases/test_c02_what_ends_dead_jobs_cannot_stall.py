"""procrastinate-org/procrastinate #1408: the job that looks for stalled jobs is a job itself. It
stalls, its own lock keeps the next one out, and from then on nobody looks.

Here no job ends jobs: lapses are in the state that every owner folds from the log, and are due
whoever it is (I9, G11). An owner that dies or stands still is replaced, as often as that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledger.domain.commands import Claim, RequestJob, RetryAsk
from ledger.domain.events import AttemptExpired, JobFailed, JobRequested, LeaseGranted
from ledger.domain.ids import QueueName, RuntimeId
from tests.public_cases.conftest import NewLedger
from tests.support.ledger import Client
from tests.support.processes import OWNER_POINTS, Cluster
from tests.support.verdicts import sound_history

LANES = 2
"""Ledgers that are harmed at the same time."""
TIMES_IN_A_ROW = 2
JOB = RequestJob("lost", lease_seconds=1, retry=RetryAsk(max_attempts=1))
CLAIM = Claim(RuntimeId("lost"), (QueueName("default"),), ("lost",), wait_seconds=30)


async def test_jobs_of_the_dead_end_though_owners_die_at_every_step_twice_in_a_row(
    new_ledger: NewLedger,
) -> None:
    ledgers = [await new_ledger() for _ in range(LANES)]
    async with asyncio.TaskGroup() as lanes:
        for number, ledger in enumerate(ledgers):
            lanes.create_task(kill_owners_at(ledger, OWNER_POINTS[number::LANES]))
    for ledger in ledgers:
        await all_have_failed(ledger)


async def kill_owners_at(cluster: Cluster, points: Sequence[str]) -> None:
    async with cluster.ledger.client() as client:
        for point in points:
            for time in range(1, TIMES_IN_A_ROW + 1):
                await client.send(JOB, CLAIM)  # Taken, and never spoken of again.
                # Turns come again, to grant and to end; a take-over comes once in a life, and so
                # does what there is to say here, where nobody listens.
                passes = 1 if "take_over" in point or point == "owner.after_effects" else time
                cluster.lone_owner("owner", crash_at=f"{point}:{passes}")
                await cluster.died("owner")
        cluster.lone_owner("owner")
        await claim_what_is_left(cluster, client)


async def test_an_owner_that_stands_still_is_replaced_and_changes_nothing_when_it_wakes(
    new_ledger: NewLedger,
) -> None:
    cluster = await new_ledger()
    async with cluster.ledger.client() as client:
        cluster.lone_owner("frozen")
        await client.send(JOB, CLAIM)
        await cluster.ledger.until(lambda events: any(type(e) is LeaseGranted for e in events))
        cluster.freeze("frozen")
        await client.send(JOB)
        cluster.lone_owner("next")
        await claim_what_is_left(cluster, client)
        cluster.thaw("frozen")
        await cluster.until(
            lambda: bool(cluster.logged("owner.fenced")), seconds=60, what="it says it was fenced"
        )
    await all_have_failed(cluster)


async def claim_what_is_left(cluster: Cluster, client: Client) -> None:
    """A new owner does not know who had claimed before; whoever waits claims again."""
    asked = sum(type(event) is JobRequested for event in await cluster.ledger.events())
    await client.send(*[CLAIM] * asked)
    await cluster.ledger.until(lambda events: _failed(events) == _requested(events))


async def all_have_failed(cluster: Cluster) -> None:
    history = await sound_history(cluster)
    assert history.jobs()
    for job_id in history.jobs():
        assert len(history.all(LeaseGranted, job_id)) == 1
        [expired] = history.all(AttemptExpired, job_id)
        [failed] = history.all(JobFailed, job_id)
        assert (expired.code, failed.code) == ("LEASE_EXPIRED", "LEASE_EXPIRED")


def _requested(events: Sequence[object]) -> int:
    return sum(type(event) is JobRequested for event in events)


def _failed(events: Sequence[object]) -> int:
    return sum(type(event) is JobFailed for event in events)
