"""`python -m tests.simulation --seeds 1000 --from 0`: many runs, and what they found."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

from tests.simulation.coverage import STATES, missing
from tests.simulation.shrinking import smallest
from tests.simulation.world import Outcome, World

SEEDS_AT_ONCE = 4
SEEDS_FOR_ALL_STATES = 200
"""A run of so many has to reach every state."""
TOLD_EACH = 100
"""Seeds, to the next line where nobody watches."""
TOLD_MAX = 5
"""Seeds that failed and are told in full, shrunk."""
WITNESS_MAX = 12


def main() -> int:
    asked = _asked()
    _settle()
    if asked.seeds == 1:
        return _one(asked.first, prints=asked.log)
    return _many(asked.first, asked.seeds)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--log", action="store_true", help="print the log lines (of one seed)")
    return parser.parse_args()


def _settle() -> None:
    """What is loaded by now is never rubbish; each run collects its own."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _one(seed: int, *, prints: bool) -> int:
    world = World(seed)
    world.journal.prints = prints
    outcome = world.run()
    print(f"digest: {outcome.digest} after {outcome.steps} steps, {outcome.seconds:.3f} s")
    if outcome.violations:
        _tell(outcome)
    print(f"seeds: 1, violations: {len(outcome.violations)}")
    return 1 if outcome.violations else 0


def _many(first: int, count: int) -> int:
    began = time.monotonic()
    states: Counter[str] = Counter()
    failed: list[Outcome] = []
    done = 0
    for outcomes in _outcomes(first, count):
        for outcome in outcomes:
            done += 1
            states += outcome.states
            if outcome.violations:
                failed.append(outcome)
                if len(failed) <= TOLD_MAX:
                    _tell(outcome)
        is_watched = sys.stderr.isatty()
        if is_watched or done == count or done % TOLD_EACH < len(outcomes):
            seconds = time.monotonic() - began
            line = f"{done} of {count} seeds, {len(failed)} failed, {seconds:.0f} s"
            start, end = ("\r", "") if is_watched and done < count else ("", "\n")
            print(f"{start}{line}", end=end, file=sys.stderr, flush=True)
    for state in STATES:
        print(f"{states[state]:8} {state}")
    unreached = missing(states) if count >= SEEDS_FOR_ALL_STATES else ()
    for state in unreached:
        print(f"never reached: {state}")
    violations = sum(len(outcome.violations) for outcome in failed)
    print(f"seeds: {count}, violations: {violations}")
    return 1 if violations or unreached else 0


def _outcomes(first: int, count: int) -> Iterator[list[Outcome]]:
    """As they come, from all cores."""
    end = first + count
    parts = iter(
        [range(seed, min(seed + SEEDS_AT_ONCE, end)) for seed in range(first, end, SEEDS_AT_ONCE)]
    )
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers, initializer=_settle) as pool:
        running: set[Future[list[Outcome]]] = {
            pool.submit(_run, part) for part in islice(parts, 2 * workers)
        }
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(_run, part) for part in islice(parts, len(ended))}
            for each in ended:
                yield each.result()


def _run(seeds: range) -> list[Outcome]:
    return [World(seed).run() for seed in seeds]


def _tell(outcome: Outcome) -> None:
    print(f"\nseed {outcome.seed}: {outcome.violations[0]}")
    for line in outcome.witness[-WITNESS_MAX:]:
        print(f"    {line}")
    for more in outcome.violations[1:TOLD_MAX]:
        print(f"  {more}")
    print("  faults:")
    for fault in outcome.faults:
        print(f"    {fault}")
    print("  the fewest that it takes:")
    for fault in smallest(outcome.seed, outcome.faults, outcome.violations[0].rule):
        print(f"    {fault}")
    print(f"  again: make simulate SEEDS=1 FROM={outcome.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
