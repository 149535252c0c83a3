"""Sends effects and commands: batches only, every wait bounded."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.log.connection import Connection
from ledger.log.records import Outgoing


class Outbox:
    """One per process. Calls to one partition that come while a batch is in flight share the next.

    Raises `LogUnavailable` when the broker does not acknowledge in time (the records may still
    land) and `RecordTooLarge` before anything is sent.
    """

    def __init__(self, connection: Connection) -> None:
        raise NotImplementedError

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> int:
        """The offset of the first record. Records of one call stay in order, yet may leave in
        several batches."""
        ...

    async def send_one(self, topic: str, partition: int, record: Outgoing) -> int: ...
