"""The attempts of a job, told from its history: each lease, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
)
from ledger.domain.ids import Fence, Micros
from projections.answers import Attempt
from projections.packing import Logical


def attempts_of(history: Iterable[Logical]) -> tuple[Attempt, ...]:
    """Oldest first. The end of the job ends whatever attempt it finds under way."""
    found: dict[Fence, Attempt] = {}
    for logical in history:
        event, at = logical.event, logical.at
        match event:
            case LeaseGranted():
                found[event.fence] = Attempt(
                    step=event.step,
                    fence=event.fence,
                    attempt=event.attempt,
                    runtime_id=event.runtime_id,
                    session=event.session,
                    granted_at=at,
                )
            case AttemptStarted() if known := found.get(event.fence):
                found[event.fence] = replace(known, started_at=at)
            case AttemptFailed():
                _end(found, event.fence, at, "failed", event.code)
            case AttemptExpired():
                _end(found, event.fence, at, "expired", event.code)
            case LeaseReleased():
                _end(found, event.fence, at, "released")
            case JobSucceeded():
                _end(found, event.fence, at, "succeeded")
            case JobCancelled():
                _end_all(found, at, "cancelled")
            case JobFailed():
                _end_all(found, at, "failed", event.code)
            case JobExpired():
                _end_all(found, at, "expired", event.code)
            case _:
                pass  # Says nothing of an attempt's begin or end.
    return tuple(found.values())


def _end(
    found: dict[Fence, Attempt], fence: Fence, at: Micros, how: str, code: str | None = None
) -> None:
    attempt = found.get(fence)
    if attempt is not None and attempt.ended_at is None:
        found[fence] = replace(attempt, ended_at=at, how=how, code=code)


def _end_all(found: dict[Fence, Attempt], at: Micros, how: str, code: str | None = None) -> None:
    for fence in found:
        _end(found, fence, at, how, code)
