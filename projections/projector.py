"""Applies batches of effective entries to the read models, rows and checkpoint in one step."""

from __future__ import annotations

from ledger.log.effective import Cursor
from projections.batches import Applied, Batch


class Projector:
    """Synchronous, one connection, one thread. Open with `with`."""

    def __init__(self, dsn: str, *, topic: str, schema: str = "ledger") -> None: ...

    def cursor(self, partition: int) -> Cursor:
        """Where to read on, as stored; begins the partition where nothing is. Raises
        `CheckpointLost`."""
        raise NotImplementedError

    def apply(self, batch: Batch) -> Applied:
        """Raises `Superseded` if the stored checkpoint is not `batch.before`."""
        raise NotImplementedError
