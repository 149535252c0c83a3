"""When the cleaner is to look at a job."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.events import (
    JobCollected,
    JobErased,
    JobSucceeded,
    ObjectsDeleted,
    Ref,
    ResultWithdrawn,
)
from ledger.domain.ids import MAIN, SECOND, Fence, Micros
from projections.copying import removable_at
from tests.support.builders import (
    JOB,
    Fact,
    cancelled,
    failed,
    instant,
    job_failed,
    leased,
    requested,
    started,
)
from tests.support.clock import NOON, Pause, after
from tests.support.given import given

REF = Ref("k", 70_000, "ab" * 32)
RUNNING = (leased(), started())
DONE = JobSucceeded(JOB, MAIN, Fence(1), 1, "ab" * 32, output_ref=REF)
INLINE = JobSucceeded(JOB, MAIN, Fence(1), 1, "ab" * 32, Raw(b"1"))
FAILED = (*RUNNING, failed(retryable=False), job_failed())
KEPT = requested(failed_ttl_us=9 * SECOND, payload_ref=REF)
COLLECTED = JobCollected(JOB, instant(9))
EXPIRED = ResultWithdrawn(JOB, "expired")
OWNER_GONE = ResultWithdrawn(JOB, "owner_removed")
ERASED = JobErased(JOB)
DELETED = ObjectsDeleted(JOB, ("k",))


@pytest.mark.rule("S4.7")
@pytest.mark.parametrize(
    ("history", "seconds"),
    [
        ((requested(),), None),
        ((requested(), *RUNNING, DONE), None),
        ((requested(), *RUNNING, DONE, JobCollected(JOB, None)), None),
        ((requested(result_ttl_us=9 * SECOND), *RUNNING, DONE, COLLECTED), 9),
        ((requested(result_ttl_us=9 * SECOND), *RUNNING, DONE, COLLECTED, after(9), EXPIRED), 0),
        (
            (
                requested(result_ttl_us=9 * SECOND),
                *RUNNING,
                DONE,
                COLLECTED,
                after(9),
                EXPIRED,
                DELETED,
            ),
            None,
        ),
        (
            (requested(result_ttl_us=9 * SECOND), *RUNNING, INLINE, COLLECTED, after(9), EXPIRED),
            None,
        ),
        ((requested(), *FAILED), None),
        ((KEPT,), None),
        ((KEPT, *FAILED), 9),
        ((KEPT, cancelled("at_once")), None),
        ((KEPT, *RUNNING, DONE), None),
        ((KEPT, *FAILED, after(9), ERASED), 0),
        ((KEPT, *FAILED, after(9), ERASED, DELETED), None),
        ((KEPT, *FAILED, OWNER_GONE), 0),
        ((KEPT, *FAILED, OWNER_GONE, DELETED), 9),
    ],
)
def test_a_job_is_looked_at_when_its_time_is_over_and_while_objects_are_left(
    history: tuple[Fact | Pause, ...], seconds: int | None
) -> None:
    expected = None if seconds is None else Micros(NOON + seconds * SECOND)
    assert removable_at(given(*history).job) == expected
