"""What a job costs its owner while others wait: `python -m benchmarks.backlog [JOBS …]`.

So many open jobs wait; then as many are requested as are given, started and done, oldest first, so
that each job met was requested long ago. The rules alone: decide and apply. All backlogs are there
at once and take turns, so that whatever else the machine does is the same for each. CPU us a job,
the median, and its ratio to the smallest backlog's. JSON lines.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time

import msgspec
from msgspec import Raw

from benchmarks.memory import QUEUE, requested
from ledger.audit.processes import GC_THRESHOLD
from ledger.client.command_ids import new_command_id
from ledger.domain import runtimes
from ledger.domain.commands import (
    Asked,
    Beat,
    Command,
    Report,
    ReportedResult,
    ReportedStart,
    RequestJob,
)
from ledger.domain.decide import Decided, decide
from ledger.domain.entries import GRANT, Entry, cause_of
from ledger.domain.events import Event
from ledger.domain.ids import Micros, RuntimeId, Session
from ledger.domain.partition import Partition

BACKLOGS = (10_000, 100_000, 1_000_000)
TURNS = 10
"""Of one round."""
ROUNDS = 21
A_TURN = 50
TURN_US = 20_000
RUNTIME, SESSION = RuntimeId("bench"), Session("s1")
PAYLOAD = Raw(b'{"text":"' + b"x" * 189 + b'"}')
OUTPUT = Raw(b'{"ok":true}')


class Owner:
    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._say(Beat(RUNTIME, SESSION, QUEUE, 1, ("noop",), A_TURN))

    def turn(self) -> None:
        partition = self.partition
        partition.now = partition.at = Micros(partition.at + TURN_US)
        for _ in range(A_TURN):
            self._say(RequestJob("noop", QUEUE, PAYLOAD))
        session = partition.queue(QUEUE).sessions[RUNTIME]
        grants = runtimes.grants(
            partition,
            QUEUE,
            session.types,
            RUNTIME,
            A_TURN,
            partition.at,
            session=SESSION,
            after=session.number,
        )
        assert len(grants) == A_TURN
        self._append(tuple(grants), GRANT)
        words: list[ReportedStart | ReportedResult] = []
        for grant in grants:
            words.append(ReportedStart(grant.job_id, grant.fence))
            words.append(ReportedResult(grant.job_id, grant.fence, OUTPUT))
        self._say(Report(RUNTIME, SESSION, QUEUE, tuple(words)))

    def _say(self, command: Command) -> None:
        at = self.partition.at
        asked = Asked(command, new_command_id(at), "bench", sent_at=at, appended_at=at)
        decided = decide(self.partition, asked, at)
        assert isinstance(decided, Decided), decided
        assert not decided.refused, decided
        self._append(decided.events, cause_of(asked.command_id, awaited=False))

    def _append(self, events: tuple[Event, ...], cause: str) -> None:
        number = self.partition.entry + 1
        self.partition.apply(Entry(number, self.partition.at, 0, 0, events, "bench", cause))
        self.partition.drain_touched()


def round_of(owner: Owner) -> float:
    """CPU us a job."""
    began = time.process_time()
    for _ in range(TURNS):
        owner.turn()
    return (time.process_time() - began) / (TURNS * A_TURN) * 1e6


def main() -> None:
    gc.set_threshold(*GC_THRESHOLD)
    owners = {many: Owner(requested("plain", many)) for many in map(int, sys.argv[1:] or BACKLOGS)}
    found: dict[int, list[float]] = {many: [] for many in owners}
    for _ in range(ROUNDS):
        for many, owner in owners.items():
            found[many].append(round_of(owner))
            assert len(owner.partition.jobs) == many
    costs = {many: statistics.median(its) for many, its in found.items()}
    least = costs[min(costs)]
    for many, cost in costs.items():
        line = {"backlog": many, "cpu_us_a_job": round(cost, 1), "ratio": round(cost / least, 3)}
        print(msgspec.json.encode(line).decode(), flush=True)


if __name__ == "__main__":
    main()
