"""A step, the unit of leasing: where it stands, and under which lease. A plain job has one."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from ledger.domain.events import Ref
from ledger.domain.failures import Failure
from ledger.domain.ids import Fence, Micros, RuntimeId, Session, StepName


class Status(StrEnum):
    """Where a job stands, or one of its steps."""

    PENDING = "pending"
    """Waits to be leased. Surprising: also while its `ready_at` lies ahead."""
    LEASED = "leased"
    """Given to a runtime that has not started it. Moved by start, or by its lease's end."""
    RUNNING = "running"
    WAITING = "waiting"
    """Given up for an external completion. Holds no lease, and its fence is still good."""
    CANCELLING = "cancelling"
    """Its runtime was asked to stop. Surprising: a result that arrives now still wins."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Ended by the clock: never started in time. An attempt that expires is only an event."""
    SKIPPED = "skipped"
    """Of a step only: its condition was not met, or nothing that it needs was done."""


JOB_STATUSES = tuple(status for status in Status if status is not Status.SKIPPED)


# --- Phases of a step: impossible combinations cannot be written ---------------------------------
class Lease(Struct, frozen=True, gc=False):
    runtime_id: RuntimeId
    session: Session
    number: int
    fence: Fence
    since: Micros
    until: Micros
    """Where it ends if nothing is heard; it ends by its event, never by the instant alone."""


class Blocked(Struct, frozen=True, gc=False, tag="blocked"):
    """Steps that it needs have not ended yet. Shown as pending."""


class Pending(Struct, frozen=True, gc=False, tag="pending"):
    ready_at: Micros


class Leased(Struct, frozen=True, gc=False, tag="leased"):
    lease: Lease


class Running(Struct, frozen=True, gc=False, tag="running"):
    lease: Lease
    deadline: Micros


class Waiting(Struct, frozen=True, gc=False, tag="waiting"):
    lease: Lease
    """The one that was given up: who may complete, and under which fence."""
    until: Micros


class Settled(Struct, frozen=True, gc=False, tag="settled"):
    status: Status


Phase = Blocked | Pending | Leased | Running | Waiting | Settled
EndedHow = Literal["", "succeeded", "failed", "released", "cancelled"]


class Progress(Struct, frozen=True, gc=False):
    percent: float | None
    phase: str | None
    message: str | None
    at: Micros


class Part(Struct, frozen=True, gc=False):
    """What a step is within a flow."""

    output: Raw | UnsetType = UNSET
    output_ref: Ref | None = None
    output_hash: str = ""
    extract: Raw | UnsetType = UNSET
    item: Raw | UnsetType = UNSET
    """Of an instance: what it is to work on."""
    sent_back: int = 0
    """How often it has sent the flow back in this pass."""
    degraded: bool = False


class Step(Struct, frozen=True, gc=False, omit_defaults=True):
    """The unit of leasing. `attempt` counts grants not given back: 0 before the first."""

    name: StepName
    phase: Phase
    attempt: int = 0
    started_at: Micros | None = None
    """Of the latest attempt that started."""
    finished_at: Micros | None = None
    failure: Failure | None = None
    progress: Progress | None = None
    ended_fence: Fence = Fence(0)
    """Of the last attempt that ended by its runtime's own word, so that saying it again is no
    news. An attempt that expired leaves it alone: what its runtime still says is stale."""
    ended_how: EndedHow = ""
    """That word: only the same one is no news."""
    ended_hash: str = ""
    """In a flow: of the result, where it was one. Kept while the step is done anew."""
    part: Part | None = None
    """None: of a plain job."""


# These are asked several times an event. `isinstance` with a Struct that it is not costs 0.3 us,
# five times what `type(x) is` does, so that hot paths of the domain ask by type.
def current_lease(step: Step) -> Lease | None:
    """The lease of the current attempt, be it live or given up for a completion; else None."""
    lease: Lease | None = getattr(step.phase, "lease", None)
    return lease


def held_lease(step: Step) -> Lease | None:
    """The lease that is live by the record; None while pending, waiting or settled."""
    return None if type(step.phase) is Waiting else current_lease(step)
