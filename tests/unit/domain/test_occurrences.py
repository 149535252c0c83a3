"""Occurrences: each nominal time once, and what `catch_up` makes of those that were missed."""

from __future__ import annotations

from datetime import datetime
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.cron import Cron, parsed
from ledger.domain.ids import SECOND, Micros, micros_of
from ledger.domain.occurrences import (
    LATE_MICROS_MAX,
    SKIPPED_MAX,
    CatchUp,
    Occurrences,
    due_occurrences,
)

pytestmark = pytest.mark.rule("S2.6")

POLICIES: tuple[CatchUp, ...] = get_args(CatchUp)


def cron(expression: str, zone: str = "UTC") -> Cron:
    found = parsed(expression, zone)
    assert isinstance(found, Cron)
    return found


def at(text: str) -> Micros:
    return micros_of(datetime.fromisoformat(f"{text}+00:00"))


HOURLY = cron("0 * * * *")
MIDNIGHT = at("2026-03-01T00:00")


@pytest.mark.parametrize("catch_up", POLICIES)
def test_before_its_time_nothing_is_due(catch_up: CatchUp) -> None:
    due = due_occurrences(HOURLY, MIDNIGHT, Micros(MIDNIGHT - 1), catch_up, 10)
    assert due == Occurrences((), 0, MIDNIGHT, False)


@pytest.mark.parametrize("catch_up", POLICIES)
def test_a_schedule_without_a_next_time_is_never_due(catch_up: CatchUp) -> None:
    assert due_occurrences(HOURLY, None, MIDNIGHT, catch_up, 10) == Occurrences((), 0, None, False)


@pytest.mark.parametrize("late", [0, 1, LATE_MICROS_MAX])
@pytest.mark.parametrize("catch_up", POLICIES)
def test_what_is_noticed_within_a_minute_was_not_missed(catch_up: CatchUp, late: int) -> None:
    due = due_occurrences(HOURLY, MIDNIGHT, Micros(MIDNIGHT + late), catch_up, 10)
    assert due == Occurrences((MIDNIGHT,), 0, at("2026-03-01T01:00"), False)


@pytest.mark.parametrize(
    ("catch_up", "fire", "skipped"), [("none", 0, 1), ("last", 1, 0), ("all", 1, 0)]
)
def test_one_that_was_missed_fires_unless_the_policy_is_none(
    catch_up: CatchUp, fire: int, skipped: int
) -> None:
    now = Micros(MIDNIGHT + LATE_MICROS_MAX + 1)
    due = due_occurrences(HOURLY, MIDNIGHT, now, catch_up, 10)
    assert due == Occurrences((MIDNIGHT,) * fire, skipped, at("2026-03-01T01:00"), False)


def test_of_a_night_asleep_none_fires_none() -> None:
    due = due_occurrences(HOURLY, MIDNIGHT, at("2026-03-01T06:30"), "none", 10)
    assert due == Occurrences((), 7, at("2026-03-01T07:00"), False)


def test_of_a_night_asleep_last_fires_the_newest() -> None:
    due = due_occurrences(HOURLY, MIDNIGHT, at("2026-03-01T06:30"), "last", 10)
    assert due == Occurrences((at("2026-03-01T06:00"),), 6, at("2026-03-01T07:00"), False)


def test_of_a_night_asleep_all_fires_each_in_order_within_the_limit() -> None:
    now = at("2026-03-01T06:30")
    due = due_occurrences(HOURLY, MIDNIGHT, now, "all", 4)
    fire = tuple(at(f"2026-03-01T0{hour}:00") for hour in range(4))
    assert due == Occurrences(fire, 0, at("2026-03-01T04:00"), True)
    rest = due_occurrences(HOURLY, due.next_at, now, "all", 4)
    assert [rest.fire[0], rest.fire[-1]] == [at("2026-03-01T04:00"), at("2026-03-01T06:00")]
    assert (rest.more, rest.next_at) == (False, at("2026-03-01T07:00"))


@pytest.mark.parametrize(("catch_up", "first"), [("none", "06:00"), ("last", "05:00")])
def test_one_in_time_fires_beside_what_was_missed(catch_up: CatchUp, first: str) -> None:
    due = due_occurrences(HOURLY, MIDNIGHT, at("2026-03-01T06:00:30"), catch_up, 10)
    assert due.fire[0] == at(f"2026-03-01T{first}")
    assert due.fire[-1] == at("2026-03-01T06:00")
    assert len(due.fire) + due.skipped == 7


@pytest.mark.parametrize("catch_up", POLICIES)
def test_a_recorded_time_that_the_expression_has_no_more_counts_all_the_same(
    catch_up: CatchUp,
) -> None:
    odd = at("2026-03-01T00:17")
    assert due_occurrences(HOURLY, odd, odd, catch_up, 10).fire == (odd,)
    late = due_occurrences(HOURLY, odd, at("2026-03-01T00:59"), catch_up, 10)
    assert len(late.fire) + late.skipped == 1
    assert late.next_at == at("2026-03-01T01:00")


@pytest.mark.parametrize(("catch_up", "fire"), [("none", 0), ("last", 1)])
def test_years_asleep_are_counted_to_a_bound_and_not_walked_through(
    catch_up: CatchUp, fire: int
) -> None:
    minutely = cron("* * * * *")
    now = Micros(at("2031-03-01T00:00") - 1)
    due = due_occurrences(minutely, MIDNIGHT, Micros(now - 2 * LATE_MICROS_MAX), catch_up, 10)
    assert due.skipped == SKIPPED_MAX
    assert len(due.fire) == fire + 1


def test_a_time_in_the_gap_of_the_clocks_is_one_occurrence() -> None:
    daily = cron("30 2 * * *", "Europe/Berlin")
    start = at("2026-03-28T01:30")
    due = due_occurrences(daily, start, at("2026-03-31T00:00"), "all", 10)
    assert due.fire == (start, at("2026-03-29T01:00"), at("2026-03-30T00:30"))


EXPRESSIONS = st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "5 4 * * 1"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"])
STARTS = st.integers(at("2026-03-27T00:00"), at("2026-04-07T00:00")).map(Micros)


@given(EXPRESSIONS, ZONES, STARTS, st.lists(st.integers(1, 10_000), max_size=8), st.data())
@settings(max_examples=150, deadline=None)
def test_whenever_it_is_looked_at_each_nominal_time_is_fired_or_skipped_once(
    expression: str, zone: str, start: Micros, pauses: list[int], data: st.DataObject
) -> None:
    found = cron(expression, zone)
    catch_up = data.draw(st.sampled_from(POLICIES))
    limit = data.draw(st.integers(1, 5))
    next_at, now = found.next_after(start), start
    fired: list[Micros] = []
    skipped = 0
    for pause in pauses:
        now = Micros(now + pause * SECOND)
        more = True
        while more:
            due = due_occurrences(found, next_at, now, catch_up, limit)
            assert len(due.fire) <= limit
            assert due.more == (due.next_at is not None and due.next_at <= now)
            fired += due.fire
            skipped += due.skipped
            next_at, more = due.next_at, due.more
    nominal = found.between(start, now, 100_000)
    assert fired == sorted(set(fired))
    assert set(fired) <= set(nominal)
    assert len(fired) + skipped == len(nominal)
    assert catch_up != "all" or tuple(fired) == nominal
    assert catch_up == "none" or not nominal or bool(fired)
    assert next_at == found.next_after(now)


@given(EXPRESSIONS, ZONES, STARTS, st.sampled_from(POLICIES))
@settings(max_examples=60, deadline=None)
def test_who_looks_every_half_minute_misses_none_under_any_policy(
    expression: str, zone: str, start: Micros, catch_up: CatchUp
) -> None:
    found = cron(expression, zone)
    next_at = found.next_after(start)
    fired: list[Micros] = []
    end = Micros(start + 3600 * SECOND)
    for now in range(start, end + 1, 30 * SECOND):
        due = due_occurrences(found, next_at, Micros(now), catch_up, 10)
        fired += due.fire
        next_at = due.next_at
    assert tuple(fired) == found.between(start, end, 1_000)
