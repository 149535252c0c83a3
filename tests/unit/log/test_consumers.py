"""How a consumer of aiokafka's is stopped, whatever comes out of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledger.log.connection import Connection
from ledger.log.consumers import stop

CONNECTION = Connection(bootstrap="127.0.0.1:1")


class Part:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


class Consumer:
    """Whose `stop` ends half-way with an error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._coordinator = None
        self._fetcher = Part(error)
        self._client = Part()

    async def stop(self) -> None:
        raise self._error


class Waiting(Consumer):
    def __init__(self) -> None:
        super().__init__(AssertionError())
        self.stopping = asyncio.Event()

    async def stop(self) -> None:
        self.stopping.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), TimeoutError()], ids=repr)
async def test_what_comes_out_of_a_consumer_s_own_tasks_reaches_nobody(
    error: BaseException,
) -> None:
    consumer: Any = Consumer(error)
    await stop(consumer, CONNECTION)
    assert (consumer._fetcher.closed, consumer._client.closed) == (1, 1)


async def test_whoever_is_cancelled_while_it_stops_is_cancelled() -> None:
    consumer: Any = Waiting()
    task = asyncio.create_task(stop(consumer, CONNECTION))
    await consumer.stopping.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
