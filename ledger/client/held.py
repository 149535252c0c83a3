"""What a runtime holds: a lease from its assignment to the acknowledged report, and the orders to
the handler that works under it."""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from ledger.domain.brief import Brief
from ledger.domain.commands import (
    ProgressSaid,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedWait,
)
from ledger.domain.ids import Fence, JobId
from ledger.log.inbox import AssignedItem

if TYPE_CHECKING:
    from ledger.client.runtime_session import QueueSession

MARGIN_PART = 0.05
"""Of a lease: so long before its end work stops, if no extension came."""
MARGIN_SECONDS_MAX = 2.0
GRACE_PART = 0.1
"""Of the time to stop by oneself: so long before its end a handler is stopped, so that the
word of it is there in time."""

Ending = ReportedResult | ReportedFailure | ReportedRelease | ReportedCancel | ReportedWait
"""A word that ends an attempt."""


class Why(Enum):
    """Why a handler is told to stop."""

    LOST = "the lease is not held any more"
    RAN_OUT = "no extension of the lease came in time"
    GRACE_ENDED = "the time to stop by oneself is over"
    LEAVING = "the runtime is leaving"


class Held(Struct, gc=False, eq=False):
    """One lease, from its assignment until the report on it is acknowledged.

    Equal only to itself.
    """

    session: QueueSession
    job_id: JobId
    fence: Fence
    item: AssignedItem
    job: Brief
    stops_at: float = -inf
    """When work must stop unless an extension comes: a little before the lease ends by what was
    answered, counted from when it was asked."""
    began_at: float | None = None
    """When its handler was told to begin."""
    entered: bool = False
    """Its handler has begun; set in the thread that it runs in."""
    started_in: int = 0
    """The beat with which its start was said; 0: not said."""
    said_in: int = 0
    """The beat with which its word was said; 0: not said."""
    progress: ProgressSaid | None = None
    progress_in: int = 0
    cancel_at: float | None = None
    stopped: bool = False
    lost: bool = False
    word: Ending | None = None

    @property
    def worker_type(self) -> str:
        """Which handler is to run it."""
        return self.job.worker_type or self.job.type

    @property
    def runs(self) -> bool:
        return self.began_at is not None and self.word is None and not self.lost

    @property
    def awaits_answer(self) -> bool:
        """Too little was left of it to begin: the answer to a beat tells how much it is."""
        return self.began_at is None and self.word is None

    @property
    def ends_at(self) -> float:
        """When its handler is to be stopped."""
        return self.stops_at if self.cancel_at is None else min(self.cancel_at, self.stops_at)

    @property
    def margin(self) -> float:
        return min(MARGIN_SECONDS_MAX, self.job.lease_seconds * MARGIN_PART)


def last_instant(asked_at: float, grace_seconds: float) -> float:
    """For a handler that was asked to stop by itself within that time."""
    return asked_at + grace_seconds - min(MARGIN_SECONDS_MAX, grace_seconds * GRACE_PART)


class Begin(Struct, frozen=True, gc=False):
    held: Held


class AskToStop(Struct, frozen=True, gc=False):
    """Somebody cancelled the job: the handler may stop by itself until the deadline."""

    held: Held
    reason: str
    deadline: float


class Stop(Struct, frozen=True, gc=False):
    held: Held
    why: Why


Order = Begin | AskToStop | Stop
