"""Lanes and timers: order, and that nothing is lost where places are stale."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.ids import MAIN, JobId, Micros
from ledger.domain.ready import Lane, Place, Ready
from ledger.domain.timers import Timers


def place(order: int) -> Place:
    return order, JobId(f"j{order}"), MAIN


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_a_lane_is_read_in_order_whatever_the_order_of_adding(
    orders: list[int], stale: set[int]
) -> None:
    lane = Lane()
    for order in orders:
        lane.add(place(order), lambda _: True)
    read = [found[0] for found in lane]
    assert read == sorted(orders)
    assert lane.trim(lambda found: found[0] not in stale) is (len(lane) > 0)
    left = [found[0] for found in lane if found[0] not in stale]
    assert left == sorted(order for order in orders if order not in stale)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), min_size=1)))
def test_whether_jobs_come_one_by_one_or_many_at_once_is_all_the_same(
    stretches: list[list[int]],
) -> None:
    one, other = Lane(), Lane()
    for orders in stretches:
        for order in orders:
            one.add(place(order), lambda _: True)
        other.extend(orders, [JobId(f"j{n}") for n in orders], MAIN, lambda _: True)
    assert list(other) == list(one)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 30)), unique=True),
    st.sets(st.integers(0, 30)),
    st.lists(st.sampled_from("abcd")),
)
def test_the_best_of_some_types_by_priority_then_order(
    added: list[tuple[str, int, int]], stale: set[int], types: list[str]
) -> None:
    def name(kind: str, priority: int, order: int) -> JobId:
        return JobId(f"{order:02}{kind}{priority}")

    ready = Ready(lambda found: int(found[1][:2]) not in stale)
    for kind, priority, order in added:
        ready.add(kind, priority, (order, name(kind, priority, order), MAIN))
    expected = sorted(
        (priority, order, name(kind, priority, order))
        for kind, priority, order in added
        if kind in types and order not in stale
    )
    for _ in range(2):
        assert [job for _, job, _ in ready.best(types)] == [job for _, _, job in expected]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("arm"), st.integers(0, 5), st.integers(0, 50)),
            st.tuples(st.just("disarm"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("pop"), st.integers(0, 50), st.integers(0, 3)),
        )
    )
)
def test_timers_fall_at_the_first_instant_that_they_were_armed_for(
    steps: list[tuple[str, int, int]],
) -> None:
    timers: Timers[JobId] = Timers()
    armed: dict[str, int] = {}
    for step, one, other in steps:
        if step == "arm":
            timers.arm(JobId(str(one)), Micros(other))
            armed[str(one)] = min(other, armed.get(str(one), other))
        elif step == "disarm":
            timers.disarm(JobId(str(one)))
            armed.pop(str(one), None)
        else:
            due = sorted((at, job) for job, at in armed.items() if at <= one)[:other]
            assert timers.pop(Micros(one), other) == [job for _, job in due]
            for _, job in due:
                del armed[job]
        assert len(timers) == len(armed)
        nearest = timers.next_due()
        assert not armed or (nearest is not None and nearest <= min(armed.values()))
        assert all(JobId(job) in timers for job in armed)
