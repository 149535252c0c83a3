"""A part of a worker, under Faust: however it ends by itself, the worker hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from processors.app import WorkerCrashed, supervised

PATIENCE_SECONDS = 30.0
Work = Callable[[asyncio.Event], Awaitable[None]]


async def cancelled_by_nobody(stop: asyncio.Event) -> None:
    raise asyncio.CancelledError


async def over(stop: asyncio.Event) -> None:
    """It returns."""


async def failed(stop: asyncio.Event) -> None:
    raise ValueError("nobody has thought of this")


async def at_work(stop: asyncio.Event) -> None:
    await stop.wait()


@pytest.mark.parametrize(
    ("work", "reason"),
    [(cancelled_by_nobody, WorkerCrashed), (over, WorkerCrashed), (failed, ValueError)],
)
async def test_a_part_that_ends_by_itself_is_a_crash(
    work: Work, reason: type[BaseException]
) -> None:
    part = supervised("Part", work)()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await part.start()
        await part.wait_until_stopped()
    assert isinstance(part.crash_reason, reason)
    await part.stop()


async def test_a_part_that_is_told_to_stop_is_none() -> None:
    part = supervised("Part", at_work)()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await part.start()
        await part.stop()
    assert part.crash_reason is None
