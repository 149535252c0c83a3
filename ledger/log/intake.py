"""Reads the intakes: one consumer a process and topic, one bounded buffer a partition."""

from __future__ import annotations

from asyncio import Event

from ledger.log.connection import Connection
from ledger.log.offsets import Isolation
from ledger.log.records import Record


class Intake:
    """`follow` partitions, then `take` what has arrived, without awaiting.

    A partition whose buffer is full is paused; the others go on. Errors of one partition (its
    offset is out of range) are raised by its `take` only; `failure` is the intake's own.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        isolation: Isolation,
        buffered_max: int = 5_000,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def follow(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on; what was buffered of it is dropped."""
        ...

    def unfollow(self, partition: int) -> None: ...

    def take(self, partition: int, records_max: int) -> list[Record]:
        """What has arrived, in order; empty if nothing has."""
        ...

    def position(self, partition: int) -> int:
        """The offset to take next: everything below was taken, or is a control record or of an
        aborted transaction. Compare this with an end offset, never the last record."""
        ...

    def buffered(self, partition: int) -> int: ...

    def arrived(self, partition: int) -> Event:
        """Set when records, a new position or an error came; the taker clears it."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the whole intake stopped; the process should not go on."""
        ...
