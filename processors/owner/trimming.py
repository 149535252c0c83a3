"""Deletes what the intakes need not hold any more. The broker keeps them without a bound, because
only the owner knows how far they are decided."""

from __future__ import annotations

import structlog

from ledger.domain.ids import Micros
from ledger.log.admin import Admin
from ledger.log.offsets import Offsets

log = structlog.get_logger(__name__)

KEPT_US = 7 * 86_400 * 1_000_000
"""An intake record is kept for so long after its append, decided or not."""


async def trim(
    admin: Admin,
    offsets: Offsets,
    topic: str,
    partition: int,
    *,
    decided: int,
    now: Micros,
    kept_us: int = KEPT_US,
) -> int:
    """Delete the records below `decided` (the offset to read next, as a proven entry records it)
    that are older than `kept_us`. Returns the offset of the first record that is left."""
    first = await offsets.first(topic, partition)
    young = await offsets.since(topic, partition, (now - kept_us) // 1000)
    below = decided if young is None else min(decided, young)
    if below <= first:
        return first
    await admin.delete_records(topic, {partition: below})
    log.info("owner.intake_trimmed", topic=topic, partition=partition, below=below)
    return below
