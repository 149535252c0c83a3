"""vectorize-io/hindsight #2675 (mended by its #2834): a job that crashes its worker is found and
put back, and that path counts no retry: one was run 54 times, and made 394,000 model calls.

Here an attempt is spent when it is granted (I9, G5): whatever ends it, there is no path that does
not count.
"""

from __future__ import annotations

from ledger.domain.events import AttemptExpired, JobFailed, LeaseGranted
from tests.support.processes import Cluster
from tests.support.verdicts import sound_history

QUEUE = "c16"
ATTEMPTS_MAX = 3


async def test_a_job_that_kills_its_runtime_is_granted_as_often_as_its_limit_says(
    standing: Cluster,
) -> None:
    async with standing.operator() as operator:
        job = await operator.submit(
            "deadly",
            {},
            queue=QUEUE,
            lease_seconds=1,
            retry={"max_attempts": ATTEMPTS_MAX, "backoff_seconds": [0.1]},
        )
        for _ in range(ATTEMPTS_MAX):
            standing.runtime("c16", QUEUE)
            await standing.died("c16")
        standing.runtime("c16", QUEUE)
        ends = await standing.until_ended(job.job_id)
        # It goes on to serve others, and never sees that job again.
        other = await operator.submit("work", {}, queue=QUEUE)
        await standing.until_ended(other.job_id)
    assert ends == {job.job_id: "failed"}
    assert standing.children["c16"].alive

    history = await sound_history(standing)
    assert [e.attempt for e in history.all(LeaseGranted, job.job_id)] == [1, 2, 3]
    assert [e.attempt for e in history.all(AttemptExpired, job.job_id)] == [1, 2, 3]
    [failed] = history.all(JobFailed, job.job_id)
    assert failed.code == "LEASE_EXPIRED"
