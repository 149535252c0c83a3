"""The pace counts up while it lasts, and says what one took."""

from __future__ import annotations

import time
from multiprocessing import active_children

import pytest

from benchmarks.pace import AT_ONCE, Mark, Pace, us_between

SECONDS = 60


def after(pace: Pace, mark: Mark) -> Mark:
    """The next that differs."""
    deadline = time.monotonic() + SECONDS
    while (now := pace.mark()).paces == mark.paces:
        assert time.monotonic() < deadline, "it stands still"
        time.sleep(0.001)
    return now


def test_paces_and_their_seconds_count_up_until_the_context_ends() -> None:
    others = set(active_children())
    with Pace() as pace:
        (process,) = set(active_children()) - others
        first = pace.mark()
        second = after(pace, first)
        third = after(pace, second)
    assert AT_ONCE <= first.paces < second.paces < third.paces
    assert third.paces % AT_ONCE == 0
    assert 0 < first.seconds < second.seconds < third.seconds
    assert us_between(first, third) > 0
    assert not process.is_alive()


def test_what_fails_beside_it_does_not_leave_it_behind() -> None:
    others = set(active_children())
    with pytest.raises(ZeroDivisionError), Pace():
        raise ZeroDivisionError
    assert set(active_children()) == others


def test_a_pace_is_what_one_of_those_between_took() -> None:
    assert us_between(Mark(100, 1.0), Mark(300, 1.5)) == pytest.approx(2_500)


def test_marks_without_a_pace_between_are_refused() -> None:
    mark = Mark(100, 1.0)
    with pytest.raises(ValueError, match="no pace was done"):
        us_between(mark, mark)
