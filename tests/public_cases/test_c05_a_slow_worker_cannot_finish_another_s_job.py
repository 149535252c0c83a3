"""OptimalBits/bull #308: a worker is slow, not dead. Its lock has lapsed, another worker has the
job, and both complete it.

Here each lease has a fence of its own, higher than the one before. What comes under an old one is
refused, 409 over HTTP, and that refusal is on record (I7, I10, I29, G4).
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from cli.local import answers
from ledger.domain.events import AttemptExpired, CommandRejected, JobSucceeded, LeaseGranted
from tests.support.processes import Cluster
from tests.support.verdicts import sound_history

QUEUE = "c05"
LEASE_SECONDS = 1
JOB: Any = {
    "queue": QUEUE,
    "lease_seconds": LEASE_SECONDS,
    "retry": {"backoff_seconds": [0.0], "max_attempts": 3},
}


async def test_a_runtime_that_was_frozen_in_the_middle_of_a_job_changes_nothing_when_it_wakes(
    standing: Cluster,
) -> None:
    async with standing.operator() as operator:
        standing.runtime("c05-slow", QUEUE)
        job_id = (await operator.submit("told", {"seconds": 1.0}, **JOB)).job_id
        await standing.until_ran(job_id)
        standing.freeze("c05-slow")
        frozen_at = asyncio.get_running_loop().time()
        standing.runtime("c05-next", QUEUE)
        await standing.until_ended(job_id)
        passed = asyncio.get_running_loop().time() - frozen_at
        await asyncio.sleep(max(0.0, 3 * LEASE_SECONDS - passed))
        standing.kill("c05-next")
        standing.thaw("c05-slow")
        again = (await operator.submit("told", {}, **JOB)).job_id
        await standing.until_ended(again)  # It is awake, and all that it had to say is said.
    history = await sound_history(standing)
    fences = [granted.fence for granted in history.all(LeaseGranted, job_id)]
    [done] = history.all(JobSucceeded, job_id)
    assert done.fence == fences[-1]
    assert history.output(job_id) == {"by": "c05-next"}
    assert len(fences) == len(set(fences)) == 1 + len(history.all(AttemptExpired, job_id))


async def test_of_two_holders_over_http_only_the_later_one_is_heard_whoever_speaks_first(
    standing: Cluster,
) -> None:
    _, url = standing.api()
    jobs = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await standing.until(lambda: answers(f"{url}/readyz"), seconds=60, what="the api is ready")
        for slow_first in (True, False):
            asked = {"type": "external", **JOB, "queue": "c05-http"}
            job = await _post(client, "/v1/jobs", asked, 201)
            path = f"/v1/jobs/{job['id']}"
            slow = await _post(client, f"{path}/lock", {"runtime_id": "slow"}, 200)
            lock = await _lock_when_it_is_free(client, path)
            words = [
                (lock["fence"], {"by": "next"}, 200),
                (slow["fence"], {"by": "slow"}, 409),
            ]
            for fence, output, status in reversed(words) if slow_first else words:
                said = {"fence": fence, "output": output}
                answer = await _post(client, f"{path}/result", said, status)
                if status == 409:
                    late = "LEASE_STALE" if slow_first else "RESULT_ALREADY_EXISTS"
                    assert answer["code"] == late
            jobs.append(job["id"])
    history = await sound_history(standing)
    for job_id in jobs:
        assert history.output(job_id) == {"by": "next"}
        refused = history.all(CommandRejected, job_id)[-1]
        assert refused.code in ("LEASE_STALE", "RESULT_ALREADY_EXISTS")


async def _post(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int
) -> dict[str, Any]:
    answer = await client.post(path, json=body, headers={"Prefer": "wait=30"})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def _lock_when_it_is_free(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            answer = await client.post(f"{path}/lock", json={"runtime_id": "next"})
            if answer.status_code == 200:
                return dict(answer.json())
            assert answer.json()["code"] == "JOB_ALREADY_LOCKED", answer.text
            await asyncio.sleep(0.1)  # Between two tries.
