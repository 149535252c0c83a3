"""How fast read models are written, against the least that could be done: rows of the same form,
ready made, copied to a staging table and upserted: `python -m benchmarks.projection [--full]`. JSON
lines.

Of each job that moves two things are written, its row and what its history has gained, which lies
in its row, too, from the second batch on: they count as two rows, the floor's as one. Batches are
as the owner hands them over, with the jobs' values. In `projection` each job comes in three (asked
for, given, ended), as under a load that takes a while; in `projection_at_once` its whole life is in
one. Ours and the floor take turns, a batch each.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import sql

from benchmarks.offline_log import TOPIC, OfflineLog
from benchmarks.processes import cpu_of
from benchmarks.results import Result, progress, run
from benchmarks.stack import bench_postgres
from ledger.domain.ids import JobId
from ledger.domain.job import Job
from processors.app import GC_THRESHOLD
from projections.batches import Batch
from projections.projector import Projector
from projections.schema import SCHEMA, connect

JOBS = 1_000
"""In a batch."""
WARM = 3
ROUNDS = 12


class Spent(Struct):
    """Of several batches."""

    rows: int = 0
    seconds: float = 0.0
    python: float = 0.0
    """CPU seconds, as `postgres`."""
    postgres: float = 0.0

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    def figures(self, name: str) -> dict[str, float]:
        return {
            f"{name}_rate": round(self.rate),
            f"{name}_python_us": round(self.python / self.rows * 1e6, 1),
            f"{name}_postgres_us": round(self.postgres / self.rows * 1e6, 1),
        }


class Floor:
    """One table of all jobs, with the indexes of ended ones, written in the cheapest way."""

    def __init__(self, dsn: str) -> None:
        self._connection: psycopg.Connection[Any] = connect(dsn, schema=SCHEMA)
        run = self._connection.execute
        run("CREATE TABLE floor (LIKE jobs) WITH (fillfactor = 50)")
        indexes = run(
            "SELECT replace(indexdef, 'ended_jobs', 'floor') FROM pg_indexes "
            "WHERE schemaname = %s AND tablename = 'ended_jobs'",
            (SCHEMA,),
        ).fetchall()
        for (index,) in indexes:
            run(index.encode())
        run("CREATE TEMPORARY TABLE staged (LIKE jobs) ON COMMIT DELETE ROWS")
        for name in ("hashjoin", "mergejoin", "seqscan"):
            run(sql.SQL("SET {} = off").format(sql.Identifier(f"enable_{name}")))
        columns = run(
            "SELECT attname FROM pg_attribute "
            "WHERE attrelid = 'jobs'::regclass AND attnum > 0 AND NOT attisdropped"
        ).fetchall()
        moved = [sql.Identifier(name) for (name,) in columns if name != "id"]
        self._upsert = sql.SQL(
            "INSERT INTO floor SELECT * FROM staged ON CONFLICT (id) DO UPDATE SET ({}) = ROW({})"
        ).format(
            sql.SQL(", ").join(moved),
            sql.SQL(", ").join(sql.SQL("excluded.{}").format(name) for name in moved),
        )
        self._connection.commit()

    def ready_made(self, ids: list[JobId]) -> tuple[int, bytes]:
        """Rows as ours has just written them."""
        wanted = "COPY (SELECT * FROM jobs WHERE id = ANY({})) TO STDOUT"
        with self._connection.cursor().copy(sql.SQL(wanted).format(sql.Literal(ids))) as copy:
            data = b"".join(bytes(piece) for piece in copy)
        self._connection.commit()
        return len(ids), data

    def write(self, data: bytes) -> None:
        with self._connection.cursor().copy("COPY staged FROM STDIN") as copy:
            copy.write(data)
        self._connection.execute(self._upsert)
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


class Owner:
    """Hands over what it has decided, as the real one does."""

    def __init__(self, number: int) -> None:
        self.log = OfflineLog(number, number + 1, mixed=False)
        self._before = 0

    def batch(self) -> Batch:
        """All that is new since the last one."""
        log = self.log
        items, log.entries = log.entries, []
        log.records.clear()
        jobs: dict[JobId, Job] = log.partition.drain_touched()
        batch = Batch(log.partition.number, self._before, items, jobs)
        self._before = batch.after
        return batch


def lives(owner: Owner, *, batches: int) -> Iterator[Batch]:
    log = owner.log
    log.request(JOBS)
    if batches == 3:
        yield owner.batch()
    grants = log.grant(JOBS)
    log.report(grants, ends=False)
    if batches == 3:
        yield owner.batch()
    log.report(grants)
    yield owner.batch()


class Compared:
    def __init__(self, dsn: str, pid: int) -> None:
        self._dsn, self._pid = dsn, pid
        self._floor = Floor(dsn)
        self._projector = Projector(dsn, topic=TOPIC)

    def close(self) -> None:
        self._projector.close()
        self._floor.close()

    def run(self, measure: str, number: int, rounds: int, *, batches: int) -> Result:
        owner = Owner(number)
        self._projector.cursor(number)
        self._projector.apply(owner.batch())
        for _ in range(WARM):
            self._round(owner, Spent(), Spent(), batches)
        ours, floor, ratios = Spent(), Spent(), []
        for _ in range(rounds):
            both = Spent(), Spent()
            self._round(owner, *both, batches)
            ratios.append(both[0].rate / both[1].rate)
            for whole, part in zip((ours, floor), both, strict=True):
                for name in part.__struct_fields__:
                    setattr(whole, name, getattr(whole, name) + getattr(part, name))
        progress(f"{measure}: {ours.rate:.0f} rows/s, floor {floor.rate:.0f}")
        return Result(
            measure,
            "x",
            ours=statistics.median(ratios),
            ours_as_beside=ours.rate,
            beside=floor.rate,
            beside_is="rows/s",
            detail=f"{JOBS:,} jobs a batch",
            figures=ours.figures("ours") | floor.figures("floor"),
        )

    def _round(self, owner: Owner, ours: Spent, floor: Spent, batches: int) -> None:
        for batch in lives(owner, batches=batches):
            applied = self._timed(ours, partial(self._projector.apply, batch))
            assert not applied.folded
            ids = list(batch.jobs or ())
            # Each job, and what its history has gained.
            ours.rows += 2 * applied.jobs
            rows, data = self._floor.ready_made(ids)
            self._timed(floor, partial(self._floor.write, data))
            floor.rows += rows

    def _timed(self, spent: Spent, act: Callable[[], Any]) -> Any:
        gc.collect()
        postgres, python = cpu_of([self._pid]), time.process_time()
        began = time.perf_counter()
        found = act()
        spent.seconds += time.perf_counter() - began
        spent.python += time.process_time() - python
        spent.postgres += cpu_of([self._pid]) - postgres
        return found


def measure(full: bool) -> Iterator[Result]:
    gc.set_threshold(*GC_THRESHOLD)
    rounds = ROUNDS * 5 if full else ROUNDS
    with bench_postgres() as (dsn, pid):
        compared = Compared(dsn, pid)
        try:
            yield compared.run("projection", 0, rounds, batches=3)
            yield compared.run("projection_at_once", 1, rounds, batches=1)
        finally:
            compared.close()


if __name__ == "__main__":
    run(measure, __doc__)
