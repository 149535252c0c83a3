"""hatchet-dev/hatchet #4494: a job is lost between the queue and its worker, and the slot that was
counted for it is never given back. At the end 53,000 jobs wait, and every worker is idle.

Here slots are not counted: they are the leases on record (I14). An assignment that its runtime did
not get is sent again by whoever owns the partition then; if the runtime is gone, its lease lapses.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ledger.domain.events import JobSucceeded
from tests.public_cases.conftest import NewLedger
from tests.support.processes import Cluster
from tests.support.verdicts import accepted_ids, most_at_once, sound_history

ON_THE_WAY = (
    "owner.after_decide",
    "append.before_proof",
    "owner.after_append",
    "owner.before_effects",
    "owner.after_effects",
)
"""From the decision to give a job to a runtime until that is told so."""
QUEUE = "default"
MAX = 4
JOBS = 60
JOB: Any = {
    "type": "work",
    "payload": {"seconds": 0.02},
    "lease_seconds": 2,
    "retry": {"max_attempts": 20, "backoff_seconds": [0.1]},
}


async def test_after_owners_died_with_assignments_on_their_way_every_slot_is_free_again(
    new_ledger: NewLedger,
) -> None:
    cluster = await new_ledger()
    cluster.lone_owner("owner")
    async with cluster.operator() as operator:
        await operator.put_queue(QUEUE, limits=[{"key": [], "max": MAX}])
        cluster.runtime("runtime", QUEUE, slots=2 * MAX)
        await operator.submit("work", {}, queue=QUEUE)
        cluster.kill("owner")
        jobs = 1
        for number, point in enumerate(ON_THE_WAY):
            await operator.submit_many([JOB] * JOBS)
            jobs += JOBS
            cluster.lone_owner("owner", crash_at=f"{point}:{2 + number}")
            await cluster.died("owner")
        # Here assignments are lost with the runtime that should have had them.
        cluster.freeze("runtime")
        await operator.submit_many([JOB] * JOBS)
        cluster.lone_owner("owner")
        await operator.submit_many([JOB] * JOBS, await_decision=True)
        cluster.kill("runtime")
        cluster.runtime("runtime", QUEUE, slots=2 * MAX)
        jobs += 2 * JOBS
        await succeeded(cluster, jobs)
        # None was lost: all run at the same time.
        full: Any = {**JOB, "payload": {"seconds": 0.5}}
        last = accepted_ids(await operator.submit_many([full] * 2 * MAX, await_decision=True))
        await succeeded(cluster, jobs + 2 * MAX)
    history = await sound_history(cluster)
    assert most_at_once(history, lambda _: "all") == {"all": MAX}
    assert most_at_once(history, dict.fromkeys(last, "last").get)["last"] == MAX
    assert history.leases() >= len(history.jobs())


async def succeeded(cluster: Cluster, many: int) -> None:
    async with asyncio.timeout(120):
        await cluster.ledger.until(lambda es: sum(type(e) is JobSucceeded for e in es) >= many)
