"""A lease as `lock` answers it, and each item of `claim`'s answer."""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.structs import replace

from ledger.domain.events import LeaseGranted, Ref
from ledger.domain.flows import inputs_of
from ledger.domain.ids import rfc3339
from ledger.domain.job import Job, quoted_step
from ledger.domain.job_view import job_json


class LeaseView(Struct, frozen=True, gc=False):
    job_id: str
    step: str
    attempt: int
    fence: int
    lease_expires_at: str
    job: Raw
    inputs: dict[str, Raw] = {}
    """Outputs of the steps that this one needs, by name."""
    input_refs: dict[str, Ref] = {}
    """Where those lie that are kept in the object store."""
    item: Raw | None = None
    """Of a step that is done once for each item of a list."""


def lease_view(job: Job | None, grant: LeaseGranted) -> LeaseView:
    """`job`: as it is right after the grant; None: nobody knows it any more."""
    view = Raw(job_json(job)) if job is not None else Raw(b"null")
    until = rfc3339(grant.until)
    lease = LeaseView(grant.job_id, grant.step, grant.attempt, grant.fence, until, view)
    step = quoted_step(job, grant.fence) if job is not None else None
    if job is None or step is None or step.part is None:
        return lease
    inputs, refs = inputs_of(job, step)
    return replace(lease, inputs=inputs, input_refs=refs, item=step.part.item or None)
