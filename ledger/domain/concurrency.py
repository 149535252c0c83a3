"""Whether a request may become a job beside its equals: one function a policy."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ledger.domain.commands import Policy
from ledger.domain.ids import JobId
from ledger.domain.rejections import Rejected, Rejection


class Alone(Struct, frozen=True, gc=False):
    """A new job, and those that it takes the place of."""

    replaces: tuple[JobId, ...] = ()


class Shared(Struct, frozen=True, gc=False):
    """An open job answers for the request, too."""

    job_id: JobId


Verdict = Alone | Shared | Rejected
Active = tuple[JobId, ...]


def allow_parallel(active: Active) -> Verdict:
    return Alone()


def reject_same_scope(active: Active) -> Verdict:
    if not active:
        return Alone()
    return Rejected(Rejection.DUPLICATE_ACTIVE, "an equal job has not ended yet", active[0])


def replace_existing(active: Active) -> Verdict:
    return Alone(active)


def share_in_flight(active: Active) -> Verdict:
    return Shared(active[0]) if active else Alone()


POLICIES: dict[Policy, Callable[[Active], Verdict]] = {
    "allow_parallel": allow_parallel,
    "reject_same_scope": reject_same_scope,
    "replace_existing": replace_existing,
    "share_in_flight": share_in_flight,
}
"""`active`: the open jobs that are equal, the oldest first."""
