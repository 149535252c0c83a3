"""What a ledger costs that has nothing to do: a thousand runtimes wait, and say every five seconds
that they live: `python -m benchmarks.idle [--full]`. JSON lines."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.results import Result, progress, run
from benchmarks.stack import BenchStack, Measured, bench_stack

QUEUES = tuple(f"parked{number}" for number in range(8))
RUNTIMES = 1_000
BEGIN_SECONDS = 8.0
"""More than a period of beats: every session has begun."""
SECONDS = 20.0


def shares(stack: BenchStack, seconds: float) -> dict[str, float]:
    """Of a core, in percent."""
    before = stack.cpu()
    time.sleep(seconds)
    after = stack.cpu()

    return {
        name: round((getattr(after, name) - getattr(before, name)) / seconds * 100, 2)
        for name in Measured.__dataclass_fields__
    }


def parked(stack: BenchStack, how: str, seconds: float) -> dict[str, float]:
    runtimes = stack.parked(*QUEUES, count=RUNTIMES, how=how)
    time.sleep(BEGIN_SECONDS)
    found = shares(stack, seconds)
    stack.end(runtimes)
    progress(f"{RUNTIMES} runtimes, {how}: {found}")
    return found


def measure(full: bool) -> Iterator[Result]:
    seconds = SECONDS * 6 if full else SECONDS
    with bench_stack() as stack:
        stack.worker()
        stack.api()
        one = stack.runtime("parked0", slots=10)
        time.sleep(BEGIN_SECONDS)
        alone = shares(stack, seconds / 2)
        progress(f"one runtime: {alone}")
        stack.end(one)
        anyhow = parked(stack, "anyhow", seconds / 2)
        found = parked(stack, "tidy", seconds)
    yield Result(
        "idle",
        "% of a core",
        ours=found["workers"] + found["apis"],
        detail=f"{RUNTIMES:,} runtimes, worker and api",
        figures={f"{name}_percent": value for name, value in found.items() if name != "runtimes"}
        | {
            "without_runtimes_percent": alone["workers"] + alone["apis"],
            "one_runtime_percent": alone["runtimes"],
            "beats_anyhow_percent": anyhow["workers"] + anyhow["apis"],
        },
    )


if __name__ == "__main__":
    run(measure, __doc__)
