"""When idle runtimes beat: together, whatever the clocks of their machines started from."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ledger.client.beats import Beats, with_others
from ledger.domain.ids import SECOND, Micros, Session

PERIOD = 5.0
WALL = Micros(1_800_000_000 * SECOND)


@given(
    booted=st.floats(0, 1e7),
    began=st.floats(0, 1),
    late=st.lists(st.floats(0, 0.2), min_size=5, max_size=30),
)
def test_beats_of_an_idle_session_fall_on_halves_of_the_period_one_period_apart(
    booted: float, began: float, late: list[float]
) -> None:
    """`late`: how long after its due time each beat leaves."""

    def wall(monotonic: float) -> Micros:
        return Micros(WALL + round((monotonic - booted) * SECOND))

    now = booted + began
    beats = Beats(Session("s"), now)
    beats.ask(now, PERIOD)
    said = []
    for delay in late:
        beats.heard(beats.numbers.beat)
        due = with_others(beats.due_at(PERIOD), now, wall(now), PERIOD)
        assert due > now
        said.append(due)
        now = due + delay
        beats.ask(now, PERIOD)
    halves = [(at - booted) * 2 / PERIOD for at in said]
    assert all(abs(half - round(half)) < 1e-3 for half in halves)
    assert all(abs(b - a - PERIOD) < 1e-3 for a, b in pairwise(said))
