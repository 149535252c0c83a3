"""How many jobs a second go from an appended request to a row that says they succeeded, at what
cost, and how soon a job starts; beside what else a user could take, in the same minutes: `python -m
benchmarks.end_to_end [JOBS] [ROUNDS] [--alone]`. JSON lines."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from benchmarks.load import Drained, drained, median_of, percentile, start_delays, warm
from benchmarks.pace import Pace, us_between
from benchmarks.results import Result, progress, say
from benchmarks.stack import BenchStack, bench_stack, one_core

JOBS, ROUNDS = 15_000, 3
ONE_CORE_SHARE = 2
"""On one core half as many jobs take about as long."""
SLOW_PEERS_SHARE = 10
"""Procrastinate is given a tenth of the jobs: it takes as long."""
RATE = 20.0
LATENCY_SECONDS = 10.0
BUSY_SECONDS = 8.0
PGQUEUER, PROCRASTINATE = "pgqueuer", "procrastinate"
PEERS = ((PGQUEUER, 10), (PGQUEUER, 500), (PROCRASTINATE, 10))
"""With how many jobs each takes at a time."""
ELSEWHERE = "not measured here; where it was: "


class Peers:
    """What else a user could take. One that cannot be run is asked once, and `why` says why."""

    def __init__(self, stack: BenchStack, *, alone: bool) -> None:
        self._stack = stack
        self._module: Any = None
        self.why = dict.fromkeys((PGQUEUER, PROCRASTINATE), "only ours were asked for")
        if not alone:
            try:
                self._module = importlib.import_module("benchmarks.peers")
                self.why = {}
            except ModuleNotFoundError as error:
                self.why = dict.fromkeys(self.why, str(error))

    def drain(self, peer: str, batch: int, jobs: int) -> Any:
        """None where it cannot be run."""
        many = jobs // SLOW_PEERS_SHARE if peer == PROCRASTINATE else jobs
        its = (peer, many, batch, self._stack.postgres, self._stack.postgres_pid)
        return self._tried(peer, lambda: self._module.drain(*its))

    def latency(self, peer: str) -> Any:
        its = (peer, RATE, LATENCY_SECONDS, self._stack.postgres)
        return self._tried(peer, lambda: self._module.latency(*its))

    def _tried(self, peer: str, ask: Callable[[], Any]) -> Any:
        if peer in self.why:
            return None
        try:
            return ask()
        except Exception as error:
            # Whatever is wrong with a peer is no reason not to measure ours.
            self.why[peer] = f"{type(error).__name__}: {error}".partition("\n")[0]
            progress(f"{peer}: {error}")
            return None


class Rounds:
    """Ours first, then each peer, again and again: ratios are taken within a round, and what a peer
    takes is counted at the machine's pace when it was ours's turn."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.ours: list[Drained] = []
        self._pairs: dict[tuple[str, int], list[tuple[Drained, Any]]] = {its: [] for its in PEERS}

    def run(self, stack: BenchStack, peers: Peers, jobs: int) -> None:
        queue = f"drain{len(self.ours)}"
        run, pace_us = self._pace.during(lambda: drained(stack, [queue], jobs))
        progress(f"ours: {run.jobs_per_second:.0f} jobs/s, {run.with_broker:.0f} us")
        self.ours.append(run)
        for its, pairs in self._pairs.items():
            first = self._pace.mark()
            found = peers.drain(*its, jobs)
            if found is not None:
                its_pace_us = us_between(first, self._pace.mark())
                cpu_us = found.cpu_us_per_job * pace_us / its_pace_us
                pairs.append((run, dataclasses.replace(found, cpu_us_per_job=cpu_us)))
                figures = f"{found.jobs_per_second:.0f} jobs/s, {found.cpu_us_per_job:.0f} us"
                progress(f"{its[0]}, batch {its[1]}: {figures}")

    def knows(self, peer: str) -> bool:
        """Whether it could be run, in all its ways."""
        return all(pairs for its, pairs in self._pairs.items() if its[0] == peer)

    def median(self, peer: tuple[str, int], figure: Callable[[Drained, Any], float]) -> float:
        return statistics.median(figure(ours, its) for ours, its in self._pairs[peer])


def throughput(stack: BenchStack, peers: Peers, jobs: int, many: int) -> Iterator[Result]:
    warm(stack, jobs)
    with Pace() as pace:
        rounds = Rounds(pace)
        for _ in range(many):
            rounds.run(stack, peers, jobs)
    figures = median_of(rounds.ours)
    cpu = statistics.median(run.without_broker for run in rounds.ours)
    with_broker = statistics.median(run.with_broker for run in rounds.ours)
    rate = figures["jobs_per_second"]
    detail = f"{jobs:,} jobs"
    yield Result("cpu_busy", "us", ours=round(cpu, 1), detail=detail, figures=figures)
    yield Result("rate", "jobs/s", ours=rate, detail=detail)
    if rounds.knows(PGQUEUER):
        cpu_to_it = _to_pgqueuer(
            rounds,
            "cpu_to_pgqueuer",
            "us",
            lambda ours: ours.with_broker,
            lambda its: its.cpu_us_per_job,
        )
        detail = f"{cpu_to_it.detail}; the aim is about 500"
        yield replace(cpu_to_it, ours_to_aim=cpu_to_it.figures["to_pgqueuer_500"], detail=detail)
        yield _to_pgqueuer(
            rounds,
            "rate_to_pgqueuer",
            "jobs/s",
            lambda ours: ours.jobs_per_second,
            lambda its: its.jobs_per_second,
        )
    else:
        why = f"({peers.why[PGQUEUER]})"
        failed = f"{ELSEWHERE}PgQueuer took 319-341 us {why}"
        yield Result("cpu_to_pgqueuer", "x", ours_as_beside=with_broker, failed=failed)
        failed = f"{ELSEWHERE}PgQueuer did 3,400-3,800 jobs/s {why}"
        yield Result("rate_to_pgqueuer", "x", ours_as_beside=rate, failed=failed)
    if rounds.knows(PROCRASTINATE):
        yield _procrastinate_to_cpu(rounds, with_broker)
    else:
        failed = f"{ELSEWHERE}Procrastinate took 2,340-2,380 us ({peers.why[PROCRASTINATE]})"
        yield Result("procrastinate_to_cpu", "x", ours_as_beside=with_broker, failed=failed)


def _to_pgqueuer(
    rounds: Rounds,
    measure: str,
    unit: str,
    figure: Callable[[Drained], float],
    its_figure: Callable[[Any], float],
) -> Result:
    small, large = PEERS[0], PEERS[1]

    def ratio(ours: Drained, its: Any) -> float:
        return figure(ours) / its_figure(its)

    return Result(
        measure,
        "x",
        ours=rounds.median(small, ratio),
        ours_as_beside=statistics.median(map(figure, rounds.ours)),
        beside=rounds.median(small, lambda _, its: its_figure(its)),
        beside_is=unit,
        detail="batch 10",
        figures={
            f"pgqueuer_500_{unit}": rounds.median(large, lambda _, its: its_figure(its)),
            "to_pgqueuer_500": rounds.median(large, ratio),
        },
    )


def _procrastinate_to_cpu(rounds: Rounds, ours: float) -> Result:
    its = PEERS[2]
    return Result(
        "procrastinate_to_cpu",
        "x",
        ours=rounds.median(its, lambda ours, its: its.cpu_us_per_job / ours.with_broker),
        ours_as_beside=ours,
        beside=rounds.median(its, lambda _, its: its.cpu_us_per_job),
        beside_is="us",
    )


def cost(jobs: int, many: int) -> Result:
    """What a job takes where nothing else shares the core that it is on."""
    with one_core(), bench_stack() as stack:
        stack.worker()
        warm(stack, jobs)
        runs = []
        for number in range(many):
            runs.append(drained(stack, [f"alone{number}"], jobs))
            progress(f"ours on one core: {runs[-1].without_broker:.0f} us")
    cpu = statistics.median(run.without_broker for run in runs)
    detail = f"{jobs:,} jobs on one core"
    return Result("cpu", "us", ours=round(cpu, 1), detail=detail, figures=median_of(runs))


def latency(stack: BenchStack, peers: Peers) -> Iterator[Result]:
    delays = start_delays(stack, "trickle", RATE, LATENCY_SECONDS)
    progress(f"{RATE:.0f} jobs/s: started after {percentile(delays, 0.99):.1f} ms (p99)")
    p50, p99 = percentile(delays, 0.5), percentile(delays, 0.99)
    yield Result("start_p50", "ms", ours=p50, figures={"p99_ms": p99, "max_ms": delays[-1]})
    found = peers.latency(PGQUEUER)
    if found is None:
        failed = f"{ELSEWHERE}PgQueuer 5.9 ms ({peers.why[PGQUEUER]})"
        yield Result("start_p99_to_pgqueuer", "x", ours_as_beside=p99, failed=failed)
        return
    yield Result(
        "start_p99_to_pgqueuer",
        "x",
        ours=p99 / found[1],
        ours_as_beside=p99,
        beside=found[1],
        beside_is="ms",
        figures={"pgqueuer_p50_ms": found[0]},
    )


def busy_latency(stack: BenchStack, rate: float) -> Result:
    delays = start_delays(stack, "busy", rate, BUSY_SECONDS)
    return Result(
        "busy_start_p99",
        "ms",
        ours=percentile(delays, 0.99),
        detail=f"{rate:,.0f} jobs/s",
        figures={"p50_ms": percentile(delays, 0.5), "max_ms": delays[-1]},
    )


def measure(jobs: int, rounds: int, *, alone: bool) -> Iterator[Result]:
    yield cost(jobs // ONE_CORE_SHARE, rounds)
    with bench_stack() as stack:
        stack.worker()
        peers = Peers(stack, alone=alone)
        own_maximum = 0.0
        for result in throughput(stack, peers, jobs, rounds):
            if result.measure == "rate":
                own_maximum = result.ours or 0.0
            yield result
        yield from latency(stack, peers)
        yield busy_latency(stack, own_maximum / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=int, nargs="?", default=JOBS)
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS)
    parser.add_argument("--alone", action="store_true", help="ours only, no peers")
    parser.add_argument("--full", action="store_true", help="three times the jobs")
    given = parser.parse_args()
    jobs = given.jobs * 3 if given.full else given.jobs
    for result in measure(jobs, given.rounds, alone=given.alone):
        say(result)


if __name__ == "__main__":
    main()
