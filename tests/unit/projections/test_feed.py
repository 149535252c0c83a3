"""From where a feed takes what it applies: from the owner as soon as it can, else from the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledger.domain.ids import Micros
from projections import feed as feed_module
from projections.batches import Batch
from projections.feed import ProjectorFeed
from tests.unit.projections.histories import NOON, Script
from tests.unit.projections.recorded_views import LogOf, Views


def history(*edges: int) -> list[Batch]:
    """A take-over and five requests, cut before these items."""
    script = Script()
    for _ in range(5):
        script.submit()
    return script.batches(edges)


@asynccontextmanager
async def fed(views: Views, log: LogOf, *, room: int = 50_000) -> AsyncIterator[ProjectorFeed]:
    stop = asyncio.Event()
    feed = ProjectorFeed(views, log.read, now=lambda: Micros(NOON), buffered_events_max=room)
    running = asyncio.create_task(feed.run(stop))
    yield feed
    stop.set()
    await running


async def test_views_that_stand_where_the_owner_begins_read_no_log() -> None:
    done, new = history(3)
    views, log = Views(done.after), LogOf([*done.items, *new.items])
    async with fed(views, log) as feed:
        feed.follow(0, done.after)
        feed.offer(0, new.before, new.items, new.jobs)
        await views.reached(new.after)
    assert log.begun == 0


async def test_views_that_are_behind_read_the_log_up_to_where_the_owner_begins() -> None:
    done, new = history(3)
    views, log = Views(), LogOf(done.items)
    async with fed(views, log) as feed:
        feed.follow(0, done.after)
        await log.left.wait()
        assert (views.offset, log.readers) == (done.after, 0)
        feed.offer(0, new.before, new.items, new.jobs)
        await views.reached(new.after)
    assert log.begun == 1


async def test_of_an_owner_that_says_nothing_yet_the_log_is_read() -> None:
    done, new = history(3)
    views, log = Views(), LogOf([*done.items, *new.items])
    async with fed(views, log) as feed:
        feed.follow(0)
        await views.reached(new.after)
        assert log.readers == 1


async def test_what_was_dropped_for_want_of_room_is_read_from_the_log() -> None:
    done, dropped, new = history(2, 5)
    views, log = Views(), LogOf([*done.items, *dropped.items])
    async with fed(views, log, room=2) as feed:
        feed.follow(0, done.after)
        assert not feed.offer(0, dropped.before, dropped.items, dropped.jobs)
        await log.left.wait()
        assert views.offset == dropped.after
        assert feed.offer(0, new.before, new.items, new.jobs)
        await views.reached(new.after)


async def test_when_nothing_has_come_for_a_while_the_views_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.01)
    (new,) = history()
    views, log = Views(), LogOf([])
    async with fed(views, log) as feed:
        feed.follow(0)
        feed.offer(0, new.before, new.items, new.jobs)
        await views.reached(new.after)
        views.rested.clear()
        await views.rested.wait()
