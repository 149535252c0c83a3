"""How long results are kept, told a second time: collected once, withdrawn never early."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ledger.domain.events import (
    Event,
    JobCancelled,
    JobCollected,
    JobErased,
    JobExpired,
    JobFailed,
    JobRequested,
    JobSucceeded,
    ObjectsDeleted,
    ResultWithdrawn,
)
from ledger.domain.ids import JobId

ENDED_MAX = 200_000
"""Ended jobs of which is known what they asked for; of older ones less is checked."""
Complaint = tuple[str, JobId | None, str]


class Ended(Struct, gc=False):
    succeeded: bool
    failed_at: int | None
    result_ttl_us: int | None
    failed_ttl_us: int | None
    collected: bool = False
    expires_at: int | None = None


class RetentionTraces:
    def __init__(self) -> None:
        self._ended: dict[JobId, Ended] = {}

    def ended(
        self,
        asked: JobRequested,
        event: JobSucceeded | JobFailed | JobExpired | JobCancelled,
        at: int,
    ) -> None:
        kind = type(event)
        self._ended[asked.job_id] = Ended(
            kind is JobSucceeded,
            at if kind is JobFailed or kind is JobExpired else None,
            asked.result_ttl_us,
            asked.failed_ttl_us,
        )
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def follow(self, event: Event, at: int, *, event_is_open: bool) -> Iterator[Complaint]:
        if not isinstance(event, JobCollected | ResultWithdrawn | JobErased | ObjectsDeleted):
            return
        job_id = event.job_id
        if event_is_open:
            yield "I19", job_id, f"{event.TYPE} before its end"
            return
        job = self._ended.get(job_id)
        if job is None:
            return
        match event:
            case JobCollected():
                if not job.succeeded:
                    yield "I19", job_id, "collected, and it has no result"
                if job.collected:
                    yield "I19", job_id, "collected twice"
                    return
                ttl = job.result_ttl_us
                expires = None if ttl is None else at + ttl
                if event.expires_at != expires:
                    yield "I19", job_id, f"expires at {event.expires_at}, not {expires}"
                job.collected, job.expires_at = True, event.expires_at
            case ResultWithdrawn(why="expired"):
                if job.expires_at is None or at < job.expires_at:
                    yield "I19", job_id, f"withdrawn at {at}; it was kept until {job.expires_at}"
            case JobErased(why="expired"):
                ttl, failed_at = job.failed_ttl_us, job.failed_at
                if ttl is None or failed_at is None or at < failed_at + ttl:
                    yield "I19", job_id, "erased before its time"
            case _:
                pass
