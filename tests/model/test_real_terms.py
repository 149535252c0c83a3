"""The model moves take-over and proof itself; here walks through it, drawn from seeds, are done by
the real `Term` on a simulated log: whatever is lost, late, doubled or unknown, both are of one mind
about who is owner, what is proven and which records count."""

from __future__ import annotations

from functools import cache

import pytest

from tests.model.planted import PLANTED
from tests.model.real_terms import Disagreement, Walks, walked
from tests.model.world import Plan, World

PLAN = Plan(faults=5, runtimes=2, attempts=2, cancels=True, fails=True)
"""Larger than what can be searched: here only some of its ways are gone."""
STEPS = 4_000
REACHED = frozenset(
    {
        "Fenced",
        "OutcomeUnknown",
        "TakeOverAgain",
        "ignored: doubled",
        "ignored: foreign",
        "ignored: out_of_sequence",
        "killed",
        "late entry lands",
        "late entry lands and does not count (foreign)",
        "late entry lands and does not count (out_of_sequence)",
        "late take-over lands",
        "late take-over lands and does not count (doubled)",
    }
)


@cache
def walks() -> Walks:
    return walked(World(PLAN), seed=1, steps=STEPS)


def test_the_real_terms_are_where_the_model_has_them() -> None:
    found = walks()
    assert found.wrong == []
    assert found.steps >= STEPS


def test_the_walks_come_to_every_hard_place() -> None:
    assert walks().reached.keys() >= REACHED, REACHED - walks().reached.keys()


@pytest.mark.parametrize(
    "fault",
    [
        "no proof",
        "no fence",
        "no sequence",
        "an old nonce counts again",
        "state kept over a fence",
    ],
)
def test_a_model_that_is_wrong_is_found_out(fault: str) -> None:
    with pytest.raises(Disagreement):
        walked(PLANTED[fault](PLAN), seed=1, steps=STEPS)
