"""What the figures have to reach. A gate is what we promise not to fall below; an aim is what we
want to be known for. As data, so that the table, its tests and the documentation say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

Direction = Literal["at most", "at least"]


class Gate(Struct, frozen=True):
    """One bound on one figure. Several may belong to one target: it is met when all of them are."""

    target: str
    name: str
    """Of the figure: unique, and what a benchmark reports it under."""
    question: str
    unit: str
    direction: Direction
    gate: float | None
    """None: it has an aim only."""
    aim: float


class Verdict(Struct, frozen=True):
    passed: bool | None
    """None: the figure has no gate."""
    aimed: bool


GATES: tuple[Gate, ...] = (
    Gate("P1", "cpu", "CPU a job, without the broker", "us", "at most", 250, 150),
    Gate("P2", "cpu_to_pgqueuer", "CPU a job, of PgQueuer's", "x", "at most", 1, 1),
    Gate("P3", "rate_to_pgqueuer", "jobs end to end, of PgQueuer's", "x", "at least", 1, 2),
    Gate("P3", "rate", "jobs end to end", "jobs/s", "at least", 4_000, 8_000),
    Gate("P4", "procrastinate_to_cpu", "CPU of Procrastinate, of ours", "x", "at least", 8, 15),
    Gate(
        "P5", "start_p99_to_pgqueuer", "to start at 20/s, p99, of PgQueuer's", "x", "at most", 3, 2
    ),
    Gate("P5", "start_p50", "to start at 20/s, p50", "ms", "at most", None, 6),
    Gate("P6", "busy_start_p99", "to start at half load, p99", "ms", "at most", 150, 75),
    Gate("P7", "projection", "rows projected, of bare copying", "x", "at least", 0.6, 0.8),
    Gate("P8", "replay_one", "replayed by one process", "events/s", "at least", 80_000, 120_000),
    Gate("P8", "replay_two", "replayed by two", "events/s", "at least", 140_000, 220_000),
    Gate("P9", "backlog", "a job behind a backlog, of one without", "x", "at most", 1.15, 1.05),
    Gate("P10", "recovery", "a dead owner's next lease", "s", "at most", 10, 3),
    Gate("P11", "memory", "memory an open job", "B", "at most", 700, 450),
    Gate("P12", "timers", "timers late, p99", "ms", "at most", 250, 100),
    Gate("P13", "idle", "idle", "% of a core", "at most", 5, 2),
    Gate("P14", "log_bytes", "log a job", "B", "at most", 1_000, 500),
    Gate("P14", "postgres_bytes", "Postgres a job", "B", "at most", 1_500, 800),
    Gate("P14", "wal_bytes", "write-ahead log a job", "B", "at most", 2_600, 1_600),
)
BY_NAME: Mapping[str, Gate] = {gate.name: gate for gate in GATES}


def judge(gate: Gate, ours: float, ours_to_aim: float | None = None) -> Verdict:
    """`ours_to_aim`: the figure that the aim is about, where that is another: P2 aims at a harder
    peer than its gate."""
    aimed = ours if ours_to_aim is None else ours_to_aim
    passed = None if gate.gate is None else _reaches(gate, ours, gate.gate)
    return Verdict(passed, _reaches(gate, aimed, gate.aim))


def met(verdicts: Iterable[tuple[Gate, Verdict | None]]) -> tuple[int, int]:
    """How many targets are met, of how many. One without a verdict, for want of a figure, is
    not."""
    targets: dict[str, bool] = dict.fromkeys((gate.target for gate in GATES), True)
    judged = dict(verdicts)
    for gate in GATES:
        if gate.gate is not None:
            verdict = judged.get(gate)
            targets[gate.target] &= verdict is not None and verdict.passed is True
    return sum(targets.values()), len(targets)


def _reaches(gate: Gate, figure: float, bound: float) -> bool:
    return figure <= bound if gate.direction == "at most" else figure >= bound
