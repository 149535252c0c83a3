"""A lease that was granted before, to whoever asks for it again: as it was answered then."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from msgspec import Raw, Struct

from api.decisions import caught_up
from api.operation import Ask
from ledger.domain.events import LeaseGranted
from ledger.domain.ids import Fence, JobId, queue_of
from ledger.domain.lease_views import lease_view
from projections.answers import HistoryEvent
from projections.reads import Reads, ReadsUnavailable

PAGE_EVENTS = 200
"""Of a history, read at once."""

_encode = msgspec.json.Encoder().encode


class _Lease(Struct, frozen=True, gc=False):
    """What is read of a grant as its owner tells it again, with the job as it is by now."""

    job_id: JobId
    fence: Fence


async def as_granted(ask: Ask, said: Raw) -> Raw:
    """`said` with the job as it was then; as it is, where the views do not show the grant."""
    lease = msgspec.json.decode(said, type=_Lease)
    reads = ask.services.reads
    with suppress(ReadsUnavailable):
        found = await _found(reads, lease)
        queue = queue_of(lease.job_id)
        if found is None and queue is not None:
            await caught_up(ask, ask.services.partition_of(queue))
            found = await _found(reads, lease)
        if found is None:
            return said
        grant, version = found
        before = await reads.as_of(lease.job_id, version=version)
        if before is not None:
            return Raw(_encode(lease_view(before.job, grant)))
    return said


async def _found(reads: Reads, lease: _Lease) -> tuple[LeaseGranted, int] | None:
    """The grant, and the job's version after all that its command came to."""
    found: tuple[LeaseGranted, int] | None = None
    cause = ""
    after: int | None = 0
    while after is not None:
        history = await reads.history(lease.job_id, after_seq=after, limit=PAGE_EVENTS)
        if history is None:
            return None
        for event in history.items:
            if found is not None and event.cause != cause:
                return found
            grant = found[0] if found is not None else _granted(event, lease.fence)
            if grant is not None:
                found, cause = (grant, event.seq), event.cause
        after = history.next_seq
    return found


def _granted(event: HistoryEvent, fence: Fence) -> LeaseGranted | None:
    if event.type != LeaseGranted.TYPE:
        return None
    grant = msgspec.json.decode(event.data, type=LeaseGranted)
    return grant if grant.fence == fence else None
