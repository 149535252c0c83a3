"""Finds few faults that a failing run still fails with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.faults import AnyFault
from tests.simulation.world import World


def smallest(seed: int, faults: Sequence[AnyFault], rule: str) -> Sequence[AnyFault]:
    """Each of what is left is needed for a violation of that rule."""

    def fails(some: Sequence[AnyFault]) -> bool:
        return any(found.rule == rule for found in World(seed, some).run().violations)

    return shrunk(faults, fails)


def shrunk(
    faults: Sequence[AnyFault], fails: Callable[[Sequence[AnyFault]], bool]
) -> Sequence[AnyFault]:
    """Halves are left out first, then less and less, down to one by one."""
    left = list(faults)
    size = max(1, len(left) // 2)
    while left:
        start = 0
        shorter = False
        while start < len(left):
            fewer = left[:start] + left[start + size :]
            if fails(fewer):
                left, shorter = fewer, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return left
