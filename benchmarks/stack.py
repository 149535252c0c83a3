"""A whole ledger for a measurement: real servers that keep what they acknowledge, each role in a
process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.processes import cpu_of
from ledger.embedded import Stack
from ledger.log.connection import Connection
from ledger.log.topics import Topics
from projections.schema import migrate

SETTLE_SECONDS = 0.6
"""After which the servers have done what they do behind one's back."""
STOP_SECONDS = 30


@dataclass
class Measured:
    """Where CPU went, in seconds."""

    workers: float
    runtimes: float
    producer: float
    kafka: float
    postgres: float


@dataclass
class BenchStack:
    kafka: str
    postgres: str
    kafka_pids: list[int]
    postgres_pid: int
    logs: Path
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    runtimes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def worker(self) -> subprocess.Popen[bytes]:
        log = (self.logs / f"worker-{len(self.workers)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "worker"], env=self.environment, stderr=log
        )
        self.workers.append(process)
        return process

    def runtime(self, queue: str, slots: int, *, name: str = "bench") -> subprocess.Popen[bytes]:
        log = (self.logs / f"runtime-{len(self.runtimes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.noop_runtime", self.kafka, queue, str(slots), name],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        self.runtimes.append(process)
        return process

    def cpu(self) -> Measured:
        own = os.times()
        return Measured(
            workers=cpu_of(p.pid for p in self.workers),
            runtimes=cpu_of(p.pid for p in self.runtimes),
            producer=own.user + own.system,
            kafka=cpu_of(self.kafka_pids),
            postgres=cpu_of([self.postgres_pid]),
        )

    def succeeded(self, queue: str) -> int:
        """Of the read model: what a dashboard would show."""
        with psycopg.connect(self.postgres) as connection:
            return _succeeded(connection, queue)

    def wait_until_succeeded(self, queue: str, many: int, *, seconds: float) -> None:
        """Over one connection: a new one a look costs Postgres more than the jobs do."""
        deadline = time.monotonic() + seconds
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            while (done := _succeeded(connection, queue)) < many:
                if time.monotonic() > deadline:
                    for log in sorted(self.logs.glob("*.log")):
                        print(
                            f"--- {log.name}", log.read_text()[-3_000:], sep="\n", file=sys.stderr
                        )
                    raise SystemExit(f"after {seconds:.0f} s {done} of {many} jobs have succeeded")
                time.sleep(0.05)


def _succeeded(connection: psycopg.Connection[Any], queue: str) -> int:
    # As the read model keeps it: to count rows would cost more than to write them.
    row = connection.execute(
        "select succeeded from ledger.queues where name = %s", (queue,)
    ).fetchone()
    return int(row[0]) if row else 0


@contextmanager
def bench_stack(*, partitions: int = 4) -> Iterator[BenchStack]:
    with ExitStack() as closing:
        servers = Stack(None, durable=True, fast_start=False)
        servers.start()
        closing.callback(servers.stop)
        addresses = servers.addresses
        asyncio.run(
            Topics().apply(
                Connection(bootstrap=addresses.kafka), partitions=partitions, mode="development"
            )
        )
        migrate(addresses.postgres)
        pid = servers.postgres.pid
        assert pid is not None
        stack = BenchStack(
            kafka=addresses.kafka,
            postgres=addresses.postgres,
            kafka_pids=list(servers.kafka.pids.values()),
            postgres_pid=pid,
            logs=servers.directory,
            environment={
                **os.environ,
                "LEDGER_KAFKA": addresses.kafka,
                "LEDGER_POSTGRES": addresses.postgres,
                "LEDGER_PARTITIONS": str(partitions),
            },
        )
        closing.callback(_stop, stack)
        yield stack


def _stop(stack: BenchStack) -> None:
    for process in (*stack.runtimes, *stack.workers):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
