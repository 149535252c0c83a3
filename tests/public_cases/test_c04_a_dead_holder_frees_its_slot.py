"""janbjorge/pgqueuer #475: a job whose process was killed still counts against the limit of jobs
at once, so that even the job which should rescue it may not run.

Here a slot is nothing of its own: it is a lease on record, and what ends the lease frees it in the
same step (I14). No process has to give it back.
"""

from __future__ import annotations

from typing import Any

from ledger.domain.events import AttemptExpired, LeaseGranted
from ledger.domain.ids import SECOND
from tests.support.processes import Cluster
from tests.support.verdicts import sound_history

QUEUE = "c04"
WAIT_SECONDS = 5.0
"""Between the lapse and the next job's start; milliseconds on a quiet machine."""


async def test_the_next_job_starts_as_soon_as_the_dead_holder_s_lease_has_lapsed(
    standing: Cluster,
) -> None:
    job: Any = {"queue": QUEUE, "lease_seconds": 1, "retry": {"backoff_seconds": [0.1]}}
    async with standing.operator() as operator:
        await operator.put_queue(QUEUE, limits=[{"key": [], "max": 1}])
        standing.runtime("c04-holder", QUEUE)
        held = (await operator.submit("told", {"seconds": 60}, **job)).job_id
        await standing.until_ran(held)
        waiting = [(await operator.submit("work", {}, **job)).job_id for _ in range(3)]
        standing.runtime("c04-other", QUEUE)
        await standing.until_serving("c04-other")
        standing.kill("c04-holder")
        ends = await standing.until_ended(held, *waiting)
    assert set(ends.values()) == {"succeeded"}

    history = await sound_history(standing)  # At most one held the slot, at each position (I14).
    freed, *_ = history.at(AttemptExpired, held)
    first = min(at for job_id in waiting for at in history.at(LeaseGranted, job_id))
    assert 0 <= (first - freed) / SECOND < WAIT_SECONDS
