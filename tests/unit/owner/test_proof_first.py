"""Nobody is told of what is not proven."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledger.domain.commands import Asked, RequestJob
from ledger.domain.entries import Entry, Proven
from ledger.domain.ids import CommandId, Micros
from ledger.log.errors import OutcomeUnknown
from processors.owner.partition_owner import Decided
from tests.unit.owner.office import World


class Slow(World):
    """A log that takes its time to say whether an append stands."""

    def __init__(self) -> None:
        super().__init__()
        self.proof: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def append(self, entries: Sequence[Entry]) -> list[Proven]:
        await self.proof
        return await super().append(entries)

    async def finish(self) -> None:
        """A turn with one request, for whose outcome somebody waits."""
        turn = self.office._new_turn()
        command_id, at = CommandId("c1"), Micros(self.now)
        turn.read_request(Asked(RequestJob("sum"), command_id, "", "0/me", None, at, 0))
        turn.finish()
        await self.office._finish(Decided(turn, self.office._release.records(turn.effects, at), {}))
        await self.office._drain()


async def test_a_reply_leaves_once_its_entry_is_proven() -> None:
    world = Slow()
    finishing = asyncio.create_task(world.finish())
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.told == []
    world.proof.set_result(None)
    await finishing
    assert world.told == [("r", 0)]


async def test_of_an_append_that_may_not_stand_nobody_is_told() -> None:
    world = Slow()
    world.proof.set_exception(OutcomeUnknown("no answer"))
    with pytest.raises(OutcomeUnknown):
        await world.finish()
    await world.office._drain()
    assert world.told == []
