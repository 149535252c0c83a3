"""Bodies that are larger than a command may be: few at once, since each is held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.problems import refused

LARGE_BODIES_MAX = 4
"""At once in one process. Read and parsed, a body takes some ten times its size."""
ROOM_SECONDS = 5.0
"""How long a request waits for its turn, then OVERLOADED."""


class LargeBodies:
    def __init__(self, many: int = LARGE_BODIES_MAX) -> None:
        self._room = asyncio.Semaphore(many)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises `Refused` with OVERLOADED."""
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise refused("OVERLOADED", "as many large bodies as are held at once are") from None
        try:
            yield
        finally:
            self._room.release()
