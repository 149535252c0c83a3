"""What a run is about, drawn from its seed: how many of what, which queues, and what is asked."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct

LOAD_SECONDS = 24.0
"""While so long things are asked and things go wrong."""
HTTP_TYPE = "called"
"""Of jobs that are claimed over HTTP."""
FLOW_TYPE = "flow"
STEP_TYPES = ("draft", "review")


class Plan(Struct, frozen=True):
    partitions: int
    owners: int
    runtimes: int
    producers: int
    queues: tuple[str, ...]
    slots: int
    beat_seconds: float
    lease_seconds: float
    actions: int
    callers: int
    has_schedule: bool
    wait_seconds: float
    """For a decision."""

    @property
    def types(self) -> tuple[str, ...]:
        """What runtimes have handlers of."""
        return ("plain", "limited", *STEP_TYPES)


def drawn(chance: Random) -> Plan:
    return Plan(
        partitions=chance.choice((1, 1, 2, 3)),
        owners=chance.choice((2, 2, 3)),
        runtimes=chance.choice((1, 2)),
        producers=chance.choice((1, 2)),
        queues=("ai", "web")[: chance.choice((1, 2))],
        slots=chance.choice((1, 3, 6)),
        beat_seconds=chance.choice((0.5, 1.0)),
        lease_seconds=chance.choice((1.0, 2.0, 4.0)),
        actions=chance.randint(8, 24),
        callers=chance.choice((0, 1, 2)),
        has_schedule=chance.random() < 0.5,
        wait_seconds=chance.choice((3.0, 12.0)),
    )


def payload(chance: Random) -> dict[str, Any]:
    """What its handler does, and how long that takes."""
    does = ("succeed",) * 5 + ("fail once", "fail", "fatal", "progress", "give back", "wait")
    return {
        "do": chance.choice(does),
        "seconds": round(chance.choice((0.0, 0.05, 0.5, 2.0, 5.0)) * chance.random(), 3),
    }
