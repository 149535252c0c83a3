"""celery/kombu #337 and celery/celery #2599: a job with a distant start waits in the memory of a
worker. After the visibility time-out the broker gives it to another worker, and to another: when
the time comes it runs once for each.

Here nobody is given a job before it is due (I9, I16): it waits in its owner's state, whatever
happens to runtimes meanwhile, and the next try after a failure waits in the same way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ledger.domain.events import AttemptExpired, JobRequested, LeaseGranted, RetryScheduled
from tests.support.processes import Cluster
from tests.support.verdicts import accepted_ids, sound_history

QUEUE = "c10"
RUNTIMES = 8
LEASE_SECONDS = 1
LEASES = 6
"""So many pass until the jobs are due."""


def start(cluster: Cluster, name: str) -> None:
    cluster.start(name, "-m", "tests.support.runtime_crowd", name, str(RUNTIMES), QUEUE, "4")


async def test_a_delayed_job_is_leased_once_and_not_before_its_time(standing: Cluster) -> None:
    jobs: Any = [
        {
            "type": "work",
            "queue": QUEUE,
            "delay_seconds": LEASES * LEASE_SECONDS + number / 10,
            "lease_seconds": LEASE_SECONDS,
        }
        for number in range(10)
    ]
    start(standing, "c10-first")
    standing.runtime("c10-flaky", QUEUE)
    await standing.until_serving("c10-flaky", *(f"c10-first-{n}" for n in range(RUNTIMES)))
    async with standing.operator() as operator:
        flaky = await operator.submit("flaky", {}, queue=QUEUE, retry={"backoff_seconds": [3.0]})
        delayed = accepted_ids(await operator.submit_many(jobs, await_decision=True))
    await asyncio.sleep(2 * LEASE_SECONDS)
    standing.kill("c10-first")
    start(standing, "c10-second")
    ends = await standing.until_ended(flaky.job_id, *delayed)
    assert set(ends.values()) == {"succeeded"}

    history = await sound_history(standing)
    for job_id in delayed:
        [asked] = history.all(JobRequested, job_id)
        leased_at, *again = history.at(LeaseGranted, job_id)
        assert len(again) == len(history.all(AttemptExpired, job_id)), "once, but for lapses"
        [asked_at] = history.at(JobRequested, job_id)
        assert asked_at + LEASES * LEASE_SECONDS * 1_000_000 <= asked.ready_at <= leased_at
    [retry] = history.all(RetryScheduled, flaky.job_id)
    first, second = history.at(LeaseGranted, flaky.job_id)
    assert first < retry.ready_at <= second
