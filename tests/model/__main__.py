"""Search small worlds by hand: `python -m tests.model --help`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.plans import LARGER, SMALL
from tests.model.planted import PLANTED
from tests.model.search import search
from tests.model.world import Plan, World

STATES_MAX = 20_000_000
"""About 1 GB a million."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--larger", action="store_true", help="also those for an evening")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="with this fault in it")
    parser.add_argument("--faults", type=int, help="a world of your own, with so many faults")
    parser.add_argument("--runtimes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--attempts", type=int, default=1)
    parser.add_argument("--cancels", action="store_true")
    parser.add_argument("--fails", action="store_true", help="runtimes may report failures")
    parser.add_argument("--states-max", type=int, default=STATES_MAX)
    asked = parser.parse_args()
    worlds = SMALL | LARGER if asked.larger else SMALL
    if asked.faults is not None:
        plan = Plan(asked.faults, asked.runtimes, asked.attempts, asked.cancels, asked.fails)
        worlds = {"your own": plan}
    return max(_search(name, plan, asked) for name, plan in worlds.items())


def _search(name: str, plan: Plan, asked: argparse.Namespace) -> int:
    world = PLANTED[asked.planted](plan) if asked.planted else World(plan)
    began = time.process_time()

    def progress(states: int, left: int, steps: int) -> None:
        seconds = time.process_time() - began
        line = f"\r{name}: {states:,} states, {left:,} to look at, {steps:,} steps, {seconds:.0f} s"
        print(line, end="", file=sys.stderr, flush=True)

    found = search(world, states_max=asked.states_max, progress=progress)
    seconds = time.process_time() - began
    print(file=sys.stderr)
    print(
        f"{name}: {found.states:,} states, {found.steps:,} steps, "
        f"{len(world.histories.nodes):,} histories, {seconds:.1f} s of one core"
    )
    print(f"  reached: {'; '.join(sorted(world.reached))}")
    if not found.wrong:
        print("  nothing is wrong, and every job can end")
        return 0
    print(f"  WRONG: {found.wrong}")
    for number, step in enumerate(found.trace, 1):
        print(f"  {number:3} {step}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
