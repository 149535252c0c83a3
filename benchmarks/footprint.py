"""What a job leaves behind: bytes in each topic, rows and bytes in each table, write-ahead log, and
in its owner's memory once it has ended: `python -m benchmarks.footprint [JOBS]`. One JSON line.

Jobs differ as real ones do: payloads of random words, labels of a thousand users.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import tracemalloc
from collections import defaultdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.stack import BenchStack, bench_stack
from ledger.client.command_ids import new_command_id
from ledger.client.producer import Producer
from ledger.domain.ids import SECOND, JobId, Micros, QueueName, new_job_id
from ledger.domain.remembered import Bounds, KeyHolder, Keys, Outcomes

QUEUE = "footprint"
SLOTS = 500
PAYLOAD_BYTES = 170
SETTLE_SECONDS = 11.0
"""An idle session of Postgres says after ten what it did."""
TABLES = """
select relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, pg_total_relation_size(relid)
from pg_stat_user_tables where schemaname = 'ledger' order by relname
"""
WAL = "select (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint"


def measure(stack: BenchStack, jobs: int) -> dict[str, Any]:
    stack.worker()
    stack.runtime(QUEUE, slots=SLOTS)
    asyncio.run(_submit(stack, 1))
    stack.wait_until_succeeded(QUEUE, 1, seconds=60)
    time.sleep(SETTLE_SECONDS)
    with psycopg.connect(stack.postgres, autocommit=True) as connection:
        topics, tables, wal = _topics(stack), _tables(connection), _wal(connection)
        asyncio.run(_submit(stack, jobs))
        stack.wait_until_succeeded(QUEUE, jobs + 1, seconds=300)
        time.sleep(SETTLE_SECONDS)
        topics = {name: size - topics.get(name, 0) for name, size in _topics(stack).items()}
        grown = {
            name: {what: (now - tables[name][what]) / jobs for what, now in row.items()}
            for name, row in _tables(connection).items()
        }
        return {
            "measure": "footprint",
            "jobs": jobs,
            "topic_bytes_per_job": {name: round(size / jobs, 1) for name, size in topics.items()},
            "table_per_job": {
                name: {what: round(value, 3) for what, value in row.items()}
                for name, row in grown.items()
                if any(row.values())
            },
            # Tables whose rows go again are no larger for more jobs.
            "kept_bytes_per_job": round(
                sum(row["bytes"] for row in grown.values() if row["inserted"] > row["deleted"])
            ),
            "wal_bytes_per_job": round((_wal(connection) - wal) / jobs),
            "remembered_bytes": remembered_bytes(),
            "load": os.getloadavg()[0],
        }


def remembered_bytes(many: int = 100_000) -> dict[str, int]:
    """Of a command id and of an idempotency key, in the tables that hold them."""
    at = Micros(1_800_000_000_000_000)

    def job_of(number: int) -> JobId:
        return new_job_id(QueueName(QUEUE), at, str(number).encode())

    def digest(number: int) -> bytes:
        return blake2b(str(number).encode(), digest_size=16).digest()

    tracemalloc.start()
    began = tracemalloc.get_traced_memory()[0]
    outcomes, keys = Outcomes(Bounds()), Keys()
    outcomes.put_back((new_command_id(), at, job_of(n)) for n in range(many))
    noted = tracemalloc.get_traced_memory()[0]
    for n in range(many):
        keys.add(KeyHolder(digest(n), job_of(n), digest(-n), Micros(at + SECOND)), at)
    keyed = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "command_id": round((noted - began) / len(outcomes)),
        "key": round((keyed - noted) / len(keys)),
    }


async def _submit(stack: BenchStack, jobs: int) -> None:
    chance = random.Random(jobs)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(5_000)]
    requests: list[Any] = [
        {
            "type": "noop",
            "queue": QUEUE,
            "payload": {"text": " ".join(chance.choices(words, k=PAYLOAD_BYTES // 8))},
            "labels": {"user": f"u{chance.randrange(1_000)}"},
        }
        for _ in range(jobs)
    ]
    async with Producer(stack.kafka) as producer:
        await producer.submit_many(requests)


def _topics(stack: BenchStack) -> dict[str, int]:
    """Of the segments on the broker's disk, as compressed."""
    sizes: dict[str, int] = defaultdict(int)
    for segment in Path(stack.logs).rglob("*.log"):
        topic, dash, _ = segment.parent.name.rpartition("-")
        if dash and "ledger." in topic:
            sizes[topic] += segment.stat().st_size
    return dict(sizes)


def _tables(connection: psycopg.Connection[Any]) -> dict[str, dict[str, float]]:
    rows = connection.execute(TABLES).fetchall()
    names = ("inserted", "updated", "updated_hot", "deleted", "bytes")
    return {name: dict(zip(names, counts, strict=True)) for name, *counts in rows}


def _wal(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(WAL).fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with bench_stack() as stack:
        print(msgspec.json.encode(measure(stack, jobs)).decode())


if __name__ == "__main__":
    main()
