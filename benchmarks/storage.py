"""How many bytes a job leaves: in the log, in the read models with its history, and in Postgres's
write-ahead log: `python -m benchmarks.storage [--full]`. JSON lines.

Payloads of 200 bytes that hardly compress; `repetitive_log_bytes` are those of equal payloads.
Tables with their indexes and what updates left in them, once the projector has been idle for long
enough to clear up; the log as it lies on the broker's disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
from msgspec import Struct

from benchmarks.load import drained, random_payload, request
from benchmarks.results import Result, progress, run
from benchmarks.stack import BenchStack, bench_stack
from ledger.log.topics import Topics
from projections.feed import LOOK_SECONDS

JOBS = 20_000
REST_SECONDS = 2 * LOOK_SECONDS


class Stored(Struct):
    log: int
    postgres: int
    wal: int
    tables: dict[str, int]


def stored(stack: BenchStack) -> Stored:
    """After a rest."""
    time.sleep(REST_SECONDS)
    log = sum(segment.stat().st_size for segment in stack.logs.rglob(f"{Topics().events}-*/*.log"))
    with psycopg.connect(stack.postgres) as connection:
        tables = connection.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = 'ledger'::regnamespace"
        ).fetchall()
        [(wal,)] = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchall()
    return Stored(log, sum(size for _, size in tables), int(wal), dict(tables))


def measure(full: bool) -> Iterator[Result]:
    jobs = JOBS * 5 if full else JOBS
    random = Random(1)

    def unlike(queue: str, number: int) -> dict[str, Any]:
        return request(queue, number, payload=random_payload(random))

    with bench_stack() as stack:
        stack.worker()
        begun = stored(stack)
        drained(stack, ["equal"], jobs // 4)
        before = stored(stack)
        run = drained(stack, ["unlike"], jobs, unlike)
        after = stored(stack)
    progress(f"{run.jobs_per_second:.0f} jobs/s")
    detail = f"{jobs:,} jobs"
    tables: dict[str, float] = {
        f"{name}_bytes": round(grown)
        for name, size in after.tables.items()
        if (grown := (size - before.tables.get(name, 0)) / jobs) >= 1
    }
    log = round((after.log - before.log) / jobs)
    equal = round((before.log - begun.log) / (jobs // 4))
    postgres = round((after.postgres - before.postgres) / jobs)
    wal = round((after.wal - before.wal) / jobs)
    yield Result("log_bytes", "B", ours=log, detail=detail, figures={"repetitive_log_bytes": equal})
    yield Result("postgres_bytes", "B", ours=postgres, detail=detail, figures=tables)
    yield Result("wal_bytes", "B", ours=wal, detail=detail)


if __name__ == "__main__":
    run(measure, __doc__)
