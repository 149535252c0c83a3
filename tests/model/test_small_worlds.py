"""Everything that can happen in a few small worlds: two owners that both believe, a network that
loses, delays and doubles, runtimes whose results come late, a canceller, a clock."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tests.model.plans import REACHED, SMALL
from tests.model.planted import PLANTED
from tests.model.search import Found, search
from tests.model.world import Idle, Plan, State, Step, World

STATES_MIN = 100_000
PLANS = (Plan(), Plan(faults=2))
"""Where a planted fault must be found: in the first, or else in the second."""


@cache
def searched(name: str) -> tuple[Found, frozenset[str]]:
    world = World(SMALL[name])
    return search(world), frozenset(world.reached)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_nothing_goes_wrong_and_every_job_can_still_end(name: str) -> None:
    found, _ = searched(name)
    assert not found.wrong, "\n".join([found.wrong, *found.trace])


@pytest.mark.slow
def test_the_searches_come_to_every_hard_place() -> None:
    found = [searched(name) for name in SMALL]
    assert sum(each.states for each, _ in found) >= STATES_MIN
    reached: set[str] = set().union(*(reached for _, reached in found))
    assert reached >= REACHED, REACHED - reached


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    assert any(search(PLANTED[fault](plan)).trace for plan in PLANS)


def test_a_counterexample_is_shortest_and_reads_as_a_story() -> None:
    found = search(PLANTED["silence of who was not read"](Plan()))
    assert found.wrong == "I8: expired while result of ada 1 was there, and unread"
    assert found.trace == [
        "lock of ada 0 is said",
        "an owner begins as n1",
        "the take-over of n1 lands",
        "n1 has taken over",
        "n1 decides entry 2: LeaseGranted 1 (to tell: lock of ada 0: accepted)",
        "n1: entry 2: LeaseGranted 1 lands",
        "n1 has proof",
        "result of ada 1 is said",
        "a tick goes by",
        "n1 asks for the end of the commands",
        "n1 decides entry 3: AttemptExpired LEASE_EXPIRED, JobFailed LEASE_EXPIRED",
        "n1: entry 3: AttemptExpired LEASE_EXPIRED, JobFailed LEASE_EXPIRED lands",
    ]


def test_a_world_in_which_a_job_can_end_no_more_is_told() -> None:
    class NobodyTakesOver(World):
        """After a crash."""

        def _assign(self, state: State, i: int, owner: Idle) -> Iterator[Step]:
            return super()._assign(state, i, owner) if not state.terms else iter(())

    found = search(NobodyTakesOver(Plan()))
    assert found.wrong.startswith("G11")
    assert found.stuck > 0
