"""Shares the partitions out among the owners: what the consumer group is used for, and no more."""

from __future__ import annotations

from asyncio import Queue

from msgspec import Struct

from ledger.log.connection import Connection
from ledger.log.topics import Topics


class Assigned(Struct, frozen=True, gc=False):
    """These are this process's partitions now: all of them, not only the new ones."""

    partitions: frozenset[int]


class Revoked(Struct, frozen=True, gc=False):
    """A rebalance began: pause these; they may come back."""

    partitions: frozenset[int]


class Sharing:
    """A member of the owners' group on the commands topic. It reads nothing."""

    def __init__(self, connection: Connection, topics: Topics) -> None:
        self.changes: Queue[Assigned | Revoked]
        raise NotImplementedError

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Leaves the group, so that the others need not wait for the session to end."""
        ...

    async def rejoin(self) -> None:
        """Leave and join anew: what a fenced owner does before it trusts its assignment."""
        ...

    @property
    def partitions(self) -> frozenset[int]: ...

    @property
    def failure(self) -> BaseException | None:
        """Why sharing stopped; the process should not go on."""
        ...
