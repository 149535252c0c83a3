"""The clock of a term: it never goes back, never jumps, never outruns what the broker confirmed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.ids import SECOND, Micros
from processors.owner.term_clock import AHEAD_MAX, FOLLOWED_MAX, SLEW, TermClock

LONG_AGO = Micros(1_000 * SECOND)
FAR_AHEAD = Micros(10**15)


class Clocks:
    def __init__(self, wall: int, monotonic: int = 0) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self.brokers = Micros(wall)

    def term(self, last: Micros = LONG_AGO) -> TermClock:
        return TermClock(
            lambda: self.wall, lambda: self.monotonic, last=last, appended_at=self.brokers
        )

    def pass_time(self, micros: int, wall_jump: int = 0) -> None:
        self.monotonic += micros
        self.wall += micros + wall_jump
        self.brokers = Micros(self.brokers + micros)


def test_it_starts_at_the_wall_clock_or_at_the_end_of_the_history_whichever_is_later() -> None:
    clocks = Clocks(wall=LONG_AGO + 50)
    assert clocks.term().read(FAR_AHEAD) == LONG_AGO + 51
    assert clocks.term(last=Micros(LONG_AGO + 70)).read(FAR_AHEAD) == LONG_AGO + 71


def test_a_wall_clock_that_jumps_an_hour_ahead_is_followed_by_a_tenth_of_the_time_only() -> None:
    clocks = Clocks(wall=LONG_AGO)
    clock = clocks.term()
    before = clock.read(FAR_AHEAD)
    clocks.pass_time(SECOND, wall_jump=3_600 * SECOND)
    assert clock.read(FAR_AHEAD) - before == SECOND + SECOND // SLEW


def test_a_wall_clock_that_jumps_back_only_slows_it_down() -> None:
    clocks = Clocks(wall=LONG_AGO)
    clock = clocks.term()
    before = clock.read(FAR_AHEAD)
    clocks.pass_time(SECOND, wall_jump=-3_600 * SECOND)
    assert clock.read(FAR_AHEAD) - before == SECOND - SECOND // SLEW


def test_it_waits_for_the_broker_after_a_long_silence() -> None:
    clocks = Clocks(wall=LONG_AGO)
    clock = clocks.term()
    clocks.pass_time(60 * SECOND)
    assert clock.outruns(LONG_AGO)
    assert clock.read(LONG_AGO) == LONG_AGO + AHEAD_MAX
    confirmed = Micros(LONG_AGO + 60 * SECOND)
    clocks.pass_time(SECOND)
    assert not clock.outruns(confirmed)
    assert clock.read(confirmed) >= LONG_AGO + 61 * SECOND, "the time that it waited is not lost"


def test_a_wall_clock_ahead_of_the_brokers_is_followed_a_little_and_the_time_goes_on() -> None:
    clocks = Clocks(wall=LONG_AGO)
    clocks.wall += 90 * SECOND
    clock = clocks.term()
    before = clock.read(clocks.brokers)
    assert before == LONG_AGO + FOLLOWED_MAX + 1
    for _ in range(60):
        clocks.pass_time(SECOND)
        assert not clock.outruns(Micros(clocks.brokers - SECOND // 10))
        now = clock.read(Micros(clocks.brokers - SECOND // 10))
        assert now > before
        assert now - clocks.brokers <= FOLLOWED_MAX + SECOND // 10
        before = now


def test_a_history_an_hour_ahead_goes_on_and_loses_its_lead() -> None:
    clocks = Clocks(wall=LONG_AGO)
    last = Micros(LONG_AGO + 3_600 * SECOND)
    clock = clocks.term(last=last)
    for _ in range(100):
        clocks.pass_time(SECOND)
        assert not clock.outruns(clocks.brokers)
        clock.read(clocks.brokers)
    assert clock.read(clocks.brokers) - last == pytest.approx(90 * SECOND, abs=10)
    assert clock.ahead == pytest.approx(3_590 * SECOND, abs=10)


def test_what_the_brokers_stamp_is_found_on_its_own_time() -> None:
    for skew in (-90, -1, 0, 1, 2):
        clocks = Clocks(wall=LONG_AGO)
        clocks.brokers = Micros(LONG_AGO - skew * SECOND)
        clock = clocks.term()
        assert clock.ahead == skew * SECOND


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10 * SECOND),
            st.integers(-3_600 * SECOND, 3_600 * SECOND),
            st.integers(-10 * SECOND, 10 * SECOND),
        ),
        max_size=30,
    )
)
def test_whatever_the_clocks_do_it_never_goes_back(steps: list[tuple[int, int, int]]) -> None:
    clocks = Clocks(wall=LONG_AGO)
    clock = clocks.term()
    last = clock.read(LONG_AGO)
    for passed, jump, confirmed in steps:
        clocks.pass_time(passed, jump)
        now = clock.read(Micros(last + confirmed))
        assert now >= last
        last = now


def test_however_long_it_is_idle_it_tells_the_wall_clocks_time_once_the_broker_confirms() -> None:
    clocks = Clocks(wall=LONG_AGO)
    clock = clocks.term()
    for _ in range(100):
        clocks.pass_time(60 * SECOND)
        clock.read(Micros(clocks.wall - 60 * SECOND))
        assert abs(clock.read(Micros(clocks.wall)) - clocks.wall) < 1_000
