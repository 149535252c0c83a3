"""A job from its rows.

What changes of a job is packed in its row; only a plain job to which nothing has happened since the
flush in which it began has that in its history alone, whose first row is read along, and folded.
Many jobs end in the flush in which they began. Against packing it: 3 us of Python and 160 bytes, in
the table and in the journal, a job.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.events import JobRequested, LeasesExtended, Unknown
from ledger.domain.evolve import begin, evolve, extend
from ledger.domain.job import Job
from ledger.domain.step_changes import Misfit
from projections.packing import ABSENT, Logical, unpack_events, unpack_job, unpack_request

FOLDED_MAX = 8
"""Events that are folded when the job is read: 2-4 us each."""


ROW_FIELDS = 6
"""What `stored_job` takes."""


def is_told_by_history(job: Job, events: int) -> bool:
    """Of a job that has just begun, with so many events."""
    return events <= FOLDED_MAX and job.request.flow is None


def stored_job(
    job_id: str,
    state: bytes | None,
    output: bytes | None,
    request: bytes,
    payload: bytes | None,
    begun: bytes | None,
) -> Job:
    """`begun` is the first row of the history, where there is no state. A payload or an output that
    is None was not read along, or is not there."""
    asked = unpack_request(job_id, request, payload)
    if state is not None:
        return unpack_job(asked, state, output)
    assert begun is not None
    job: Job | None = None
    for logical in unpack_events(asked, ABSENT if output is None else Raw(output), 1, begun):
        job = folded(job, logical)
    assert job is not None
    return job


def folded(job: Job | None, logical: Logical) -> Job | None:
    """One event later. What a history holds did fit when it was written."""
    event, at = logical.event, logical.at
    after: Job | Misfit | None
    match event:
        case JobRequested():
            after = begin(event, at)
        case _ if job is None:
            return None
        case Unknown():
            after = replace(job, opaque=job.opaque + 1, version=job.version + 1)
        case LeasesExtended():
            after = extend(job, event.leases[0])
        case _:
            after = evolve(job, event, at)  # type: ignore[arg-type]
    return job if isinstance(after, Misfit) else after
