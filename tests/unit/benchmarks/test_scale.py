"""What is measured of scale: loads that are equal for each worker, and the verdict over rounds."""

from __future__ import annotations

import pytest

from benchmarks.scale import (
    PARTITIONS,
    WORKERS,
    Cost,
    Load,
    equal_load,
    kept,
    queues_of,
    shared_load,
    verdict,
)
from ledger.log.partitions import partition_of

RATE = 400
BESIDE = 100.0
"""us a job that are not the workers'."""


def cost(load: Load, us: float, *, pace_us: float = 5.0, jobs_per_second: int = 2_000) -> Cost:
    return Cost(
        load,
        jobs_per_second=jobs_per_second,
        worker_us_per_job=us,
        us_per_job=us + BESIDE,
        pace_us=pace_us,
        idle_us_per_second=0,
        shares=[1 / load.workers] * load.workers,
        load_average=0.0,
    )


def equal_round(*us: float, pace_us: float = 5.0) -> list[Cost]:
    """Of one, two and three workers."""
    loads = [equal_load(workers, RATE) for workers in WORKERS]
    return [cost(load, its, pace_us=pace_us) for load, its in zip(loads, us, strict=True)]


SHARED = [cost(shared_load(workers, 12_000), 200.0) for workers in WORKERS]


def test_the_queues_lie_one_in_each_partition_in_their_order() -> None:
    assert [partition_of(queue, 12) for queue in queues_of(12)] == list(range(12))


@pytest.mark.parametrize("workers", WORKERS)
def test_each_worker_has_the_same_bursts_as_often_whatever_their_number(workers: int) -> None:
    load, alone = equal_load(workers, RATE), equal_load(1, RATE)

    assert load.rate == pytest.approx(workers * RATE)
    assert load.burst == alone.burst
    assert load.jobs == workers * alone.jobs
    assert load.seconds * load.parts == pytest.approx(alone.seconds)


def test_partitions_divide_evenly_among_any_number_of_workers() -> None:
    assert all(PARTITIONS * WORKERS[-1] % workers == 0 for workers in WORKERS)


def test_a_machine_that_is_slower_for_a_while_changes_no_ratio() -> None:
    slow = equal_round(600, 630, 654, pace_us=10.0)

    found = verdict([*equal_round(300, 315, 327), *slow], SHARED)

    assert found["equal"]["worker_to_one"] == {1: 1.0, 2: 1.05, 3: 1.09}
    assert found["equal"]["worker_paces_per_job"] == {1: 60, 2: 63, 3: 65.4}
    assert found["passed"]


def test_ratios_are_taken_within_a_round_and_the_median_of_the_rounds_counts() -> None:
    rounds = [*equal_round(100, 150, 100), *equal_round(200, 210, 200), *equal_round(400, 400, 400)]

    assert verdict(rounds, SHARED)["equal"]["worker_to_one"] == {1: 1.0, 2: 1.05, 3: 1.0}


@pytest.mark.parametrize("us", [(100, 100, 111), (100, 111, 100), (100, 100, 89)])
def test_a_worker_more_that_changes_what_a_job_costs_fails(us: tuple[float, ...]) -> None:
    assert not verdict(equal_round(*us), SHARED)["passed"]


def test_what_a_further_worker_takes_of_a_shared_load_is_no_gate() -> None:
    """10 us more a job with each, at 2,000 jobs a second: 20 ms a second."""
    shared = [
        cost(shared_load(workers, 12_000), us)
        for workers, us in zip(WORKERS, (50, 60, 70), strict=True)
    ]

    found = verdict(equal_round(100, 100, 100), shared)

    assert found["shared"]["worker_to_one"] == {1: 1.0, 2: 1.2, 3: 1.4}
    assert found["shared"]["to_one"] == {1: 1.0, 2: 1.067, 3: 1.133}
    assert found["shared"]["further_worker_percent_of_core"] == 2.0
    assert found["passed"]


def test_a_load_that_is_done_early_has_reached_its_rate_and_no_more() -> None:
    load = Load(workers=1, parts=1, burst=400, bursts=10, seconds=1.0)
    assert (load.reached(9.2), load.reached(10.0), load.reached(12.5)) == (400, 400, 320)
    assert shared_load(1, 12_000).reached(4.0) == 3_000


def test_a_rate_that_was_not_kept_is_refused_with_what_was_reached() -> None:
    load = equal_load(3, RATE)
    almost = cost(load, 100, jobs_per_second=1_141)
    assert kept(almost) is almost
    with pytest.raises(SystemExit, match="1139 of 1200 jobs a second were done"):
        kept(cost(load, 100, jobs_per_second=1_139))
