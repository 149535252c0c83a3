"""Reads effective entries from the broker, without a group and without commits."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ledger.log.connection import Connection
from ledger.log.effective import START, Cursor, Effective, EffectiveEntries
from ledger.log.topics import Topics


class EntriesReader:
    """`async with EntriesReader(…) as reader: async for items in reader.batches(): …`

    At its start it checks that the log bears the cursor out: the entry that the cursor names is
    read again and must carry its hash, else `CheckpointNotBorneOut`. Raises `OffsetOutOfRange` for
    an offset that the log does not hold, `ChainBroken`, and `ReaderStuck`.
    """

    def __init__(
        self, connection: Connection, topics: Topics, partition: int, cursor: Cursor = START
    ) -> None:
        self.effective: EffectiveEntries
        raise NotImplementedError

    async def __aenter__(self) -> EntriesReader: ...

    async def __aexit__(self, *_: object) -> None: ...

    @property
    def cursor(self) -> Cursor:
        """To resume from, once all items yielded so far are dealt with."""
        ...

    @property
    def position(self) -> int:
        """The next offset to read, also past records that count for nothing."""
        ...

    def batches(self, until: int | None = None) -> AsyncIterator[list[Effective]]:
        """Ends once `position` reached `until`; None: never. A batch may be empty at most where
        the position moved."""
        ...


def read(
    connection: Connection,
    topics: Topics,
    partition: int,
    cursor: Cursor = START,
    *,
    until: int | None = None,
) -> AsyncIterator[list[Effective]]:
    """`async for items in read(…)`; the reader lives as long as the loop."""
    ...
