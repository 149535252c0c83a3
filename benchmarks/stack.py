"""A whole ledger for a measurement: real servers that keep what they acknowledge, each role in a
process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psycopg
from psycopg import sql

from benchmarks.processes import cpu_of
from cli.local import answers
from ledger.embedded import Postgres, Stack
from ledger.embedded.processes import free_ports
from ledger.log.connection import Connection
from ledger.log.topics import Topics
from projections.schema import migrate

SETTLE_SECONDS = 0.6
"""After which the servers have done what they do behind one's back."""
POLL_SECONDS = 0.05
START_SECONDS = 60
STOP_SECONDS = 30


@dataclass
class Measured:
    """Where CPU went, in seconds."""

    workers: float
    runtimes: float
    apis: float
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
    apis: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def partitions(self) -> int:
        return int(self.environment["LEDGER_PARTITIONS"])

    def worker(self) -> subprocess.Popen[bytes]:
        """Returns when it has joined the others and owns what it was given."""
        port = free_ports(1)[0]
        process = self._begin(self.workers, "worker", "cli.main", "worker", "--health-port", port)
        self._until_answers(process, f"http://127.0.0.1:{port}/readyz")
        return process

    def api(self) -> str:
        """Its address, once it answers."""
        url = f"http://127.0.0.1:{(port := free_ports(1)[0])}"
        process = self._begin(self.apis, "api", "cli.main", "api", "--port", port)
        self._until_answers(process, f"{url}/readyz")
        return url

    def runtime(self, *queues: str, slots: int, name: str = "bench") -> subprocess.Popen[bytes]:
        words = ("benchmarks.noop_runtime", self.kafka, ",".join(queues), slots, name)
        return self._begin(self.runtimes, "runtime", *words)

    def parked(self, *queues: str, count: int, how: str) -> subprocess.Popen[bytes]:
        """So many runtimes that say they live, and are given nothing."""
        words = ("benchmarks.parked_runtimes", self.kafka, ",".join(queues), count, how)
        return self._begin(self.runtimes, "parked", *words)

    def _begin(
        self, group: list[subprocess.Popen[bytes]], name: str, *words: str | int
    ) -> subprocess.Popen[bytes]:
        with (self.logs / f"{name}-{len(group)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *map(str, words)],
                env=self.environment,
                stdout=subprocess.PIPE if group is self.runtimes else log,
                stderr=log,
            )
        group.append(process)
        return process

    def _until_answers(self, process: subprocess.Popen[bytes], url: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if answers(url):
                return
            time.sleep(POLL_SECONDS)
        self._give_up(f"{url} does not answer")

    def _give_up(self, why: str) -> NoReturn:
        for log in sorted(self.logs.glob("*.log")):
            print(f"--- {log.name}", log.read_text()[-3_000:], sep="\n", file=sys.stderr)
        raise SystemExit(why)

    def cpu(self) -> Measured:
        own = os.times()
        return Measured(
            workers=cpu_of(p.pid for p in self.workers),
            runtimes=cpu_of(p.pid for p in self.runtimes),
            apis=cpu_of(p.pid for p in self.apis),
            producer=own.user + own.system,
            kafka=cpu_of(self.kafka_pids),
            postgres=cpu_of([self.postgres_pid]),
        )

    def wait_until_succeeded(self, queue: str, many: int, *, seconds: float) -> None:
        self.wait_until("succeeded", many, queue, seconds=seconds)

    def wait_until(self, status: str, many: int, *queues: str, seconds: float) -> None:
        """By the read model: what a dashboard would show. Over one connection: a new one for each
        look costs Postgres more than the jobs do."""
        deadline = time.monotonic() + seconds
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            while (done := _count(connection, status, queues)) < many:
                if time.monotonic() > deadline:
                    self._give_up(f"after {seconds:.0f} s {done} of {many} jobs are {status}")
                time.sleep(POLL_SECONDS)

    def count(self, status: str, *queues: str) -> int:
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            return _count(connection, status, queues)

    def tidy_up(self) -> None:
        """What Postgres still owes to rows that came is not the cost of those that come next."""
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def end(self, runtime: subprocess.Popen[bytes]) -> str:
        """What it printed."""
        runtime.send_signal(signal.SIGTERM)
        printed, _ = runtime.communicate(timeout=STOP_SECONDS)
        self.runtimes.remove(runtime)
        return printed.decode()


@contextmanager
def bench_stack(
    *, partitions: int = 4, snapshots: bool = False, **settings: str
) -> Iterator[BenchStack]:
    """`settings`: of the ledger's processes, as `open_bytes_max="1"`."""
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
        if snapshots:
            settings["objects"] = str(servers.directory / "objects")
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
                **{f"LEDGER_{name.upper()}": value for name, value in settings.items()},
            },
        )
        closing.callback(_stop, stack)
        yield stack


@contextmanager
def one_core() -> Iterator[None]:
    """Whatever is started meanwhile has one core for all of it, and the others have nothing to do.
    Two hyperthreads share a core: busy both, each needs half as much time again for the same."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def bench_postgres() -> Iterator[tuple[str, int]]:
    """A durable server alone, with the read models' tables: its address and process."""
    with tempfile.TemporaryDirectory(prefix="ledger-") as directory, ExitStack() as closing:
        Path(directory).chmod(0o711)  # As root, Postgres runs as another user.
        server = Postgres(Path(directory) / "postgres", durable=True)
        server.start()
        closing.callback(server.erase)
        closing.callback(server.stop)
        migrate(server.dsn)
        assert server.pid is not None
        yield server.dsn, server.pid


def _count(connection: psycopg.Connection, status: str, queues: Sequence[str]) -> int:
    """As the read model keeps it: to count rows would cost more than to write them."""
    count = sql.SQL("select coalesce(sum({}), 0)::bigint from ledger.queues where name = any(%s)")
    [(many,)] = connection.execute(count.format(sql.Identifier(status)), (list(queues),)).fetchall()
    return int(many)


def _stop(stack: BenchStack) -> None:
    for process in (*stack.runtimes, *stack.apis, *stack.workers):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
