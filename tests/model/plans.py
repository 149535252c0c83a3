"""The small worlds that the tests search, and those for an evening."""

from __future__ import annotations

from tests.model.world import Plan

SMALL = {
    "two faults": Plan(faults=2),
    "two runtimes and a fault": Plan(faults=1, runtimes=2),
    "a cancel": Plan(runtimes=2, cancels=True, faults=0),
    "two attempts": Plan(runtimes=2, attempts=2, faults=0),
    "two attempts and a cancel": Plan(attempts=2, cancels=True, faults=0),
}
LARGER = {
    "a cancel and a fault": Plan(faults=1, cancels=True),
    "two attempts and a fault": Plan(faults=1, attempts=2),
    "two runtimes, two attempts and a cancel": Plan(faults=0, runtimes=2, attempts=2, cancels=True),
    "two runtimes that also fail": Plan(faults=0, runtimes=2, attempts=2, fails=True),
    "three faults": Plan(faults=3),
}
REACHED = frozenset(
    {
        "a cancel is refused: succeeded",
        "a cancel won against a result",
        "a lease ran out",
        "a result came too late for its lease",
        "a result is refused: cancelled",
        "a result is refused: failed",
        "a result is refused: open",
        "a result was read before its lease was ended",
        "a result won against a cancel",
        "a second attempt",
        "a take-over during an unknown append",
        "a turn decided while the one before is under way",
        "a zombie wrote and was ignored",
        "an answer without an entry",
        "an owner fenced",
        "an owner to take over again",
        "effects that were lost are said again",
        "late entry: counts",
        "late entry: foreign",
        "late entry: out_of_sequence",
        "late take-over: counts",
        "late take-over: doubled",
        "two owners that both believe",
    }
)
"""What a search must have come to: one that never reached the hard states proves nothing."""
