"""Classes of parked jobs: each is found once, as soon as no limit holds it back."""

from __future__ import annotations

import pytest

from ledger.domain.ids import MAIN, JobId
from ledger.domain.parked import Class, Key, Parked
from ledger.domain.ready import PLACES_MIN, Place

pytestmark = pytest.mark.rule("S4.2")

A: Key = ("", 0, b"a")
B: Key = ("", 1, b"b")
BOTH: Class = ("report", (A, B))
ONE: Class = ("report", (A,))


def place(order: int) -> Place:
    return order, JobId(f"j{order}"), MAIN


class World:
    """Limits that a test fills and frees by hand, and places that die."""

    def __init__(self) -> None:
        self.full: set[Key] = set()
        self.dead: set[Place] = set()
        self.parked = Parked(lambda one: one not in self.dead, self.full_of)

    def full_of(self, keys: tuple[Key, ...]) -> Key | None:
        return next((key for key in keys if key in self.full), None)

    def best(self, *types: str) -> list[int]:
        return [order for order, _, _ in self.parked.best(types or ("report",), self.full_of)]

    def park(self, of: Class, order: int, key: Key) -> None:
        self.full.add(key)
        self.parked.add(of, 5, place(order), key)

    def free(self, key: Key) -> None:
        self.full.discard(key)
        self.parked.wake(key)


def test_a_class_is_found_when_its_limit_has_room_and_not_before() -> None:
    world = World()
    world.park(ONE, 1, A)
    assert world.best() == []
    world.free(A)
    assert (world.best(), world.best()) == ([1], [1])
    assert world.best("quiz") == []


def test_one_that_was_opened_and_blocked_unseen_is_found_once() -> None:
    world = World()
    world.park(ONE, 1, A)
    world.free(A)
    world.park(ONE, 2, A)
    world.free(A)
    assert world.best() == [1, 2]


def test_one_that_another_limit_holds_back_waits_for_that_one() -> None:
    world = World()
    world.park(BOTH, 1, A)
    world.full.discard(A)  # Another class had its room.
    world.park(BOTH, 2, B)
    world.free(B)
    assert world.best() == [1, 2]


def test_one_that_is_blocked_elsewhere_passes_its_turn_on() -> None:
    world = World()
    world.park(BOTH, 1, A)
    world.park(ONE, 2, A)
    world.free(A)
    world.full.add(B)
    assert world.best() == [2]


def test_the_dead_are_forgotten_and_with_the_last_its_class() -> None:
    world = World()
    world.park(ONE, 1, A)
    world.park(BOTH, 2, A)
    world.dead.add(place(1))
    world.free(A)
    assert world.best() == [2]
    assert world.parked.places == {place(2)}


def test_who_dies_where_nobody_looks_is_swept_out() -> None:
    world = World()
    for order in range(10 * PLACES_MIN):
        world.park(ONE, order, A)
        world.dead.add(place(order))
        world.parked.clean()
    assert len(world.parked.places) <= PLACES_MIN + 1
    world.park(ONE, 10 * PLACES_MIN, A)
    world.free(A)
    assert world.best() == [10 * PLACES_MIN]
