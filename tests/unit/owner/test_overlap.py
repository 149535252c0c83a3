"""The next turn is decided while what the last one appended is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ledger.domain.commands import RequestJob
from ledger.domain.entries import Entry, Proven
from tests.unit.owner.office import World

TURN = 150
"""Requests, more than what is followed by a pause."""
TO_THE_SOCKET = 4
"""Steps of the loop that an append takes through the producer's tasks."""


class Burst(World):
    """More has arrived than one turn reads. Whoever appends waits for the brokers."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.left_in: list[int] = []
        """How many turns had begun as an append left."""
        self.acknowledged = asyncio.Event()
        self.arrive(*(RequestJob(type="sum") for _ in range(turns * TURN)))

    def _take_requests(self, *_: Any) -> list[Any]:
        taken, self.requests = self.requests[:TURN], self.requests[TURN:]
        return taken

    async def append(self, entries: Sequence[Entry]) -> list[Proven]:
        for _ in range(TO_THE_SOCKET):
            await asyncio.sleep(0)
        self.left_in.append(self.looks)
        await self.acknowledged.wait()
        return await super().append(entries)


async def test_what_a_turn_appends_leaves_before_the_next_is_decided() -> None:
    world = Burst(turns=3)
    serving = asyncio.create_task(world.office.serve())
    for _ in range(100):
        await asyncio.sleep(0)
    assert world.left_in == [1]
    assert world.looks == 2, "the second is decided while the first is under way, the third is not"
    world.acknowledged.set()
    world.owner.leave()
    await serving
    assert len(world.partition.jobs) == 2 * TURN, "what was decided stands"
