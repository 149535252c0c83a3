"""Asks for the ends of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ledger.log.connection import Connection

Isolation = Literal["read_committed", "read_uncommitted"]


class Offsets:
    """A client of its own: a consumer's `end_offsets` would queue behind its long-poll fetches.

    Raises `LogUnavailable` when no answer comes in time.
    """

    def __init__(self, connection: Connection, isolation: Isolation = "read_uncommitted") -> None:
        raise NotImplementedError

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Offsets: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def end(self, topic: str, partition: int) -> int:
        """The offset after the last record, asked for after this call began."""
        ...

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]: ...

    async def first(self, topic: str, partition: int) -> int:
        """The offset of the first record that is there."""
        ...
