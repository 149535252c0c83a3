"""Silence counts only once all that had arrived by then is read."""

from __future__ import annotations

from ledger.domain.commands import Claim, GatewayBeat, RequestJob
from ledger.domain.events import LeaseReleased
from ledger.domain.ids import SECOND, RuntimeId
from processors.owner.credit import LISTED_US
from tests.unit.owner.by_hand import QUEUE
from tests.unit.owner.office import World


def released(world: World) -> int:
    return sum(isinstance(e, LeaseReleased) for entry in world.appended for e in entry.events)


async def test_a_grant_is_not_released_while_its_confirmation_may_lie_unread() -> None:
    world = World()
    world.reads(GatewayBeat(0), RequestJob(type="sum"), Claim(RuntimeId("r"), (QUEUE,), ("sum",)))
    world.end = world.position + 1  # Something lies in the commands that is not read yet.
    world.now += LISTED_US
    for _ in range(3):
        await world.turn()
    assert released(world) == 0
    world.position = world.end
    await world.turn()
    assert released(world) == 1


async def test_an_owner_looks_for_what_was_not_confirmed_when_it_is_due() -> None:
    world = World()
    world.reads(GatewayBeat(0), RequestJob(type="sum"), Claim(RuntimeId("r"), (QUEUE,), ("sum",)))
    due = world.now + LISTED_US
    while not released(world):
        assert world.now <= due + SECOND // 100
        await world.turn()
        world.now += world.patience()
