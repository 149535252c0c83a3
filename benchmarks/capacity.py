"""What so many jobs a second need: arithmetic from the figures of `capacity.toml`, each with its
source. `python -m benchmarks.capacity [JOBS_A_SECOND …]` prints it, `--write FILE` puts it between
the markers of docs/scaling.md."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

DATA = Path(__file__).with_name("capacity.toml")
RATES = (10_000, 100_000, 1_000_000)
DAY_SECONDS = 86_400
BEGIN, END = "<!-- capacity: begin -->", "<!-- capacity: end -->"


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    value: float
    unit: str
    kind: Literal["measured", "bound", "assumed"]
    source: str


class Inputs(Struct, frozen=True, forbid_unknown_fields=True):
    """The values of `capacity.toml`, which says of each what it is."""

    worker_us: float
    producer_us: float
    runtime_us: float
    postgres_us: float
    broker_us: float
    events_bytes: float
    passing_bytes: float
    postgres_rows: float
    postgres_row_writes: float
    postgres_bytes: float
    wal_bytes: float
    open_job_bytes: float
    remembered_bytes: float
    open_bytes_max: float
    commands_max: float
    command_seconds: float
    keys_max: float
    key_seconds: float
    partitions_max: float
    core_use: float
    replicas: float
    replica_cost: float
    broker_cores: float
    broker_bytes_per_second: float
    postgres_cores: float
    postgres_wal_per_second: float


class Bound(Struct, frozen=True):
    """Of which there is only one, or only so many; `used` is the part of it that is taken."""

    name: str
    used: float


class PartitionCapacity(Struct, frozen=True):
    """Of one partition, and so of one queue: one process owns it, and uses one core."""

    jobs_by_core: float
    """A second."""
    jobs_by_memory: float
    """A second: so many command ids are remembered."""
    keyed_jobs: float
    """A second, all day: so many idempotency keys are remembered."""
    open_jobs: float

    @property
    def jobs(self) -> float:
        return min(self.jobs_by_core, self.jobs_by_memory)


class Capacity(Struct, frozen=True):
    """What a rate needs if it is kept up all day."""

    rate: int
    partitions: int
    worker_cores: float
    producer_cores: float
    runtime_cores: float
    brokers: int
    broker_cores: float
    postgres_cores: float
    remembered_bytes: float
    events_bytes_a_day: float
    passing_bytes_a_day: float
    postgres_row_writes: float
    """A second."""
    postgres_rows_a_day: float
    postgres_bytes_a_day: float
    wal_bytes_a_second: float
    bounds: tuple[Bound, ...]

    @property
    def first(self) -> Bound:
        """What is full before all else."""
        return max(self.bounds, key=lambda bound: bound.used)


def figures() -> dict[str, Figure]:
    return msgspec.convert(tomllib.loads(DATA.read_text()), dict[str, Figure])


def inputs_of(known: dict[str, Figure]) -> Inputs:
    """Raises `msgspec.ValidationError` where one is missing, or is none."""
    return msgspec.convert({name: figure.value for name, figure in known.items()}, Inputs)


def partition_capacity(given: Inputs) -> PartitionCapacity:
    return PartitionCapacity(
        jobs_by_core=given.core_use * 1e6 / given.worker_us,
        jobs_by_memory=given.commands_max / given.command_seconds,
        keyed_jobs=given.keys_max / given.key_seconds,
        open_jobs=given.open_bytes_max / given.open_job_bytes,
    )


def capacity(rate: int, given: Inputs) -> Capacity:
    def cores(micros: float) -> float:
        return rate * micros / 1e6 / given.core_use

    partitions = math.ceil(rate / partition_capacity(given).jobs)
    postgres_cores = cores(given.postgres_us)
    wal = rate * given.wal_bytes
    broker_cores = cores(given.broker_us * (1 + (given.replicas - 1) * given.replica_cost))
    log_bytes = rate * (given.events_bytes + given.passing_bytes) * given.replicas
    return Capacity(
        rate=rate,
        partitions=partitions,
        worker_cores=cores(given.worker_us),
        producer_cores=cores(given.producer_us),
        runtime_cores=cores(given.runtime_us),
        brokers=math.ceil(
            max(
                given.replicas,
                broker_cores / given.broker_cores,
                log_bytes / given.broker_bytes_per_second,
            )
        ),
        broker_cores=broker_cores,
        postgres_cores=postgres_cores,
        remembered_bytes=rate * given.command_seconds * given.remembered_bytes,
        events_bytes_a_day=rate * given.events_bytes * given.replicas * DAY_SECONDS,
        passing_bytes_a_day=rate * given.passing_bytes * given.replicas * DAY_SECONDS,
        postgres_row_writes=rate * given.postgres_row_writes,
        postgres_rows_a_day=rate * given.postgres_rows * DAY_SECONDS,
        postgres_bytes_a_day=rate * given.postgres_bytes * DAY_SECONDS,
        wal_bytes_a_second=wal,
        bounds=(
            Bound("the cores of the one Postgres", postgres_cores / given.postgres_cores),
            Bound("the write-ahead log of the one Postgres", wal / given.postgres_wal_per_second),
            Bound("the partitions of a ledger", partitions / given.partitions_max),
        ),
    )


# --- As Markdown ---------------------------------------------------------------------------------
def document(rates: Sequence[int]) -> list[str]:
    known = figures()
    given = inputs_of(known)
    return [
        *_partition_table(partition_capacity(given)),
        "",
        *_rates_table([capacity(rate, given) for rate in rates]),
        "",
        "What it is computed from:",
        "",
        *_figures_table(known),
    ]


def _partition_table(one: PartitionCapacity) -> list[str]:
    return [
        "| one partition, and so one queue | at most |",
        "|---|---|",
        f"| jobs a second, by the core of its owner | {_count(one.jobs_by_core)} |",
        f"| jobs a second, by the command ids remembered | {_count(one.jobs_by_memory)} |",
        f"| jobs a second under idempotency keys, all day | {_count(one.keyed_jobs)} |",
        f"| open jobs at once | {_count(one.open_jobs)} |",
    ]


def _rates_table(found: Sequence[Capacity]) -> list[str]:
    rows = [
        ("partitions, at least", [_count(one.partitions) for one in found]),
        ("cores: workers", [_count(one.worker_cores) for one in found]),
        ("cores: brokers", [_count(one.broker_cores) for one in found]),
        ("cores: Postgres", [_count(one.postgres_cores) for one in found]),
        ("cores: producers", [_count(one.producer_cores) for one in found]),
        ("cores: runtimes, beside the work", [_count(one.runtime_cores) for one in found]),
        ("brokers", [_count(one.brokers) for one in found]),
        ("memory of the workers: command ids", [_bytes(one.remembered_bytes) for one in found]),
        ("events log a day, kept", [_bytes(one.events_bytes_a_day) for one in found]),
        (
            "other topics a day, kept a week at most",
            [_bytes(one.passing_bytes_a_day) for one in found],
        ),
        ("Postgres rows written a second", [_count(one.postgres_row_writes) for one in found]),
        ("Postgres rows a day, kept", [_count(one.postgres_rows_a_day) for one in found]),
        ("Postgres bytes a day, kept", [_bytes(one.postgres_bytes_a_day) for one in found]),
        ("write-ahead log a second", [_bytes(one.wal_bytes_a_second) for one in found]),
        ("full first", [f"{one.first.name}: {one.first.used:.0%}" for one in found]),
    ]
    heads = [f"{_count(one.rate)} jobs/s" for one in found]
    lines = [f"| kept up all day | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    return lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]


def _figures_table(known: dict[str, Figure]) -> list[str]:
    lines = ["| figure | value | | |", "|---|---|---|---|"]
    for name, figure in known.items():
        said = f"{figure.value:,.4g}" if figure.value < 10_000 else f"{figure.value:,.0f}"
        source = figure.source
        lines.append(f"| `{name}` | {said} | {figure.unit} | {figure.kind}: {source} |")
    return lines


def _count(value: float) -> str:
    """To two digits, up: it is no measurement."""
    if value < 10:
        return f"{value:.1f}" if value % 1 else f"{value:.0f}"
    step = 10 ** (math.floor(math.log10(value)) - 1)
    whole = math.ceil(value / step) * step
    return f"{whole:,}" if whole < 1e9 else f"{whole // 10**9:,} billion"


def _bytes(value: float) -> str:
    """To two digits at least."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = min(int(math.log10(max(value, 1)) // 3), len(units) - 1)
    value /= 1000**power
    return f"{value:,.1f} {units[power]}" if value < 100 else f"{value:,.0f} {units[power]}"


def written(text: str, lines: Sequence[str]) -> str:
    """`text` with the lines between its markers. Raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return "\n".join([before + BEGIN, *lines, END + after])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("rates", type=int, nargs="*", help="jobs a second")
    parser.add_argument("--write", type=Path, help="a document with the markers")
    asked = parser.parse_args()
    lines = document(asked.rates or RATES)
    if asked.write:
        asked.write.write_text(written(asked.write.read_text(), lines))
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
