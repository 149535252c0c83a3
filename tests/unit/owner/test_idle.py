"""An owner with nothing to do neither spins nor falls behind the time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.commands import Beat, CancelJob, Command, HeldLease, RequestJob
from ledger.domain.deadlines import NEVER
from ledger.domain.entries import Entry
from ledger.domain.events import CommandsConsumed, RuntimeEnded, RuntimeStarted
from ledger.domain.ids import SECOND, Fence, Micros, QueueName, RuntimeId, Session, new_job_id
from ledger.domain.intakes import Missing
from processors.owner import partition_owner
from tests.support.builders import requested
from tests.support.given import at_its_time
from tests.unit.owner.office import NOON, World

BEAT = Beat(RuntimeId("r"), Session("s"), QueueName("default"), 1, ("sum",), period_seconds=3600.0)
IDLE = replace(BEAT, slots=1)
HELD = (HeldLease(new_job_id(QueueName("default"), NOON, b"none"), Fence(1)),)


async def test_while_the_broker_confirms_no_time_it_waits_and_does_not_spin() -> None:
    world = World()
    world.reads(BEAT)
    world.reads(BEAT)  # The second one leaves no entry: it is to be recorded within five seconds.
    turns = await world.turns(seconds=60)
    assert turns < 100, "one for what fell due, and now and then a look"
    assert world.appended, "an entry told the time"
    assert all(type(e.events[0]) in (CommandsConsumed, RuntimeStarted) for e in world.appended)
    world.arrive(replace(BEAT, beat=2))
    await world.turn()
    assert abs(world.office._new_turn().at - world.now) < 2 * SECOND


async def test_an_owner_that_had_nothing_to_do_knows_what_time_it_is() -> None:
    """What it knows of the brokers' clock is as old as its last append, not as its last look."""
    world = World()
    for _ in range(10):
        world.arrive(RequestJob(type="sum", payload=Raw(b"1")))
        await world.turn()
        assert abs(world.appended[-1].at - world.now) < SECOND // 10
        world.now += 4 * SECOND


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


async def test_an_owner_with_nothing_to_say_finds_out_that_somebody_else_has_taken_over() -> None:
    world = World()
    await world.turns(seconds=25)
    assert not world.appended
    world.written_by_others += 1
    await world.turns(seconds=12)
    assert world.appended, "an append finds out who"


async def test_commands_without_an_entry_are_recorded_once() -> None:
    world = World()
    world.reads(BEAT)
    world.reads(BEAT)
    for _ in range(7):
        world.appended_at = Micros(world.now)  # As if somebody else told the time meanwhile.
        world.office._clock.read(world.appended_at)
        await world.turns(seconds=1)
    assert len(world.appended) == 1


async def test_the_sessions_of_runtimes_are_looked_over_when_one_may_have_been_silent() -> None:
    world = World()
    for beat in range(1, 13):
        world.arrive(replace(IDLE, beat=beat, period_seconds=5.0))
        assert await world.turns(seconds=5) <= 3, "one that hears it, and one to settle what is due"
    assert not ended(world)
    assert await world.turns(seconds=20) < 10
    assert ended(world) == [RuntimeEnded(IDLE.queue, IDLE.runtime_id, IDLE.session, "silent")]


async def test_one_of_a_short_period_is_found_silent_beside_those_of_long_ones() -> None:
    world = World()
    world.arrive(replace(IDLE, period_seconds=3600.0))
    await world.turns(seconds=60)
    world.arrive(replace(IDLE, runtime_id=RuntimeId("brief"), period_seconds=1.0))
    await world.turns(seconds=4)
    assert [event.runtime_id for event in ended(world)] == ["brief"]


def ended(world: World) -> list[RuntimeEnded]:
    events = (event for entry in world.appended for event in entry.events)
    return [event for event in events if isinstance(event, RuntimeEnded)]


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


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> World:
    """An owner that heard of an idle runtime, and whose rests have no end of their own."""
    monkeypatch.setattr(partition_owner, "REST_SECONDS", 3600.0)
    monkeypatch.setattr(partition_owner, "IDLE_SECONDS", 3600.0)
    world = World()
    world.office._silence_at = NEVER
    world.reads(IDLE)
    return world


async def test_beats_of_the_idle_wait_for_each_other(resting: World) -> None:
    serving = asyncio.create_task(resting.office.serve())
    for beat in range(2, 50):
        resting.arrive(replace(IDLE, beat=beat))
        await asyncio.sleep(0)
    assert resting.looks < 5
    resting.owner.leave()
    await serving


@pytest.mark.parametrize(
    "other",
    [
        RequestJob(type="other", payload=Raw(b"1")),
        CancelJob(new_job_id(QueueName("default"), NOON, b"none")),
    ],
)
async def test_nothing_else_waits_for_beats(resting: World, other: Command) -> None:
    serving = asyncio.create_task(resting.office.serve())
    for beat in range(2, 10):
        resting.arrive(replace(IDLE, beat=beat))
        await asyncio.sleep(0)
    resting.arrive(other)
    async with asyncio.timeout(60):
        await resting.stands.wait()
    resting.owner.leave()
    await serving


@pytest.mark.parametrize("beat", [replace(IDLE, slots=0), replace(IDLE, leases=HELD)])
async def test_who_holds_something_or_is_not_ready_waits_for_nobody(
    resting: World, beat: Beat
) -> None:
    serving = asyncio.create_task(resting.office.serve())
    for number in range(2, 10):
        resting.told.clear()
        resting.arrive(replace(beat, beat=number))
        async with asyncio.timeout(60):
            while not resting.told:  # noqa: ASYNC110
                await asyncio.sleep(0)
    resting.owner.leave()
    await serving
