"""The capacity model: its arithmetic, and that the document shows what it computes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.capacity import (
    BEGIN,
    END,
    RATES,
    Inputs,
    capacity,
    document,
    figures,
    inputs_of,
    partition_capacity,
    written,
)

SCALING = Path(__file__).parents[3] / "docs" / "scaling.md"
ROUND = Inputs(
    worker_us=200,
    producer_us=50,
    runtime_us=30,
    postgres_us=100,
    broker_us=100,
    events_bytes=500,
    passing_bytes=500,
    postgres_rows=2,
    postgres_row_writes=6,
    postgres_bytes=2_000,
    wal_bytes=3_000,
    open_job_bytes=1_000,
    remembered_bytes=100,
    open_bytes_max=1_000_000_000,
    commands_max=4_000_000,
    command_seconds=4_000,
    keys_max=4_000_000,
    key_seconds=400_000,
    partitions_max=1_000,
    core_use=0.5,
    replicas=3,
    replica_cost=1,
    broker_cores=10,
    broker_bytes_per_second=100_000_000,
    postgres_cores=20,
    postgres_wal_per_second=100_000_000,
)


def test_a_partition_is_bounded_by_its_core_and_by_what_it_remembers() -> None:
    one = partition_capacity(ROUND)
    assert (one.jobs_by_core, one.jobs_by_memory) == (2_500, 1_000)
    assert one.jobs == 1_000
    assert one.keyed_jobs == 10
    assert one.open_jobs == 1_000_000
    slow = msgspec.structs.replace(ROUND, worker_us=1_000)
    assert partition_capacity(slow).jobs == 500


def test_what_a_rate_needs_grows_with_it() -> None:
    few, many = capacity(10_000, ROUND), capacity(100_000, ROUND)
    assert (few.partitions, many.partitions) == (10, 100)
    assert (few.worker_cores, many.worker_cores) == (4, 40)
    assert (few.postgres_cores, many.postgres_cores) == (2, 20)
    assert many.events_bytes_a_day == 10 * few.events_bytes_a_day == 100_000 * 500 * 3 * 86_400


def test_brokers_are_as_many_as_copies_cores_or_bytes_ask_for() -> None:
    assert capacity(1_000, ROUND).brokers == 3  # Copies.
    assert capacity(100_000, ROUND).brokers == 6  # 60 cores, 300 MB/s.
    narrow = msgspec.structs.replace(ROUND, broker_bytes_per_second=10_000_000)
    assert capacity(100_000, narrow).brokers == 30


@pytest.mark.parametrize(
    ("other", "first"),
    [
        ({}, "the write-ahead log of the one Postgres"),
        ({"postgres_us": 1_000}, "the cores of the one Postgres"),
        ({"partitions_max": 10}, "the partitions of a ledger"),
    ],
)
def test_what_is_full_first_is_named(other: dict[str, float], first: str) -> None:
    found = capacity(100_000, msgspec.structs.replace(ROUND, **other))
    assert found.first.name == first
    assert found.first.used == max(bound.used for bound in found.bounds)


def test_a_figure_that_is_missing_or_unknown_is_no_input() -> None:
    known = figures()
    with pytest.raises(msgspec.ValidationError):
        inputs_of({name: figure for name, figure in known.items() if name != "worker_us"})
    with pytest.raises(msgspec.ValidationError):
        inputs_of({**known, "workers_us": known["worker_us"]})


def test_every_figure_says_where_it_is_from() -> None:
    assert all(figure.source and figure.unit for figure in figures().values())


def test_only_what_is_between_the_markers_is_written() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert written(text, ["new", "lines"]) == f"before\n{BEGIN}\nnew\nlines\n{END}\nafter\n"
    with pytest.raises(ValueError, match="markers"):
        written("no markers", ["new"])


def test_the_document_shows_what_the_figures_give() -> None:
    """If not: `python -m benchmarks.capacity --write docs/scaling.md`."""
    text = SCALING.read_text()
    assert written(text, document(RATES)) == text
