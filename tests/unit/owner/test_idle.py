"""An owner with nothing to do neither spins nor falls behind the time."""

from __future__ import annotations

import asyncio

from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.commands import Beat, RequestJob
from ledger.domain.entries import Entry
from ledger.domain.events import CommandsConsumed, RuntimeEnded, RuntimeStarted
from ledger.domain.ids import SECOND, Micros, QueueName, RuntimeId, Session
from ledger.domain.intakes import Missing
from tests.support.builders import requested
from tests.support.given import at_its_time
from tests.unit.owner.office import NOON, World

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


async def test_what_arrives_is_looked_for_once() -> None:
    world = World()
    serving = asyncio.create_task(world.office.serve())
    for _ in range(3):
        world.stands.clear()
        world.arrive(RequestJob(type="sum", payload=Raw(b"1")))
        await world.stands.wait()
    world.owner.leave()
    await serving
    assert world.looks <= 1 + 3


async def test_beats_that_come_one_after_another_share_their_turns() -> None:
    world = World()
    world.reads(BEAT)
    serving = asyncio.create_task(world.office.serve())
    for beat in range(2, 200):
        world.arrive(replace(BEAT, beat=beat))
        await asyncio.sleep(0)
    world.owner.leave()
    await serving
    assert world.looks < 20
