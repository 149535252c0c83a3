"""sidekiq/sidekiq #6804 and hexpm/bob #257: a schedule's time comes while one scheduler hands over
to the next. Nobody makes the job, or each instance makes one.

Here an occurrence is named by its schedule and its nominal time, and is fired by an entry of which
there can be one (I17): an owner that was killed a moment before, at, or after the time, and two at
once who both believe that they are the owner, make one job a nominal time between them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from ledger.domain.commands import PutSchedule, Schedule
from ledger.domain.events import JobRequested, ScheduleFired, ScheduleSkipped
from ledger.domain.ids import SECOND, Micros, QueueName
from processors.owner.seams import wall_clock
from tests.public_cases.conftest import NewLedger
from tests.support.processes import Cluster
from tests.support.verdicts import sound_history

MINUTE = 60 * SECOND
SCHEDULES = 20
BEFORE_US = SECOND
"""So long before the nominal time an owner's clock begins."""
BOTH_BEFORE_US = 4 * SECOND
"""Likewise, of two that start together."""
AGO_US = 10 * MINUTE
"""The owners' clocks are behind by so much at first: each test moves them on to its minutes."""


def clock_of(cluster: Cluster, name: str) -> int:
    """How far that owner's clock is behind the machine's, once it was looked at; else 0."""
    lines = map(json.loads, cluster.children[name].output.splitlines())
    return next((line["behind"] for line in lines if line["event"] == "rival.clock"), 0)


async def begin(cluster: Cluster, name: str, instant: int) -> int:
    """An owner whose clock begins at that instant. How far it is behind."""
    cluster.lone_owner(name, str(instant))
    await cluster.until(lambda: clock_of(cluster, name) > 0, seconds=60, what=f"{name} took over")
    return clock_of(cluster, name)


async def until_wall(instant: int) -> None:
    await asyncio.sleep(max(0, instant - wall_clock()) / SECOND)


async def have_fired(cluster: Cluster, nominal: int) -> None:
    await cluster.ledger.until(
        lambda events: (
            sum(isinstance(e, ScheduleFired) and e.nominal_at == nominal for e in events)
            >= SCHEDULES
        )
    )


async def scheduled(cluster: Cluster) -> Micros:
    """With schedules of every minute. The first."""
    minute = (wall_clock() - AGO_US) // MINUTE * MINUTE
    await begin(cluster, "first", minute + SECOND)
    schedule = Schedule("* * * * *", "told", catch_up="all")
    async with cluster.ledger.client() as client:
        for number in range(SCHEDULES):
            put = PutSchedule(QueueName("default"), f"s{number}", schedule)
            assert (await client.ask(put)).outcome == "accepted"
    cluster.kill("first")
    return Micros(minute + MINUTE)


async def each_has_fired_once_a_minute(cluster: Cluster, first: int, last: int) -> None:
    history = await sound_history(cluster)
    fired = Counter((event.name, event.nominal_at) for event in history.all(ScheduleFired))
    assert set(fired.values()) == {1}
    minutes = range(first, last + MINUTE, MINUTE)
    assert fired.keys() >= {(f"s{n}", at) for n in range(SCHEDULES) for at in minutes}
    assert history.all(ScheduleSkipped) == []
    assert len(history.all(JobRequested)) == len(history.jobs()) == len(fired)


@pytest.mark.slow
async def test_an_owner_that_is_killed_about_the_time_is_followed_by_one_that_fires_what_is_left(
    new_ledger: NewLedger,
) -> None:
    cluster = await new_ledger()
    first = minute = await scheduled(cluster)
    for after_us in (-10_000, 0, 10_000):
        behind = await begin(cluster, "owner", minute - BEFORE_US)
        await until_wall(minute + behind + after_us)
        cluster.kill("owner")
        await begin(cluster, "owner", minute + SECOND)
        await have_fired(cluster, minute)
        cluster.kill("owner")
        minute = Micros(minute + MINUTE)
    await each_has_fired_once_a_minute(cluster, first, minute - MINUTE)


async def test_two_owners_at_once_fire_it_once(new_ledger: NewLedger) -> None:
    cluster = await new_ledger()
    minute = await scheduled(cluster)
    await asyncio.gather(
        *(begin(cluster, name, minute - BOTH_BEFORE_US) for name in ("one", "other"))
    )
    await have_fired(cluster, minute)
    # For the one who has not heard of the other yet, something to decide.
    async with cluster.ledger.client() as client:
        later = PutSchedule(QueueName("default"), "later", Schedule("0 0 1 1 *", "told"))
        assert (await client.ask(later)).outcome == "accepted"
    await cluster.until(
        lambda: bool(cluster.logged("owner.fenced")), seconds=60, what="one was fenced"
    )
    await each_has_fired_once_a_minute(cluster, minute, minute)
