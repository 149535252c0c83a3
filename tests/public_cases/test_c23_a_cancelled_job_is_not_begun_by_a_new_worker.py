"""celery/celery #1007 and #4300: a cancel is kept in the memory of workers. One that had fetched
the job already, or is started anew, has not heard of it and runs the job.

Here a cancel is an event. No cancelled job is granted (I11), and a runtime that had been assigned
one learns of it before it calls the handler, or is a runtime that nobody listens to (I7, I12).
"""

from __future__ import annotations

from typing import Any

from ledger.domain.events import AttemptStarted, JobCancelled, JobSucceeded, LeaseGranted
from tests.support.processes import Cluster
from tests.support.verdicts import accepted_ids, sound_history

QUEUE = "c23"
SLOTS = 4
RUNTIMES = ("c23-killed", "c23-frozen")


async def test_what_was_cancelled_between_assignment_and_start_never_starts(
    standing: Cluster,
) -> None:
    queues = {name: name for name in RUNTIMES}
    for name, queue in queues.items():
        standing.runtime(name, queue, slots=SLOTS)
    await standing.until_serving(*RUNTIMES)
    async with standing.operator() as operator:
        jobs: list[str] = []
        for name, queue in queues.items():
            await operator.put_template(
                queue, "told", {"cancel": {"grace_seconds": 1.0}, "lease_seconds": 600.0}
            )
            standing.freeze(name)
            # More than fit: some are assigned, and lie unread; the others wait.
            asked: list[Any] = [{"type": "told", "queue": queue}] * 2 * SLOTS
            jobs += accepted_ids(await operator.submit_many(asked, await_decision=True))
        for job_id in jobs:
            await operator.cancel(job_id, reason="before it began")
        standing.kill("c23-killed")
        standing.runtime("c23-killed", queues["c23-killed"], slots=SLOTS)
        ends = await standing.until_ended(*jobs)
        standing.thaw("c23-frozen")
        for queue in queues.values():  # They are awake, and run what is not cancelled.
            other = await operator.submit("told", {}, queue=queue)
            assert await standing.until_ended(other.job_id) == {other.job_id: "succeeded"}
    assert set(ends.values()) == {"cancelled"}
    ran = {*jobs} & {*standing.ran()}
    # One that wakes may have had its jobs in hand as it fell asleep; what it says is of no effect.
    assert not {job_id for job_id in ran if not job_id.startswith("c23-frozen.")}

    history = await sound_history(standing)
    granted = {event.job_id for event in history.all(LeaseGranted)} & {*jobs}
    assert len(granted) >= len(RUNTIMES) * SLOTS // 2, "some had been assigned"
    for job_id in jobs:
        assert len(history.all(JobCancelled, job_id)) == 1
        assert history.all(AttemptStarted, job_id) + history.all(JobSucceeded, job_id) == []
