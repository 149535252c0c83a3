"""pallets-eco/croniter #258: where a clock changes by half an hour, as on Lord Howe, a time that is
due is passed over, and "next", "previous" and "does it match" say three different things.

Here the rule is written down (`ledger.domain.cron`), and what is due is what every minute of real
time says one by one, in every zone and around every kind of change of two hundred years; next,
last and match agree (I17).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ledger.domain.cron import Cron, parsed
from ledger.domain.ids import SECOND, Micros, micros_of
from tests.support.clock_changes import EPOCH, MINUTE, ClockChange, all_kinds

AROUND = timedelta(minutes=100)
KINDS_MIN = 400


def cron(expression: str, zone: str) -> Cron:
    found = parsed(expression, zone)
    assert isinstance(found, Cron), found
    return found


def around(change: ClockChange, minute: int) -> list[Micros]:
    """The instants at which a clock on the wall shows that minute of any hour."""
    instants = []
    moment = change.at - AROUND
    while moment <= change.at + AROUND:
        offset = change.before if moment < change.at else change.after
        if (moment + offset).minute == minute:
            instants.append(micros_of(moment))
        moment += MINUTE
    return instants


def test_there_are_changes_by_other_than_hours() -> None:
    shifts = {change.minutes for change in all_kinds()}
    assert {-60, -30, 15, 30, 40, 60} <= shifts
    assert len(all_kinds()) >= KINDS_MIN
    assert max(change.at for change in all_kinds()) > EPOCH + timedelta(days=199 * 365)


def test_every_minute_that_the_clock_shows_is_due_around_every_change() -> None:
    for change in all_kinds():
        if change.at - AROUND < EPOCH:
            continue
        minute = (change.at + change.after).minute
        times = cron(f"{minute} * * * *", change.zone)
        expected = around(change, minute)
        start = Micros(micros_of(change.at - AROUND) - 1)
        end = micros_of(change.at + AROUND)
        assert list(times.between(start, end, 100)) == expected, change


def test_next_last_and_match_agree_around_every_change() -> None:
    for change in all_kinds():
        if change.at - AROUND < EPOCH:
            continue
        minute = (change.at + change.after).minute
        times = cron(f"{minute} * * * *", change.zone)
        before, *expected = around(change, minute)
        for instant in expected:
            assert times.next_after(before) == instant, change
            assert times.next_after(Micros(instant - 1)) == instant, change
            assert times.last_until(before, Micros(instant + SECOND)) == instant, change
            before = instant


@pytest.mark.parametrize("year", range(2008, 2170, 23))
def test_on_lord_howe_half_past_two_comes_every_day(year: int) -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    times = cron("30 2 * * *", zone.key)
    start = datetime(year, 1, 1, tzinfo=zone).astimezone(UTC)
    days = (datetime(year + 1, 1, 1, tzinfo=zone).astimezone(UTC) - start) // timedelta(days=1)
    runs = times.next_runs(micros_of(start), days)
    shown = [datetime.fromtimestamp(run / SECOND, UTC).astimezone(zone) for run in runs]
    assert [moment.timetuple().tm_yday for moment in shown] == list(range(1, days + 1))
    assert {(moment.hour, moment.minute) for moment in shown} == {(2, 30)}
