from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.api.world import Client, World, client_over


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    async with client_over(world) as client:
        yield client
