"""What a projector is given at once: effective items of one partition, in order, without a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.ids import JobId
from ledger.domain.job import Job
from ledger.log.effective import Cursor, Effective, TakenOver


class Batch(Struct, frozen=True, gc=False):
    """`before` is where the item before its first one ended: `end_of` that item, 0 at the log's
    beginning. It must be the partition's checkpoint.

    `jobs` are the owner's values of every job that the items touch, as the last of them left it;
    None: unknown, the projector folds. A value that does not fit (its version is not the stored
    one's plus the events here) is not believed, and the batch is folded.
    """

    partition: int
    before: int
    items: Sequence[Effective]
    jobs: Mapping[JobId, Job] | None = None

    @property
    def after(self) -> int:
        return end_of(self.items[-1]) if self.items else self.before


class Applied(Struct, frozen=True, gc=False):
    """What one transaction moved."""

    partition: int
    offset: int
    """The checkpoint now: the next offset to read."""
    entries: int
    events: int
    jobs: int
    """Rows of jobs written."""
    misfits: int
    folded: bool
    """Whether rows were read and folded, because no values were given or they did not fit."""


def end_of(item: Effective) -> int:
    """The offset after an item's last record."""
    return item.offset + 1 if isinstance(item, TakenOver) else item.last_offset + 1


def advanced(cursor: Cursor, items: Sequence[Effective]) -> Cursor:
    """Where a reader stands that stopped at `cursor` and then had these items."""
    changes: dict[str, Any] = {}
    nonces = cursor.nonces
    for item in items:
        if isinstance(item, TakenOver):
            take_over = item.take_over
            nonces = (*nonces, take_over.nonce)
            changes["nonce"], changes["nonces"] = take_over.nonce, nonces
            if not cursor.nonces:
                changes["ledger_id"] = cursor.ledger_id or take_over.ledger_id
                changes["partitions"] = cursor.partitions or take_over.partitions
    for item in reversed(items):
        if not isinstance(item, TakenOver):
            changes |= {
                "entry": item.entry.number,
                "hash": item.hash,
                "hash_offset": item.last_offset,
            }
            break
    return replace(cursor, offset=end_of(items[-1]), **changes) if items else cursor
