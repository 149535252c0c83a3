"""How long each request waited for its decision, by the broker's clock: read from the log alone."""

from __future__ import annotations

from bisect import bisect_right
from statistics import median

from msgspec import Struct

from ledger.domain.entries import Proven
from ledger.domain.events import JobRequested
from ledger.log.connection import Connection
from ledger.log.entries_reader import EntriesReader
from ledger.log.topics import Topics
from tests.support.records import records_of


class Pauses(Struct, frozen=True):
    """Of one partition, in seconds."""

    waits: tuple[float, ...]
    """From each accepted request's append to that of its entry."""
    take_overs: tuple[str, ...]
    """The nonce of each that counts, in order."""

    @property
    def usual(self) -> float:
        return median(self.waits)

    @property
    def longest(self) -> float:
        return max(self.waits, default=0.0)


async def pauses_of(connection: Connection, topics: Topics, partition: int) -> Pauses:
    asked_at = await _append_times(connection, topics.requests, partition)
    decided_at = await _append_times(connection, topics.events, partition)
    places = sorted(asked_at)
    waits = []
    take_overs = []
    async with EntriesReader(connection, topics, partition) as reader:
        async for items in reader.batches(await reader.end()):
            for item in items:
                if not isinstance(item, Proven):
                    take_overs.append(item.take_over.nonce)
                elif any(isinstance(event, JobRequested) for event in item.entry.events):
                    # The last record below the offset that the entry says is to be read next.
                    place = places[bisect_right(places, item.entry.requests - 1) - 1]
                    waits.append((decided_at[item.first_offset] - asked_at[place]) / 1000)
    return Pauses(tuple(waits), tuple(take_overs))


async def _append_times(connection: Connection, topic: str, partition: int) -> dict[int, int]:
    """Milliseconds by offset, of every record that is there now."""
    records = await records_of(connection, topic, partition)
    return {record.offset: record.timestamp for record in records}
