"""An owner with nothing to do neither spins nor falls behind the time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from ledger.domain.commands import Asked, Beat, Command, RequestJob
from ledger.domain.entries import Entry, Proven
from ledger.domain.events import CommandsConsumed, RuntimeEnded, RuntimeStarted
from ledger.domain.ids import SECOND, CommandId, Micros, QueueName, RuntimeId, Session
from ledger.domain.intakes import Missing
from ledger.domain.partition import Partition
from ledger.log.errors import OffsetOutOfRange
from ledger.log.term import Term
from processors.owner.partition_owner import PartitionOwner, TermOfOffice
from processors.owner.seams import NoFeed, Seams
from tests.support.builders import requested
from tests.support.given import at_its_time

NOON = 1_800_000_000 * SECOND


class World:
    """An owner's surroundings: a clock by hand, intakes without records, a log that agrees."""

    def __init__(self) -> None:
        self.now = NOON
        self.appended: list[Entry] = []
        self.appended_at = Micros(NOON)
        self.end = 0
        self.position = 1
        """Of the commands."""
        self.gone_below = 0
        """The first offset of the commands that is there."""
        self.told: list[tuple[str, int]] = []
        """Topics and partitions to which effects were sent."""
        self.partition = Partition(0)
        seams = SimpleNamespace(
            wall=lambda: self.now,
            monotonic=lambda: self.now,
            partitions=1,
            source="test",
            feed=NoFeed(),
            snapshots=None,
            outbox=SimpleNamespace(send=self._send),
            commands=SimpleNamespace(
                take=self._take, position=lambda _: self.position, follow=lambda *_: None
            ),
            requests=SimpleNamespace(take=lambda *_: [], position=lambda _: 0),
            topics=SimpleNamespace(commands="c", events="e", replies="r"),
            offsets=SimpleNamespace(end=self._end, first=self._first),
        )
        owner = PartitionOwner(0, cast(Seams, seams))
        owner.resume()
        self.office = TermOfOffice(cast(Seams, seams), owner, cast(Term, self), self.partition)

    # What of a term the office uses.
    cursor = SimpleNamespace(offset=0)

    def fits(self, entry: Entry) -> bool:
        return True

    async def append(self, entries: Sequence[Entry]) -> list[Proven]:
        self.appended += entries
        self.appended_at = Micros(self.now)
        return [Proven(entry, 0, 0, b"") for entry in entries]

    async def _send(self, topic: str, partition: int, records: Sequence[Any]) -> None:
        self.told.append((topic, partition))

    async def _end(self, *_: Any) -> int:
        return self.end

    def _take(self, *_: Any) -> list[Any]:
        if self.gone_below > self.partition.commands and not self.office.gaps.in_commands:
            raise OffsetOutOfRange("c", 0, self.partition.commands, "it is gone")
        return []

    async def _first(self, *_: Any) -> int:
        return self.gone_below

    def reads(self, *commands: Command) -> None:
        """As one turn that stands."""
        turn = self.office._new_turn()
        for offset, command in enumerate(commands):
            read = turn.read_request if isinstance(command, RequestJob) else turn.read_command
            read(
                Asked(command, CommandId(f"c{offset}"), appended_at=Micros(self.now), offset=offset)
            )
        turn.finish()
        self.office._count_unrecorded(turn)

    async def turn(self) -> None:
        await self.office._turn()
        await self.office._settle()

    async def turns(self, seconds: int) -> int:
        """As the owner does, for so long; how many turns that took."""
        turns = 0
        until = self.now + seconds * SECOND
        while self.now < until:
            await self.turn()
            turns += 1
            self.now += self.patience()
        return turns

    def patience(self) -> int:
        """Microseconds for which it would wait now."""
        return int(self.office._patience() * SECOND)


BEAT = Beat(RuntimeId("r"), Session("s"), QueueName("default"), 1, ("sum",), period_seconds=3600.0)


async def test_while_the_broker_confirms_no_time_it_waits_and_does_not_spin() -> None:
    world = World()
    world.reads(BEAT)
    world.reads(BEAT)  # The second one leaves no entry: it is to be recorded within five seconds.
    turns = await world.turns(seconds=60)
    assert turns < 100, "a look a second, and one for what fell due"
    assert world.appended, "an entry told the time"
    assert all(type(e.events[0]) in (CommandsConsumed, RuntimeStarted) for e in world.appended)
    assert abs(world.office._new_turn().at - world.now) < 2 * SECOND


async def test_behind_a_gap_in_the_commands_nobody_is_silent_and_the_owner_does_not_spin() -> None:
    world = World()
    asked = at_its_time(requested(start_timeout_us=SECOND), Micros(NOON))
    world.partition.apply(Entry(1, Micros(NOON), 1, 0, (asked,)))
    world.reads(replace(BEAT, period_seconds=5.0))
    world.gone_below = 40
    turns = 0
    for _ in range(60):
        turns += await world.turns(seconds=10)
        world.appended_at = Micros(world.now)  # As if requests were decided meanwhile.
    assert [gap.missing for gap in world.office.gaps.found] == [Missing(1, 40)]
    assert turns < 1_200
    assert not any(type(entry.events[0]) is RuntimeEnded for entry in world.appended)
    assert len(world.partition.jobs) == 1, "its start time-out is over, and nobody may say so"
