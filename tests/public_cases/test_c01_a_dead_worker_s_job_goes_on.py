"""procrastinate-org/procrastinate #740: a worker process is gone, and its job is "doing" for ever;
somebody has to find it and put it back by hand.

Here silence is a fact like any other: when a lease lapses its owner records that, the attempt is
spent, and the job waits for its next try or has failed (I6, I9, G5, G11). It does not matter at
which step the runtime died.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ledger.domain.events import AttemptExpired, LeaseGranted
from ledger.domain.ids import SECOND
from tests.support.processes import Cluster
from tests.support.verdicts import sound_history

LEASE_SECONDS = 1
TICK_SECONDS = 5.0
"""Within which a lapse is recorded; far less on a quiet machine."""
DIES = {"before the call": "runtime.before_call:1", "after it": "runtime.after_call:1"}


async def test_a_job_whose_runtime_died_is_tried_again_or_has_failed(standing: Cluster) -> None:
    job: Any = {"lease_seconds": LEASE_SECONDS, "retry": {"backoff_seconds": [0.1]}}
    last: Any = {"lease_seconds": LEASE_SECONDS, "retry": {"max_attempts": 1}}
    async with standing.operator() as operator:
        crashed = [
            (await operator.submit("work", {}, queue=f"c01-{number}", **job)).job_id
            for number in range(len(DIES))
        ]
        for number, point in enumerate(DIES.values()):
            standing.runtime(f"c01-{number}", f"c01-{number}", crash_at=point)
        killed = (await operator.submit("told", {"seconds": 60}, queue="c01", **job)).job_id
        spent = (await operator.submit("told", {"seconds": 60}, queue="c01", **last)).job_id
        standing.runtime("c01-killed", "c01")
        await standing.until_ran(killed, spent)
        standing.kill("c01-killed")
        await asyncio.gather(*(standing.died(f"c01-{number}") for number in range(len(DIES))))
        standing.runtime("c01-heir", ",".join(["c01", *(f"c01-{n}" for n in range(len(DIES)))]))
        ends = await standing.until_ended(*crashed, killed, spent)
    assert ends == {**dict.fromkeys([*crashed, killed], "succeeded"), spent: "failed"}

    history = await sound_history(standing)
    for job_id in ends:
        lapses = history.all(AttemptExpired, job_id)
        assert lapses, "its runtime had died"
        for expired, at in zip(lapses, history.at(AttemptExpired, job_id), strict=True):
            assert expired.code == "LEASE_EXPIRED"
            late = (at - history.until(job_id, expired.fence)) / SECOND
            assert 0 <= late < TICK_SECONDS
        attempts = [granted.attempt for granted in history.all(LeaseGranted, job_id)]
        assert attempts == [*range(1, len(lapses) + (job_id != spent) + 1)]
    assert len(history.all(LeaseGranted, spent)) == 1
