"""A partition's folded state as one value: readers of the same entries have the same digest.

What is derived (lanes, timers) or only remembered for a while outside the log (deferred progress)
is no part of it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from ledger.domain.partition import Partition


def digest(partition: Partition) -> bytes:
    return sha256(msgspec.json.encode(folded(partition), order="deterministic")).digest()


def folded(partition: Partition) -> dict[str, Any]:
    """By name, for whoever wants to know where two states differ."""
    operations = partition.operations
    bulks = operations.all.values()
    return {
        "entry": partition.entry,
        "at": partition.at,
        "floor": partition.floor,
        "partitions": partition.partitions,
        "commands": partition.commands,
        "requests": partition.requests,
        "order": partition.order,
        "jobs": list(partition.jobs.values()),
        "open_bytes": partition.open_bytes,
        "closed": partition.closed.values(),
        "closed_bytes": partition.closed.bytes,
        "queues": {
            name: [
                {kind: list(held.values()) for kind, held in queue.templates.items()},
                sorted(queue.pinned.items()),
                queue.sessions,
                [queue.is_put, queue.settings, queue.paused, queue.pending],
                sorted((key, sorted(held)) for key, held in queue.limits.holders.items()),
                [queue.schedules.items(), queue.schedules.deleted],
                queue.models,
            ]
            for name, queue in partition.queues.items()
            if queue.is_used()
        },
        "dedupe": [sorted(partition.dedupe.items()), partition.dedupe.done_items()],
        "late": partition.late,
        "keys": sorted(partition.keys.values(), key=lambda holder: holder.digest),
        "outcomes": list(partition.outcomes.rows()),
        "refused_at": list(partition.refused_at.items()),
        "operations": [
            [(bulk.event, sorted(bulk.confirmed.items()), bulk.ended) for bulk in bulks],
            operations.parts,
            operations.done,
        ],
        "misfits": partition.misfits,
        "unknown": partition.unknown,
    }
