"""What it costs to spread the same jobs over more partitions of one worker:
`python -m benchmarks.partitions [--full]`. JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from benchmarks.load import Drained, drained
from benchmarks.results import Result, progress, run
from benchmarks.stack import bench_stack
from ledger.log.partitions import partition_of

COUNTS = (1, 16)
FULL_COUNTS = (1, 4, 16, 64)
JOBS = 6_000


def one_in_each(partitions: int) -> list[str]:
    """A queue that lies in each."""
    names: dict[int, str] = {}
    for number in count():
        names.setdefault(partition_of(f"queue{number}", partitions), f"queue{number}")
        if len(names) == partitions:
            return list(names.values())
    raise AssertionError


def spread(partitions: int, jobs: int) -> Drained:
    with bench_stack(partitions=partitions) as stack:
        stack.worker()
        return drained(stack, one_in_each(partitions), jobs)


def measure(full: bool) -> Iterator[Result]:
    found = {}
    counts = FULL_COUNTS if full else COUNTS
    for partitions in counts:
        found[partitions] = its = spread(partitions, JOBS * 3 if full else JOBS)
        progress(f"{partitions} partitions: {its.jobs_per_second:.0f} jobs/s")
    few, many = found[counts[0]], found[counts[-1]]
    yield Result(
        "partitions",
        "x",
        ours=many.without_broker / few.without_broker,
        ours_as_beside=many.without_broker,
        beside=few.without_broker,
        beside_is="us, one partition",
        detail=f"{counts[-1]} partitions",
        figures={f"rate_{n}": round(its.jobs_per_second) for n, its in found.items()}
        | {f"us_{n}": round(its.without_broker, 1) for n, its in found.items()},
    )


if __name__ == "__main__":
    run(measure, __doc__)
