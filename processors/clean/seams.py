"""What the cleaner needs from outside, and how it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledger.domain.commands import Command
from ledger.domain.ids import CommandId, Micros
from ledger.log.command_codec import command_record, partition_for, topic_of
from ledger.log.crash_points import reach
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.records import Outgoing
from ledger.log.topics import Topics
from ledger.objects import ObjectStore
from projections.reads import Reads

ACTOR = "cleaner"
Asks = Sequence[tuple[Command, str]]
"""Commands, each with its id: the same for the same ask, so that a history tells a repeat."""
Ends = dict[tuple[str, int], int]
"""Of the intakes, by topic and partition."""


@dataclass(frozen=True, kw_only=True)
class Seams:
    reads: Reads
    objects: ObjectStore | None
    outbox: Outbox
    offsets: Offsets
    topics: Topics
    partitions: int
    source: str
    owned: Callable[[], frozenset[int]]
    """Partitions that this process is to clean."""
    now: Callable[[], Micros]

    async def ask(self, asks: Asks) -> None:
        """Nobody waits for the answers: the views tell what came of it. Raises `LogError`."""
        lanes: dict[tuple[str, int], list[Outgoing]] = {}
        for command, command_id in asks:
            lane = topic_of(command, self.topics), partition_for(command, self.partitions)
            record = command_record(command, CommandId(command_id), source=self.source, actor=ACTOR)
            lanes.setdefault(lane, []).append(record)
        for (topic, partition), records in lanes.items():
            await self.outbox.send(topic, partition, records)
            reach("cleaner.after_ask")

    async def ends(self) -> Ends:
        """Of both intakes now. Raises `LogError`."""
        return {
            (topic, partition): await self.offsets.end(topic, partition)
            for partition in range(self.partitions)
            for topic in (self.topics.commands, self.topics.requests)
        }

    async def shows(self, ends: Ends) -> bool:
        """Whether the views show what came of every command before these ends."""
        for (topic, partition), end in ends.items():
            if not end:
                continue
            consumed = await self.reads.consumed(partition)
            reach("cleaner.after_read")
            is_request = topic == self.topics.requests
            if consumed is None or (consumed.requests if is_request else consumed.commands) < end:
                return False
        return True
