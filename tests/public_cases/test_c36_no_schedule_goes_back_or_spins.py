"""agronholm/apscheduler #1021 and #980: in an hour that a clock repeats, the next time of a trigger
is the one that it has just had, and the scheduler spins on it for ever.

Here each time is later than the instant that was asked about, from anywhere in either pass of the
hour, around every kind of change of two hundred years; and an owner fires each time once (I17).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from ledger.domain.commands import PutSchedule, Schedule
from ledger.domain.cron import Cron, parsed
from ledger.domain.events import ScheduleFired
from ledger.domain.ids import Micros, micros_of
from tests.support.builders import QUEUE
from tests.support.clock import Clock
from tests.support.clock_changes import EPOCH, MINUTE, ClockChange, all_kinds
from tests.support.given import given

FAR = timedelta(days=3)


def expressions(change: ClockChange) -> tuple[str, ...]:
    """Those of the very minutes that are skipped or come twice, among others."""
    first, then = change.at + change.before, change.at + change.after
    return (
        f"{first.minute} {first.hour} * * *",
        f"{then.minute},{first.minute} {then.hour},{first.hour} * * *",
        "*/20 * * * *",
    )


def starts(change: ClockChange) -> list[Micros]:
    """Before, at and behind the change, in the first pass of an hour and in its second."""
    shift = abs(change.after - change.before)
    zone = ZoneInfo(change.zone)
    shown = (change.at + change.after).replace(tzinfo=zone)
    passes = [shown.replace(fold=fold).astimezone(UTC) for fold in (0, 1)]
    moments = {change.at - MINUTE, change.at + shift / 2, *passes}
    return [micros_of(moment) for moment in moments]


def test_from_wherever_one_asks_each_time_is_later_than_the_one_before() -> None:
    for change in all_kinds():
        if change.at - FAR < EPOCH:
            continue
        for expression in expressions(change):
            times = parsed(expression, change.zone)
            assert isinstance(times, Cron)
            for start in starts(change):
                found = (start, *times.next_runs(start, 2))
                assert len(found) == 3
                assert all(one < other for one, other in pairwise(found)), (change, expression)


def test_an_owner_fires_each_time_once_through_a_repeated_hour() -> None:
    story = given()
    end = datetime(2026, 10, 25, 6, tzinfo=UTC)
    story.owner.clock = Clock(micros_of(end - timedelta(hours=8)))
    every = Schedule("*/30 * * * *", "report", timezone="Europe/Berlin", catch_up="all")
    once = Schedule("30 2 * * *", "report", timezone="Europe/Berlin", catch_up="all")
    for name, schedule in (("every", every), ("once", once)):
        story.when(PutSchedule(QUEUE, name, schedule)).decided()
    fired: list[ScheduleFired] = []
    while story.owner.clock.now < micros_of(end):
        story.owner.clock.pass_seconds(7 * 60)
        said = story.owner.fire_schedules()
        fired += [event for event in said if isinstance(event, ScheduleFired)]
    every_time = [event.nominal_at for event in fired if event.name == "every"]
    assert every_time == sorted(set(every_time))
    assert len(every_time) == 16
    (once_a_day,) = [event.nominal_at for event in fired if event.name == "once"]
    assert once_a_day == micros_of(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
