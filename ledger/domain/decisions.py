"""What comes of a command: accepted with its facts, or refused."""

from __future__ import annotations

from msgspec import Struct

from ledger.domain.events import Event, LeaseGranted
from ledger.domain.ids import JobId
from ledger.domain.rejections import Rejected


class Decided(Struct, frozen=True, gc=False):
    """Accepted. No events: an equal command had its outcome before, nothing new comes of this."""

    events: tuple[Event, ...] = ()
    job_id: JobId | None = None
    grants: tuple[LeaseGranted, ...] = ()
    """Of a lock or claim: what the caller holds now."""
    deduplicated: bool = False
    """An earlier job answers for this request."""
    replayed: bool = False
    """The very command (id, or Idempotency-Key) came before."""
    template_version: int | None = None
    created: bool = False
    """Of a put: there was none of that name before."""
    refused: tuple[Rejected, ...] = ()
    """Parts of a report that were refused, beside those that were accepted."""
    operation_id: str | None = None


Decision = Decided | Rejected
