"""Cron: what is refused, and when the rest is due, around every change of the clocks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from ledger.domain.cron import LENGTH_MAX, Cron, parsed
from ledger.domain.ids import Micros, micros_of
from ledger.domain.wrong import Wrong

pytestmark = pytest.mark.rule("S2.6")

MINUTE = timedelta(minutes=1)
FIRST, LAST = datetime(2024, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)


def cron(expression: str, zone: str = "UTC") -> Cron:
    found = parsed(expression, zone)
    assert isinstance(found, Cron), found
    return found


def at(text: str, zone: str = "UTC", fold: int = 0) -> Micros:
    return micros_of(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold))


def local(instant: Micros, zone: str) -> str:
    moment = datetime.fromtimestamp(instant / 1e6, UTC).astimezone(ZoneInfo(zone))
    return moment.isoformat(timespec="minutes")


def runs(expression: str, zone: str, after: str, count: int) -> list[str]:
    found = cron(expression, zone).next_runs(at(after, zone), count)
    return [local(instant, zone) for instant in found]


# --- What is refused -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * *",
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "1, * * * *",
        "0 0 15W * *",
        "0 0 ? * *",
        "0 0 * * MON#6",
        "@reboot",
        "@daily",
        "\u0663 * * * *",
        "0 0 * * FR\u0131",
        "0\u00a00 * * *",
        "0\n0 * * *",
        " 0 0 * * *",
        "0 0 * * *;",
        "0 0 * * * UTC",
        "0," * 100 + "0 * * * *",
        "-1 * * * *",
        "1.5 * * * *",
    ],
)
def test_what_is_no_expression_of_five_fields_that_happens_is_refused(expression: str) -> None:
    wrong = parsed(expression, "UTC")
    assert isinstance(wrong, Wrong)
    assert wrong.pointer == "/cron"
    assert 0 < len(wrong.message) < 200


def test_a_nickname_is_answered_with_what_to_write() -> None:
    wrong = parsed("@hourly", "UTC")
    assert isinstance(wrong, Wrong)
    assert "0 * * * *" in wrong.message
    assert isinstance(parsed("0 * * * *", "UTC"), Cron)


def test_the_longest_list_of_minutes_fits_and_four_hundred_characters_do_not() -> None:
    every = ",".join(str(minute) for minute in range(60))
    assert isinstance(parsed(f"{every} * * * *", "UTC"), Cron)
    wrong = parsed("0," * 200 + "0 * * * *", "UTC")
    assert wrong == Wrong("/cron", f"an expression has {LENGTH_MAX} characters at most")


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "UTC+3",
        "CEST",
        "Europe",
        "Europe/Nowhere",
        "../../etc/passwd",
        "/etc/localtime",
        "Europe/../Europe/Berlin",
        "localtime",
        "posixrules",
        "right/UTC",
        "posix/UTC",
        "Europe/Berlin\0",
        "Europe/Berlin ",
    ],
)
def test_what_the_iana_list_does_not_name_is_no_zone(zone: str) -> None:
    wrong = parsed("0 0 * * *", zone)
    assert isinstance(wrong, Wrong)
    assert wrong.pointer == "/timezone"


def test_another_case_of_a_zone_is_refused_with_the_right_one() -> None:
    assert parsed("0 0 * * *", "europe/berlin") == Wrong("/timezone", "write Europe/Berlin")


@given(st.text(max_size=60), st.sampled_from(["UTC", "Asia/Gaza"]))
@settings(max_examples=300)
def test_any_text_is_parsed_or_refused(text: str, zone: str) -> None:
    assert isinstance(parsed(text, zone), Cron | Wrong)


@given(st.text("0123456789*/,-#LWMONFEBJAU ", min_size=9, max_size=30))
@settings(max_examples=300, deadline=None)
def test_what_looks_like_an_expression_runs_in_time_or_is_refused(text: str) -> None:
    found = parsed(text, "Europe/Berlin")
    if isinstance(found, Cron):
        now = micros_of(FIRST)
        following = found.next_after(now)
        assert following is not None
        assert following > now


# --- The clocks ----------------------------------------------------------------------------------
def test_a_fixed_time_in_a_gap_is_at_the_first_instant_after_it() -> None:
    assert runs("30 2 * * *", "Europe/Berlin", "2024-03-30T12:00", 2) == [
        "2024-03-31T03:00+02:00",
        "2024-04-01T02:30+02:00",
    ]


def test_two_fixed_times_in_a_gap_and_one_at_its_end_are_one() -> None:
    assert runs("0,30 2,3 * * *", "Europe/Berlin", "2024-03-30T12:00", 3) == [
        "2024-03-31T03:00+02:00",
        "2024-03-31T03:30+02:00",
        "2024-04-01T02:00+02:00",
    ]


def test_a_fixed_time_in_a_repeated_hour_is_at_its_first() -> None:
    assert runs("30 2 * * *", "Europe/Berlin", "2024-10-26T12:00", 2) == [
        "2024-10-27T02:30+02:00",
        "2024-10-28T02:30+01:00",
    ]


def test_asked_from_the_second_pass_of_an_hour_a_fixed_time_does_not_go_back() -> None:
    now = at("2024-10-27T02:10", "Europe/Berlin", fold=1)
    following = cron("30 2 * * *", "Europe/Berlin").next_after(now)
    assert following == at("2024-10-28T02:30", "Europe/Berlin")


def test_a_wildcard_has_none_in_a_gap_and_both_of_a_repeated_hour() -> None:
    assert runs("*/30 2 * * *", "Europe/Berlin", "2024-03-31T00:00", 1) == [
        "2024-04-01T02:00+02:00"
    ]
    assert runs("*/30 2 * * *", "Europe/Berlin", "2024-10-27T00:00", 4) == [
        "2024-10-27T02:00+02:00",
        "2024-10-27T02:30+02:00",
        "2024-10-27T02:00+01:00",
        "2024-10-27T02:30+01:00",
    ]


def test_the_half_hour_of_lord_howe_loses_no_run() -> None:
    assert runs("30 * * * *", "Australia/Lord_Howe", "2024-10-06T00:45", 3) == [
        "2024-10-06T01:30+10:30",
        "2024-10-06T02:30+11:00",
        "2024-10-06T03:30+11:00",
    ]
    assert runs("30 * * * *", "Australia/Lord_Howe", "2024-04-07T00:45", 3) == [
        "2024-04-07T01:30+11:00",
        "2024-04-07T01:30+10:30",
        "2024-04-07T02:30+10:30",
    ]


class Field(Struct, frozen=True):
    text: str
    values: frozenset[int]


def fields(first: int, last: int) -> st.SearchStrategy[Field]:
    everything = range(first, last + 1)

    def listed(values: frozenset[int]) -> Field:
        return Field(",".join(map(str, sorted(values))), values)

    def stepped(step: int) -> Field:
        return Field(f"*/{step}", frozenset(everything[::step]))

    def ranged(ends: tuple[int, int]) -> Field:
        low, high = sorted(ends)
        return Field(f"{low}-{high}", frozenset(range(low, high + 1)))

    one = st.sampled_from(everything)
    return st.one_of(
        st.just(Field("*", frozenset(everything))),
        st.frozensets(one, min_size=1, max_size=4).map(listed),
        st.sampled_from([2, 3, 5, 15, 20]).map(stepped),
        st.tuples(one, one).map(ranged),
    )


class Change(Struct, frozen=True):
    zone: str
    at: datetime
    before: timedelta
    after: timedelta


def offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    found = moment.astimezone(zone).utcoffset()
    assert found is not None
    return found


def changes_of(name: str) -> Iterator[Change]:
    zone = ZoneInfo(name)
    weeks = [FIRST + timedelta(weeks=week) for week in range((LAST - FIRST).days // 7)]
    for low, high in pairwise(weeks):
        before, after = offset(low, zone), offset(high, zone)
        if before == after:
            continue
        while high - low > MINUTE:
            middle = low + (high - low) // MINUTE // 2 * MINUTE
            low, high = (middle, high) if offset(middle, zone) == before else (low, middle)
        yield Change(name, high, before, after)


@cache
def all_changes() -> tuple[Change, ...]:
    """Of 2024 to 2028, each once, though many zones may share it."""
    names = files("tzdata").joinpath("zones").read_text("ascii").split()
    found = {(one.at, one.before, one.after): one for name in names for one in changes_of(name)}
    return tuple(sorted(found.values(), key=lambda one: (one.at, one.zone)))


def minutes(around: datetime, hours: int) -> list[datetime]:
    return [around + minute * MINUTE for minute in range(-hours * 60, hours * 60)]


def matches(moment: datetime, minute: Field, hour: Field) -> bool:
    return moment.minute in minute.values and moment.hour in hour.values


def by_brute_force(change: Change, minute: Field, hour: Field, hours: int) -> list[Micros]:
    """Every minute around a change, and what each of the times of the clock stands for."""
    zone = ZoneInfo(change.zone)
    real = [(one.astimezone(zone).replace(tzinfo=None), one) for one in minutes(change.at, hours)]
    if minute.text.startswith("*") or hour.text.startswith("*"):
        return [micros_of(moment) for shown, moment in real if matches(shown, minute, hour)]
    earliest: dict[datetime, datetime] = {}
    for shown, moment in real:
        earliest.setdefault(shown, moment)
    found = set()
    nominal, end = real[0][0], real[-1][0]
    while nominal <= end:
        if matches(nominal, minute, hour):
            found.add(earliest.get(nominal) or min(m for shown, m in real if shown > nominal))
        nominal += MINUTE
    return sorted(micros_of(moment) for moment in found)


def test_there_are_enough_changes_to_try() -> None:
    shifts = {(one.after - one.before) // MINUTE for one in all_changes()}
    assert {-60, -30, 30, 60} <= shifts
    assert len(all_changes()) > 100


def assert_as_by_brute_force(change: Change, minute: Field, hour: Field, hours: int = 4) -> None:
    expected = by_brute_force(change, minute, hour, hours)
    found = cron(f"{minute.text} {hour.text} * * *", change.zone)
    start = Micros(micros_of(change.at - hours * 60 * MINUTE) - 1)
    until = micros_of(change.at + (hours * 60 - 1) * MINUTE)
    assert list(found.between(start, until, 10_000)) == expected


@pytest.mark.parametrize(
    ("minute", "hour"),
    [
        (Field("30", frozenset({30})), Field("*", frozenset(range(24)))),
        (Field("*/20", frozenset({0, 20, 40})), Field("0-4", frozenset(range(5)))),
        (Field("0,30", frozenset({0, 30})), Field("0-3,23", frozenset({0, 1, 2, 3, 23}))),
    ],
)
def test_around_every_change_of_five_years_times_are_those_of_brute_force(
    minute: Field, hour: Field
) -> None:
    for change in all_changes():
        assert_as_by_brute_force(change, minute, hour, hours=3)


@given(st.data(), fields(0, 59), fields(0, 23))
@settings(max_examples=150, deadline=None)
def test_around_any_change_any_times_are_those_of_brute_force(
    data: st.DataObject, minute: Field, hour: Field
) -> None:
    assert_as_by_brute_force(data.draw(st.sampled_from(all_changes())), minute, hour)


@given(st.data(), fields(0, 59), fields(0, 23), st.integers(-20_000, 20_000), st.integers(0, 59))
@settings(max_examples=200, deadline=None)
def test_each_time_is_later_and_the_next_but_one_after_it_is_the_same_from_anywhere_between(
    data: st.DataObject, minute: Field, hour: Field, minutes_off: int, second: int
) -> None:
    change = data.draw(st.sampled_from(all_changes()))
    found = cron(f"{minute.text} {hour.text} * * *", change.zone)
    now = micros_of(change.at + minutes_off * MINUTE + timedelta(seconds=second))
    following = found.next_runs(now, 5)
    assert list(following) == sorted(set(following))
    assert following[0] > now
    for one, other in pairwise((now, *following)):
        assert found.next_after(one) == other
        assert found.next_after(Micros((one + other) // 2)) == other
        assert found.next_after(Micros(other - 1)) == other
        assert found.last_until(now, other) == other


# --- Days ----------------------------------------------------------------------------------------
def test_a_leap_day_is_found_years_ahead_and_through_all_changes() -> None:
    assert runs("* * 29 2 *", "Europe/Berlin", "2024-03-01T00:00", 2) == [
        "2028-02-29T00:00+01:00",
        "2028-02-29T00:01+01:00",
    ]


def test_a_day_of_the_month_and_a_day_of_the_week_are_either_unless_one_is_a_star() -> None:
    assert runs("0 0 13 * FRI", "UTC", "2024-09-01T00:00", 3) == [
        "2024-09-06T00:00+00:00",
        "2024-09-13T00:00+00:00",
        "2024-09-20T00:00+00:00",
    ]
    assert runs("0 0 */13 * FRI", "UTC", "2024-09-01T00:00", 1) == ["2024-09-27T00:00+00:00"]


def test_the_last_of_many_is_found_and_none_where_there_is_none() -> None:
    minutely = cron("* * * * *")
    assert minutely.last_until(at("2024-01-01"), at("2027-05-05T05:05")) == at("2027-05-05T05:05")
    yearly = cron("0 0 1 1 *")
    assert yearly.last_until(at("2024-01-01"), at("2024-12-31")) is None
    assert yearly.last_until(at("2024-01-01"), at("2031-12-31")) == at("2031-01-01")


def test_between_is_bounded_by_its_end_and_its_limit() -> None:
    hourly = cron("0 * * * *")
    start, end = at("2024-01-01T00:00"), at("2024-01-01T05:00")
    assert hourly.between(start, end, 100) == tuple(
        at(f"2024-01-01T0{hour}:00") for hour in "12345"
    )
    assert hourly.between(start, end, 2) == (at("2024-01-01T01:00"), at("2024-01-01T02:00"))
    assert hourly.between(start, end, 0) == ()


@pytest.mark.parametrize("instant", [-1, 0, 253_402_300_799_000_000, 2**63])
def test_instants_at_the_ends_of_time_are_answered(instant: int) -> None:
    found = cron("0 0 1 1 *", "Asia/Tokyo")
    following = found.next_after(Micros(instant))
    assert following is None or following > instant
