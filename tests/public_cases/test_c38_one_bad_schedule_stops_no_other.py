"""timgit/pg-boss PR #864 and taskiq-python/taskiq #668: a schedule with a time zone that is none,
or an expression that cannot be read, makes the one loop over all schedules fail, and none fires.

Here such a one is refused at the door. If it is in the log all the same, by an older version or
because a zone was struck off the list, it is parked with its reason as soon as it would be due;
what has not even the form of a schedule is counted as not fitting; and all others fire, through a
change of owner too (I17, I1).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.commands import PutSchedule, Schedule
from ledger.domain.entries import Entry
from ledger.domain.events import Event, ScheduleFired, SchedulePut, ScheduleStopped
from ledger.domain.ids import CommandId
from tests.support.builders import QUEUE, instant
from tests.support.given import Given, given
from tests.unit.api.problems_of import code_of
from tests.unit.api.world import World, client_over

BAD: dict[str, dict[str, Any]] = {
    "an offset for a zone": {"timezone": "UTC+3"},
    "a zone that was struck off": {"timezone": "Gone/Zone"},
    "a zone of this machine's own": {"timezone": "localtime"},
    "a path for a zone": {"timezone": "../../etc/passwd"},
    "no zone": {"timezone": ""},
    "a NUL in the zone": {"timezone": "Europe/Ber\0lin"},
    "31 February": {"cron": "0 0 31 2 *"},
    "250 characters": {"cron": ",".join(["0"] * 121) + " * * * *"},
    "minute 60": {"cron": "60 * * * *"},
    "four fields": {"cron": "* * * *"},
    "a nickname": {"cron": "@daily"},
    "a step of nothing": {"cron": "*/0 * * * *"},
    "no expression": {"cron": ""},
    "words": {"cron": "every day at noon, please"},
}
NO_SCHEDULES: dict[str, dict[str, Any]] = {
    "400 characters": {"cron": ",".join(["0"] * 196) + " * * * *"},
    "a number for a zone": {"timezone": 3},
    "a field of a later version": {"jitter_seconds": 5},
}
GOOD = ("first", "last")


def fields(bad: dict[str, Any]) -> dict[str, Any]:
    return {"cron": "* * * * *", "type": "report", "timezone": "UTC", **bad}


def in_the_log(name: str, bad: dict[str, Any]) -> SchedulePut:
    schedule = Raw(msgspec.json.encode(fields(bad)))
    return SchedulePut(QUEUE, name, schedule, CommandId(f"put {name}"), instant(60))


def beside_good_ones(bad: dict[str, dict[str, Any]]) -> Given:
    story = given()
    for name in GOOD:
        story.when(PutSchedule(QUEUE, name, Schedule("* * * * *", "report"))).decided()
    return story.also(*(in_the_log(name, each) for name, each in bad.items()))


def a_minute_later(story: Given) -> list[Event]:
    story.owner.clock.pass_seconds(60)
    return list(story.owner.fire_schedules())


def fired(events: list[Event]) -> list[str]:
    return [event.name for event in events if isinstance(event, ScheduleFired)]


@pytest.mark.parametrize("bad", [*({name: each} for name, each in BAD.items()), BAD])
def test_what_cannot_be_understood_is_parked_and_all_others_fire(
    bad: dict[str, dict[str, Any]],
) -> None:
    story = beside_good_ones(bad)
    events = a_minute_later(story)
    stopped = {event.name: event.reason for event in events if isinstance(event, ScheduleStopped)}
    assert stopped.keys() == bad.keys()
    assert all(stopped.values())
    assert sorted(fired(events)) == list(GOOD)

    story.owner.take_over()
    for _ in range(3):
        assert sorted(fired(a_minute_later(story))) == list(GOOD)
    for name in bad:
        known = story.owner.partition.queue(QUEUE).schedules.get(name)
        assert known is not None
        assert (known.next_at, known.stopped) == (None, stopped[name])


def test_what_is_no_schedule_is_counted_and_all_others_fire() -> None:
    story = beside_good_ones({})
    partition = story.owner.partition
    events = tuple(in_the_log(name, each) for name, each in NO_SCHEDULES.items())
    partition.apply(Entry(partition.entry + 1, story.now, 0, 0, events))
    assert partition.misfits == len(NO_SCHEDULES)
    assert sorted(fired(a_minute_later(story))) == list(GOOD)


def test_once_it_is_put_right_it_fires() -> None:
    story = beside_good_ones(BAD)
    a_minute_later(story)
    for name in BAD:
        story.when(PutSchedule(QUEUE, name, Schedule("* * * * *", "report"))).decided()
    assert sorted(fired(a_minute_later(story))) == sorted([*GOOD, *BAD])


async def test_at_the_door_each_is_refused() -> None:
    world = World()
    async with client_over(world) as client:
        for name, bad in (BAD | NO_SCHEDULES).items():
            path = "/v1/queues/default/schedules/nightly"
            answer = await client.put(path, json=fields(bad))
            assert answer.status_code in (400, 422), (name, answer.text)
            assert code_of(answer)[1] in (
                "INVALID_SCHEDULE",
                "VALIDATION_FAILED",
                "MALFORMED_JSON",
            ), name
    assert world.said == []
