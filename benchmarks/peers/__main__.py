"""`make bench-peers`: ours and the peers in turns, on the same servers. A JSON line a system and
round, then a table of medians. Ratios are to ours of the same round, those of CPU in paces."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from benchmarks import peers
from benchmarks.load import drained, percentile, start_delays, warm
from benchmarks.pace import Pace
from benchmarks.peers import PeerFailed, PeersUnavailable
from benchmarks.peers.environment import pinned_versions
from benchmarks.stack import BenchStack, bench_stack

RATE = 20.0
OURS = "ours"
Figures = dict[str, float]
Rounds = Mapping[str, Sequence[Figures]]
"""Of each system its figures, a round each; a round that failed has none."""


@dataclass(frozen=True, slots=True)
class Rival:
    name: str
    peer: str
    batch: int
    share: float = 1.0
    """Of the jobs: a slow peer would take minutes."""
    is_started: bool = True
    """How soon a job starts is measured, too; it does not depend on the batch."""


RIVALS = (
    Rival("PgQueuer, batch 10", "pgqueuer", 10),
    Rival("PgQueuer, batch 500", "pgqueuer", 500, is_started=False),
    Rival("Procrastinate, 10 at once", "procrastinate", 10, 0.1),
    Rival("DBOS, 100 at once", "dbos", 100, 0.1),
    Rival("taskiq on Kafka, 100 at once", "taskiq", 100, 0.2),
)

COLUMNS = (
    ("jobs/s", "jobs_per_second", "{:,.0f}"),
    ("CPU us/job", "cpu_us_per_job", "{:,.0f}"),
    ("submit → start at 20/s, p50 ms", "start_p50_ms", "{:.1f}"),
    ("p99 ms", "start_p99_ms", "{:.1f}"),
)
RATIOS = (
    ("jobs/s to ours", "jobs_per_second"),
    ("CPU to ours", "cpu_paces_per_job"),
    ("p99 to ours", "start_p99_ms"),
)


def main() -> None:
    asked = _arguments()
    rivals = [rival for rival in RIVALS if not asked.only or rival.peer in asked.only]
    try:
        peers.peers_python()
    except PeersUnavailable as error:
        raise SystemExit(str(error)) from None
    print(msgspec.json.encode({"peers": pinned_versions()}).decode(), flush=True)
    rounds: dict[str, list[Figures]] = {OURS: [], **{rival.name: [] for rival in rivals}}
    with bench_stack() as stack, Pace() as pace:
        stack.worker()
        warm(stack, asked.jobs)
        for number in range(asked.rounds):
            own = partial(_of_ours, stack, pace, number, asked.jobs, asked.seconds)
            _note(rounds, OURS, own)
            for rival in rivals:
                jobs = max(1, int(asked.jobs * rival.share))
                seconds = asked.seconds if rival.is_started else 0
                its = partial(_of_peer, stack, pace, rival, jobs, seconds)
                _note(rounds, rival.name, its)
    print("\n".join(table(rounds)))


def _of_ours(stack: BenchStack, pace: Pace, number: int, jobs: int, seconds: float) -> Figures:
    run, pace_us = pace.during(lambda: drained(stack, [f"drain{number}"], jobs))
    figures = _of_run(jobs, run.jobs_per_second, run.with_broker, run.cpu_us, pace_us)
    if seconds:
        delays = start_delays(stack, f"start{number}", RATE, seconds)
        figures |= _of_start((percentile(delays, 0.5), percentile(delays, 0.99)))
    return figures


def _of_peer(stack: BenchStack, pace: Pace, rival: Rival, jobs: int, seconds: float) -> Figures:
    run, pace_us = pace.during(
        lambda: peers.drain(
            rival.peer,
            jobs,
            rival.batch,
            stack.postgres,
            stack.postgres_pid,
            kafka=stack.kafka,
            kafka_pids=stack.kafka_pids,
        )
    )
    figures = _of_run(jobs, run.jobs_per_second, run.cpu_us_per_job, run.parts, pace_us)
    if seconds:
        start = peers.latency(
            rival.peer, RATE, seconds, stack.postgres, batch=rival.batch, kafka=stack.kafka
        )
        figures |= _of_start(start)
    return figures


def _of_run(
    jobs: int, rate: float, cpu_us: float, parts: Mapping[str, float], pace_us: float
) -> Figures:
    return {
        "jobs": jobs,
        "jobs_per_second": round(rate, 1),
        "cpu_us_per_job": round(cpu_us, 1),
        "cpu_paces_per_job": round(cpu_us / pace_us, 2),
        **{f"{name}_us": round(micros, 1) for name, micros in parts.items()},
    }


def _of_start(start: tuple[float, float]) -> Figures:
    return {"start_p50_ms": round(start[0], 2), "start_p99_ms": round(start[1], 2)}


def _note(rounds: dict[str, list[Figures]], system: str, measured: Callable[[], Figures]) -> None:
    """A system that fails ends nothing else."""
    figures: Figures = {}
    line: dict[str, object] = {"system": system, "round": len(rounds[system])}
    try:
        figures = measured()
    except (PeerFailed, SystemExit) as error:  # A stack of ours gives up by the latter.
        line["failed"] = str(error)
    rounds[system].append(figures)
    line |= figures
    line["load"] = os.getloadavg()[0]
    print(msgspec.json.encode(line).decode(), flush=True)


def table(rounds: Rounds) -> list[str]:
    """Medians, as lines of Markdown."""
    heads = ["system", *(head for head, *_ in COLUMNS), *(head for head, _ in RATIOS)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for system, figures in rounds.items():
        cells = [system]
        for _, name, form in COLUMNS:
            cells.append(_median([one[name] for one in figures if name in one], form))
        for _, name in RATIOS:
            pairs = zip(figures, rounds[OURS], strict=True)
            ratios = [its[name] / our[name] for its, our in pairs if name in its and name in our]
            cells.append(_median(ratios, "{:.2f}x"))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _median(values: Sequence[float], form: str) -> str:
    return form.format(statistics.median(values)) if values else "-"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000, help="a slow peer gets fewer")
    parser.add_argument("--seconds", type=float, default=10, help="of submissions at 20/s; 0: none")
    parser.add_argument("--only", nargs="*", choices=sorted(peers.PEERS), help="of the peers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
