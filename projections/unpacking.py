"""A job from its rows.

What changes of a job is packed in its row; only a plain job to which little has happened has that
in its history alone, which is read along, and folded. Most jobs end like that. Against packing it:
3 us of Python each time that the job moves, and 160 bytes, in the table and in the journal.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.events import Event, JobRequested, LeasesExtended, Unknown
from ledger.domain.evolve import begin, evolve, extend
from ledger.domain.ids import Micros
from ledger.domain.job import Job
from ledger.domain.step_changes import Misfit
from projections.packing import ABSENT, unpack_events, unpack_job, unpack_request

FOLDED_MAX = 8
"""Events that are folded when the job is read: 2-4 us each."""


ROW_FIELDS = 6
"""What `stored_job` takes."""


def is_told_by_history(job: Job) -> bool:
    """It depends on the job alone, not on how its history was cut into flushes."""
    return job.version <= FOLDED_MAX and job.request.flow is None


def stored_job(
    job_id: str,
    state: bytes | None,
    output: bytes | None,
    request: bytes,
    payload: bytes | None,
    history: bytes | None,
) -> Job:
    """`history` is all of it, where there is no state. A payload or an output that is None was not
    read along, or is not there."""
    asked = unpack_request(job_id, request, payload)
    if state is not None:
        return unpack_job(asked, state, output)
    assert history is not None
    job: Job | None = None
    for event, at in unpack_events(asked, ABSENT if output is None else Raw(output), history):
        job = folded(job, event, at)
    assert job is not None
    return job


def folded(job: Job | None, event: Event, at: Micros) -> Job | None:
    """One event later. What a history holds did fit when it was written."""
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
