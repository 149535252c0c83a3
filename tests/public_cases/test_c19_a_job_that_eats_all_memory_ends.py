"""activepieces/activepieces #15130: a job takes more memory than there is. The kernel kills its
worker, the queue sees a lost connection, which counts for nothing, and gives the job to the next
worker: for 17 hours, and nobody could cancel it.

Here a lost runtime is a lapsed lease, which counts (I9); and a job can be cancelled in every state
that is not its end (I11, I12, G6).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger.domain.commands import (
    CancelJob,
    Command,
    FailAttempt,
    LockJob,
    RequestJob,
    StartAttempt,
    WaitForCompletion,
)
from ledger.domain.events import AttemptFailed, JobCancelled, JobFailed, LeaseGranted
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId
from tests.support.processes import Cluster
from tests.support.verdicts import sound_history

QUEUE = "c19"
RESIDENT_BYTES_MAX = 300 * 1024 * 1024
PAGE_BYTES = 4096
TIMES: Any = {
    "lease_seconds": 600.0,
    "timeout_seconds": 600.0,
    "retry": {"backoff_seconds": [600.0]},
}
"""Nothing but the cancel ends it while the test looks."""
Word = Callable[[JobId, Fence], Command]


def lock(job_id: JobId, _: Fence) -> Command:
    return LockJob(job_id, RuntimeId("lost"))


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except FileNotFoundError:
        return 0


async def killed_for_its_memory(cluster: Cluster, name: str) -> None:
    """What the kernel does, done by the test, so that nothing else on the machine is hit."""
    child = cluster.children[name]
    await cluster.until(
        lambda: resident_bytes(child.pid) > RESIDENT_BYTES_MAX, seconds=60, what="it has eaten"
    )
    child.send(signal.SIGKILL)
    await cluster.died(name)


async def test_it_is_granted_as_often_as_its_limit_says_and_then_has_failed(
    standing: Cluster,
) -> None:
    async with standing.operator() as operator:
        job = await operator.submit(
            "hungry",
            {},
            queue=QUEUE,
            lease_seconds=1,
            retry={"max_attempts": 3, "backoff_seconds": [0.1]},
        )
    for _ in range(3):
        standing.runtime("c19", QUEUE)
        await killed_for_its_memory(standing, "c19")
    standing.runtime("c19", QUEUE)
    assert await standing.until_ended(job.job_id) == {job.job_id: "failed"}
    history = await sound_history(standing)
    assert [event.attempt for event in history.all(LeaseGranted, job.job_id)] == [1, 2, 3]
    [failed] = history.all(JobFailed, job.job_id)
    assert failed.code == "LEASE_EXPIRED"


async def test_under_a_limit_of_its_own_the_runtime_outlives_the_job(standing: Cluster) -> None:
    limit = {"LEDGER_TEST_MEMORY": str(RESIDENT_BYTES_MAX)}
    module = ("-m", "tests.support.chaos_runtime")
    standing.start("c19-limited", *module, "c19-limited", "c19-limited", "4", **limit)
    async with standing.operator() as operator:
        job = await operator.submit(
            "hungry",
            {},
            queue="c19-limited",
            retry={"max_attempts": 2, "backoff_seconds": [0.1]},
        )
        assert await standing.until_ended(job.job_id) == {job.job_id: "failed"}
        other = await operator.submit("work", {}, queue="c19-limited")
        assert await standing.until_ended(other.job_id) == {other.job_id: "succeeded"}
    assert standing.children["c19-limited"].alive
    history = await sound_history(standing)
    codes = [event.code for event in history.all(AttemptFailed, job.job_id)]
    assert codes == ["HANDLER_ERROR"] * 2


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("pending", []),
        ("leased", [lock]),
        ("running", [lock, StartAttempt]),
        ("pending", [lock, StartAttempt, partial(FailAttempt, code="LOST", retryable=True)]),
        ("waiting", [lock, StartAttempt, partial(WaitForCompletion, timeout_seconds=600.0)]),
        ("cancelling", [lock, StartAttempt, lambda job_id, _: CancelJob(job_id)]),
    ],
)
async def test_it_can_be_cancelled_in_every_state_though_its_runtime_says_no_more(
    standing: Cluster, status: str, words: list[Word]
) -> None:
    async with standing.operator() as operator, standing.ledger.client() as client:
        await operator.put_template(QUEUE, "lost", {"cancel": {"grace_seconds": 1.0}, **TIMES})
        asked = await client.ask(RequestJob("lost", QueueName(QUEUE)))
        job_id, fence = asked.job_id, Fence(0)
        assert job_id is not None
        for word in words:
            asked = await client.ask(word(job_id, fence))
            assert asked.outcome == "accepted", asked
            if asked.data is not None and not fence:
                fence = Fence(msgspec.json.decode(asked.data)["fence"])
        await standing.until(
            lambda: standing.statuses().get(job_id) == status, seconds=60, what=f"it is {status}"
        )
        cancelled = await client.ask(CancelJob(job_id, "nobody waits for it"))
        assert cancelled.outcome in ("accepted", "duplicate")
        assert await standing.until_ended(job_id) == {job_id: "cancelled"}
    history = await sound_history(standing)
    assert len(history.all(JobCancelled, job_id)) == 1
    assert len(history.all(LeaseGranted, job_id)) <= 1
