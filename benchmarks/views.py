"""What it costs to write read models: `python -m benchmarks.views [JOBS] [ROUNDS]`. JSON lines.

Proven entries as an owner hands them over, with the values of the jobs, made offline; the real
projector; a real Postgres that keeps what it acknowledges. The four events of a plain job come in
one flush, or spread over two or three, or a third of the jobs each ("mixed"). A floor in the same
run: two rows a job that moves, ready made, copied to a staging table and upserted into a table of
three columns with no index but its key. Both take turns, a batch each.

`jobs` are those that begin in a batch; CPU is in us a job, bytes are those a job leaves.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psycopg
from msgspec import Raw

from benchmarks.processes import cpu_of
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
from ledger.domain.entries import GRANT, Entry, Proven, TakeOver, cause_of
from ledger.domain.events import Event, LeaseGranted
from ledger.domain.ids import CommandId, JobId, Micros, QueueName, RuntimeId, Session
from ledger.domain.job import Job
from ledger.domain.partition import Partition
from ledger.embedded.postgres import Postgres
from ledger.log.effective import Effective, TakenOver
from projections import schema
from projections.batches import Batch
from projections.copying import HEAD, TAIL
from projections.projector import Projector
from projections.schema import connect, migrate

TOPIC = "ledger.events.v1"
BEGIN = Micros(1_800_000_000_000_000)
TURN_US = 20_000
"""Between two turns of the owner."""
QUEUE, RUNTIME, SESSION = QueueName("bench"), RuntimeId("bench"), Session("s1")
MANY = 50
"""Jobs of which one entry tells, of those given and those reported."""
SLOTS = 10_000
GC_THRESHOLD = (50_000, 20, 50)
WARM = 2
PAYLOAD_BYTES = 200
VARIANTS: dict[str, tuple[int, ...]] = {"1": (1,), "2": (2,), "3": (3,), "mixed": (1, 2, 3)}
"""In how many flushes the lives of jobs come."""


class Owner:
    """Decides, and hands over what it has decided."""

    def __init__(self) -> None:
        self._partition = Partition(0)
        self._random = Random(1)
        self._at = BEGIN
        self._offset = self._asked = self._beats = 0
        self._hash = b""
        self._before = 0
        self._items: list[Effective] = []
        record = TakeOver("bench", self._at, "bench", 1)
        self._partition.take_over(record)
        self._items.append(TakenOver(record, 0))
        self._offset = 1

    def request(self, many: int) -> list[JobId]:
        self._pass_time()
        found = []
        for number in range(many):
            text = self._random.randbytes((PAYLOAD_BYTES - 11) * 3 // 4).hex()[: PAYLOAD_BYTES - 11]
            request = RequestJob(
                "noop", QUEUE, Raw(b'{"text":"%s"}' % text.encode()), {"user": f"u{number % 50}"}
            )
            found += [self._say(request)]
        return [job_id for job_id in found if job_id is not None]

    def grant(self, many: int) -> list[LeaseGranted]:
        self._pass_time()
        self._beats += 1
        self._say(Beat(RUNTIME, SESSION, QUEUE, self._beats, ("noop",), SLOTS))
        given: list[LeaseGranted] = []
        while len(given) < many:
            session = self._partition.queue(QUEUE).sessions[RUNTIME]
            grants = runtimes.grants(
                self._partition,
                QUEUE,
                session.types,
                RUNTIME,
                min(many - len(given), MANY),
                self._at,
                session=SESSION,
                after=session.number,
            )
            assert grants
            self._append(tuple(grants), GRANT)
            given += grants
        return given

    def report(self, grants: Sequence[LeaseGranted]) -> None:
        self._pass_time()
        for first in range(0, len(grants), MANY):
            words: list[ReportedStart | ReportedResult] = []
            for one in grants[first : first + MANY]:
                words.append(ReportedStart(one.job_id, one.fence))
                words.append(ReportedResult(one.job_id, one.fence, Raw(b'{"ok":true}')))
            self._say(Report(RUNTIME, SESSION, QUEUE, tuple(words)))

    def batch(self) -> Batch:
        """All that is new since the last one."""
        items, self._items = self._items, []
        jobs: dict[JobId, Job] = self._partition.drain_touched()
        batch = Batch(0, self._before, items, jobs)
        self._before = batch.after
        return batch

    def _pass_time(self) -> None:
        self._at = Micros(self._at + TURN_US)

    def _say(self, command: Command) -> JobId | None:
        self._asked += 1
        command_id = CommandId(f"bench-{self._asked:020d}")
        asked = Asked(command, command_id, "bench", sent_at=self._at, appended_at=self._at)
        decided = decide(self._partition, asked, self._at)
        assert isinstance(decided, Decided), decided
        self._append(decided.events, cause_of(command_id, awaited=False))
        return decided.job_id

    def _append(self, events: tuple[Event, ...], cause: str) -> None:
        if not events:
            return
        entry = Entry(self._partition.entry + 1, self._at, 0, 0, events, "bench", cause)
        self._hash = sha256(self._hash + str(entry.number).encode()).digest()
        last = self._offset + len(events) - 1
        self._items.append(Proven(entry, self._offset, last, self._hash))
        self._offset = last + 1
        self._partition.apply(entry)


def batches(spread: Sequence[int], jobs: int) -> Iterator[Batch]:
    """So many jobs begin in each, for ever; those that come in two flushes are given a lease in the
    second, those that come in three end in the third."""
    owner = Owner()
    each = jobs // len(spread)
    waiting = 0
    leased: list[LeaseGranted] = []
    while True:
        owner.report(leased)
        leased = []
        if 3 in spread and waiting:
            leased = owner.grant(each)
            waiting -= each
        if 2 in spread and waiting:
            owner.report(owner.grant(each))
            waiting -= each
        assert not waiting
        if 1 in spread:
            owner.request(each)
            owner.report(owner.grant(each))
        waiting = each * sum(flushes > 1 for flushes in spread)
        owner.request(waiting)
        yield owner.batch()


class Floor:
    """COPY to staging and one upsert, of rows that lie ready."""

    def __init__(self, dsn: str) -> None:
        self._connection: psycopg.Connection[Any] = connect(dsn, schema=schema.SCHEMA)
        self._connection.execute(
            'CREATE TABLE floor (id text COLLATE "C" PRIMARY KEY, version integer, packed bytea) '
            "WITH (fillfactor = 50); "
            'CREATE TEMPORARY TABLE staged (id text COLLATE "C", version integer, packed bytea) '
            "ON COMMIT DELETE ROWS; "
            "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off"
        )
        self._connection.commit()
        self._number = 0
        self._random = Random(2)

    def rows(self, batch: Batch, width: int) -> tuple[int, bytes]:
        """A row a job, which may be there; and one of its history, which is new."""
        self._number += 1
        ids = [job_id.encode() for job_id in batch.jobs or ()]
        ids += [b"%s.%d" % (job_id, self._number) for job_id in ids]
        head = Struct(">hi").pack
        rows = []
        for job_id in ids:
            size = max(width - len(job_id) - 8, 8)
            packed = self._random.randbytes(size)
            version = Struct(">iii").pack(4, self._number, size)
            rows.append(head(3, len(job_id)) + job_id + version + packed)
        return len(ids), b"".join((HEAD, *rows, TAIL))

    def write(self, data: bytes) -> None:
        with (
            self._connection.cursor() as cursor,
            cursor.copy("COPY staged FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.write(data)
        self._connection.execute(
            "INSERT INTO floor SELECT * FROM staged ON CONFLICT (id) DO UPDATE "
            "SET version = excluded.version, packed = excluded.packed",
            prepare=True,
        )
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


class Exchanges(schema.BoundedConnection):
    """Counts how often the client has waited for the server, and what for."""

    many = 0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        Exchanges.many += 1
        return super().wait(gen, *args, **kwargs)


def stored(connection: psycopg.Connection[Any]) -> dict[str, int]:
    rows = connection.execute(
        "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' "
        "AND relnamespace = 'ledger'::regnamespace AND relname <> 'floor'"
    ).fetchall()
    return dict(rows)


def measured(
    server: Postgres, name: str, spread: Sequence[int], jobs: int, rounds: int
) -> dict[str, Any]:
    dsn = server.create_database(f"views_{name}")
    migrate(dsn)
    pid = server.pid
    assert pid is not None
    made = batches(spread, jobs)
    given = [next(made) for _ in range(WARM + rounds)]
    gc.collect()
    gc.freeze()
    floor = Floor(dsn)
    look = psycopg.connect(dsn, autocommit=True)
    look.execute("SET search_path = ledger")

    def wal() -> int:
        [(at,)] = look.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
        return int(at)

    wall = [0.0, 0.0]
    python = [0.0, 0.0]
    postgres = [0.0, 0.0]
    rows = [0, 0]
    written = exchanges = 0
    ratios: list[float] = []
    with Projector(dsn, topic=TOPIC) as projector:
        projector.cursor(0)
        for batch in given[:WARM]:
            projector.apply(batch)
        size, before = stored(look), wal()
        width = 300
        for batch in given[WARM:]:
            cpu, own, waits, lsn = cpu_of([pid]), time.process_time(), Exchanges.many, wal()
            began = time.perf_counter()
            applied = projector.apply(batch)
            took = time.perf_counter() - began
            python[0] += time.process_time() - own
            wall[0] += took
            exchanges += Exchanges.many - waits
            written += wal() - lsn
            postgres[0] += cpu_of([pid]) - cpu
            assert not applied.folded
            many, data = floor.rows(batch, width)
            rows[0] += many
            own, cpu, began = time.process_time(), cpu_of([pid]), time.perf_counter()
            floor.write(data)
            floor_took = time.perf_counter() - began
            python[1] += time.process_time() - own
            wall[1] += floor_took
            postgres[1] += cpu_of([pid]) - cpu
            rows[1] += many
            ratios.append(floor_took / took)
        del before
        after = stored(look)
    floor.close()
    look.close()
    gc.unfreeze()
    server.drop_database(f"views_{name}")
    total = jobs * rounds
    tables = {
        table: round((bytes_ - size.get(table, 0)) / total)
        for table, bytes_ in after.items()
        if (bytes_ - size.get(table, 0)) / total >= 1
    }
    return {
        "measure": "views",
        "flushes": name,
        "jobs": total,
        "jobs_a_batch": jobs,
        "jobs_per_second": round(total / wall[0]),
        "rows_per_second": round(rows[0] / wall[0]),
        "floor_rows_per_second": round(rows[1] / wall[1]),
        "ratio": round(statistics.median(ratios), 2),
        "projector_us": round(python[0] / total * 1e6, 1),
        "postgres_us": round(postgres[0] / total * 1e6, 1),
        "floor_postgres_us": round(postgres[1] / total * 1e6, 1),
        "wal_bytes": round(written / total),
        "stored_bytes": sum(tables.values()),
        "tables": tables,
        "exchanges_a_batch": round(exchanges / rounds, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 900
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    names = sys.argv[3:] or list(VARIANTS)
    gc.set_threshold(*GC_THRESHOLD)
    schema.BoundedConnection = Exchanges  # type: ignore[misc]
    with TemporaryDirectory() as directory:
        server = Postgres(Path(directory) / "postgres", durable=True)
        with server:
            for name in names:
                line = measured(server, name, VARIANTS[name], jobs, rounds)
                print(msgspec.json.encode(line).decode(), flush=True)
        server.erase()


if __name__ == "__main__":
    main()
