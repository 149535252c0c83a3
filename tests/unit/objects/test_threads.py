"""The threads in which a store makes its calls."""

from __future__ import annotations

import asyncio
from threading import Event

from ledger.objects.threads import Threads

PATIENCE_SECONDS = 30.0


async def test_what_closes_comes_behind_a_call_that_nobody_waits_for_any_more() -> None:
    threads = Threads(2)
    begun, answered, closed = Event(), Event(), Event()
    closed_early: list[bool] = []

    def call() -> None:
        begun.set()
        assert answered.wait(PATIENCE_SECONDS)
        closed_early.append(closed.is_set())

    caller = asyncio.create_task(threads.run(call))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    caller.cancel()
    await asyncio.wait([caller])
    threads.close(then=closed.set)
    assert not closed.is_set()
    answered.set()
    assert await asyncio.to_thread(closed.wait, PATIENCE_SECONDS)
    assert closed_early == [False]


async def test_what_comes_when_nobody_waits_any_more_is_handed_over_to_be_closed() -> None:
    threads = Threads(1)
    begun, answered, given_up = Event(), Event(), Event()
    late: list[str] = []

    def call() -> str:
        begun.set()
        assert answered.wait(PATIENCE_SECONDS)
        return "a body"

    caller = asyncio.create_task(threads.run(call, late.append))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    answered.set()
    threads.close(then=given_up.set)
    assert await asyncio.to_thread(given_up.wait, PATIENCE_SECONDS)
    assert late == ["a body"]


async def test_what_is_waited_for_is_not_handed_over() -> None:
    threads = Threads(1)
    late: list[int] = []
    assert await threads.run(lambda: 1, late.append) == 1
    threads.close()
    assert late == []


async def test_with_no_call_under_way_it_is_closed_at_once() -> None:
    threads = Threads(1)
    assert await threads.run(lambda: 1) == 1
    closed = Event()
    threads.close(then=closed.set)
    assert await asyncio.to_thread(closed.wait, PATIENCE_SECONDS)
