"""What jobs cost an owner and a projector, counted: the same on any machine, however busy."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Raw

from ledger.domain.commands import Beat, Report, ReportedResult, RequestJob
from ledger.domain.events import LeaseGranted, RuntimeStarted
from ledger.domain.ids import QueueName, RuntimeId, Session
from ledger.log.partitions import INBOX_PARTITIONS, partition_of
from projections.feed import ProjectorFeed
from tests.unit.owner.office import NOON, World
from tests.unit.projections.histories import Script
from tests.unit.projections.recorded_views import LogOf, Views

QUEUE = QueueName("default")
FEW, MANY = 20, 400
"""Commands that one turn reads."""
REPORTED = 200
"""Words in one record."""


# --- Records and batches --------------------------------------------------------------------------
async def test_jobs_that_begin_and_end_take_four_records_each_and_two_appends_in_all() -> None:
    world = World()
    world.office._release.inboxes.add(QUEUE)
    beat = Beat(RuntimeId("r"), Session("s"), QUEUE, 1, ("sum",), slots=MANY)
    world.arrive(beat, *(RequestJob(type="sum", payload=Raw(b"1")) for _ in range(MANY)))
    await world.turn()
    await world.office._drain()
    granted = [e for entry in world.appended for e in entry.events if type(e) is LeaseGranted]
    assert len(granted) == MANY
    assert len(world.told_records) == 2, "all assignments in one record; the answer to the beat"
    words = tuple(ReportedResult(e.job_id, e.fence, output=Raw(b"2")) for e in granted)
    reports = [
        Report(RuntimeId("r"), Session("s"), QUEUE, words[first : first + REPORTED])
        for first in range(0, MANY, REPORTED)
    ]
    world.arrive(*reports)
    await world.turn()
    await world.office._drain()
    kinds = Counter(type(event) for entry in world.appended for event in entry.events)
    assert kinds.pop(RuntimeStarted) == 1
    assert set(kinds.values()) == {MANY}
    assert len(kinds) == 4
    assert world.appends == 2
    assert not world.partition.jobs


# --- Tasks and futures ----------------------------------------------------------------------------
MadeBy = Callable[[pytest.MonkeyPatch, int], Awaitable[tuple[int, int]]]


class Counted:
    """Tasks and futures of the running loop, from here on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.tasks = 0
        self.futures = 0
        loop = asyncio.get_running_loop()
        create = loop.create_future

        def task(its: Any, work: Any, **words: Any) -> asyncio.Task[Any]:
            self.tasks += 1
            return asyncio.Task(work, loop=its, **words)

        def future() -> asyncio.Future[Any]:
            self.futures += 1
            return create()

        patch.setattr(loop, "create_future", future)
        before = loop.get_task_factory()
        loop.set_task_factory(task)
        self.end: Callable[[], None] = lambda: loop.set_task_factory(before)


async def made_by_an_owner(patch: pytest.MonkeyPatch, many: int) -> tuple[int, int]:
    """Tasks and futures of a turn that reads so many requests and gives them to a runtime."""
    world = World()
    world.office._release.inboxes.add(QUEUE)
    beat = Beat(RuntimeId("r"), Session("s"), QUEUE, 1, ("sum",), slots=many)
    world.arrive(beat, *(RequestJob(type="sum", payload=Raw(b"1")) for _ in range(many)))
    counted = Counted(patch)
    await world.turn()
    await world.office._drain()
    counted.end()
    patch.undo()
    granted = [e for entry in world.appended for e in entry.events if type(e) is LeaseGranted]
    assert len(granted) == many
    assert ("i", partition_of("r", INBOX_PARTITIONS)) in world.told
    return counted.tasks, counted.futures


async def made_by_a_projector(patch: pytest.MonkeyPatch, many: int) -> tuple[int, int]:
    """Tasks and futures of a feed that is offered so many jobs at once, until all are applied."""
    script = Script()
    for _ in range(many):
        script.submit()
    [batch] = script.batches((0,))
    views, stop = Views(), asyncio.Event()
    feed = ProjectorFeed(views, LogOf([]).read, now=lambda: NOON)
    counted = Counted(patch)
    feed.follow(0)
    feed.offer(0, 0, batch.items, batch.jobs)
    running = asyncio.get_running_loop().create_task(feed.run(stop))
    await views.reached(batch.after)
    stop.set()
    await running
    counted.end()
    patch.undo()
    assert views.events >= many
    return counted.tasks, counted.futures


@pytest.mark.parametrize("made_by", [made_by_an_owner, made_by_a_projector])
async def test_no_task_or_future_is_made_for_an_event(
    made_by: MadeBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = await made_by(monkeypatch, FEW)
    many = await made_by(monkeypatch, MANY)
    assert many == few
