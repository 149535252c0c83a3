"""An owner with nothing to do neither spins nor falls behind the time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from ledger.domain.commands import Asked, Beat, Command, RequestJob
from ledger.domain.entries import Entry, Proven
from ledger.domain.events import CommandsConsumed, RuntimeStarted
from ledger.domain.ids import SECOND, CommandId, Micros, QueueName, RuntimeId, Session
from ledger.domain.partition import Partition
from ledger.log.term import Term
from processors.owner.partition_owner import PartitionOwner, TermOfOffice
from processors.owner.seams import NoFeed, Seams

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
        self.partition = Partition(0)
        seams = SimpleNamespace(
            wall=lambda: self.now,
            monotonic=lambda: self.now,
            partitions=1,
            source="test",
            feed=NoFeed(),
            commands=SimpleNamespace(take=lambda *_: [], position=lambda _: self.position),
            requests=SimpleNamespace(take=lambda *_: [], position=lambda _: 0),
            topics=SimpleNamespace(commands="c", events="e", replies="r"),
            offsets=SimpleNamespace(end=self._end),
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

    async def _end(self, *_: Any) -> int:
        return self.end

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

    def patience(self) -> int:
        """Microseconds for which it would wait now."""
        return int(self.office._patience() * SECOND)


BEAT = Beat(RuntimeId("r"), Session("s"), QueueName("default"), 1, ("sum",), period_seconds=3600.0)


async def test_while_the_broker_confirms_no_time_it_waits_and_does_not_spin() -> None:
    world = World()
    world.reads(BEAT)
    world.reads(BEAT)  # The second one leaves no entry: it is to be recorded within five seconds.
    turns = 0
    until = world.now + 60 * SECOND
    while world.now < until:
        await world.turn()
        turns += 1
        world.now += world.patience()
    assert turns < 100, "a look a second, and one for what fell due"
    assert world.appended, "an entry told the time"
    assert all(type(e.events[0]) in (CommandsConsumed, RuntimeStarted) for e in world.appended)
    assert abs(world.office._new_turn().at - world.now) < 2 * SECOND
