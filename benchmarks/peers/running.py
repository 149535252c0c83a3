"""One measurement of one peer: a fresh database, each role in a process of its own, CPU from the
trees of processes, done when the peer's own table says so."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from benchmarks.peers.environment import peers_python
from benchmarks.processes import cpu_of

PROGRAMS = Path(__file__).parent / "programs"
SETTLE_SECONDS = 0.6
"""After which the servers have done what they do behind one's back."""
READY_SECONDS = 60.0
DRAIN_SECONDS = 300.0
POLL_SECONDS = 0.02
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Peer:
    """`done` counts, in the peer's own tables, the jobs that have ended well. None: it has no such
    table, and its handler's own count has to do."""

    name: str
    program: str
    done: str | None


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "pgqueuer",
            "on_pgqueuer.py",
            "select count(*) from pgqueuer_log where status = 'successful'",
        ),
        Peer(
            "procrastinate",
            "on_procrastinate.py",
            "select count(*) from procrastinate_jobs where status = 'succeeded'",
        ),
        Peer(
            "dbos",
            "on_dbos.py",
            "select count(*) from dbos.workflow_status where status = 'SUCCESS'",
        ),
        Peer("taskiq", "on_taskiq.py", None),
    )
}


@dataclass(frozen=True, slots=True)
class PeerRun:
    jobs_per_second: float
    cpu_us_per_job: float
    """Of all processes: the peer's own, Postgres, and the broker for a peer on Kafka."""
    parts: dict[str, float]
    """The same, a process each."""


class PeerFailed(Exception):
    """A peer's program ended, said nothing for long, or its table does not have what was asked."""


def drain(
    peer: str,
    jobs: int,
    batch: int,
    dsn: str,
    postgres_pid: int,
    *,
    kafka: str = "",
    kafka_pids: Sequence[int] = (),
) -> PeerRun:
    """`jobs` are submitted, 500 a step, while a worker that takes `batch` at once runs them; from
    the first submission until the peer's table holds all of them as done.

    `dsn` is of a server on which databases may be made. Raises `PeersUnavailable`, `PeerFailed`.
    """
    with _running(PEERS[peer], batch, jobs + 1, dsn, kafka) as run:
        pids = {"submit": run.submitter.pid, "work": run.worker.pid, "postgres": postgres_pid}
        if PEERS[peer].done is None:
            del pids["postgres"]
        run.one()
        time.sleep(SETTLE_SECONDS)
        before, began = _spent(pids, kafka_pids), time.perf_counter()
        run.submitter.say(f"many {jobs}")
        run.submitter.hear("seconds", DRAIN_SECONDS)
        run.worker.hear("handled", DRAIN_SECONDS)
        run.until_done(jobs + 1)
        took = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
        after = _spent(pids, kafka_pids)
    parts = {name: round((after[name] - before[name]) / jobs * 1e6, 1) for name in after}
    return PeerRun(jobs / took, sum(parts.values()), parts)


def latency(
    peer: str, rate: float, seconds: float, dsn: str, *, batch: int = 10, kafka: str = ""
) -> tuple[float, float]:
    """Milliseconds from just before a job is submitted to the start of its handler: p50 and p99."""
    jobs = int(rate * seconds)
    with _running(PEERS[peer], batch, jobs + 1, dsn, kafka) as run:
        run.one()
        time.sleep(SETTLE_SECONDS)
        run.submitter.say(f"trickle {rate} {seconds}")
        run.submitter.hear("seconds", seconds + READY_SECONDS)
        run.worker.hear("handled", READY_SECONDS)
        run.until_done(jobs + 1)
        waited = sorted(micros / 1e3 for micros in run.worker.end()["waited_us"])
    return waited[len(waited) // 2], waited[int(len(waited) * 0.99)]


def _spent(pids: dict[str, int], kafka_pids: Sequence[int]) -> dict[str, float]:
    spent = {name: cpu_of([pid]) for name, pid in pids.items()}
    if "postgres" not in pids:
        spent["broker"] = cpu_of(kafka_pids)
    return spent


class Program:
    """A peer's program in a role; it hears and says lines."""

    def __init__(self, arguments: Sequence[str | Path], log: IO[bytes]) -> None:
        self._log = log
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},
        )
        self._heard: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self, word: str, seconds: float) -> dict[str, Any]:
        """The next answer that has `word`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                heard = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._failed(f"no {word!r} within {seconds:.0f} s") from None
            if heard is None:
                raise self._failed(f"it ended with {self._process.wait(STOP_SECONDS)}")
            if word in heard:
                return heard

    def end(self) -> dict[str, Any]:
        """What the worker says at its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.hear("waited_us", STOP_SECONDS)

    def wait(self) -> None:
        """Of a program that ends by itself."""
        if self._process.wait(READY_SECONDS):
            raise self._failed(f"it ended with {self._process.returncode}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Else it is a library that prints.
                self._heard.put(json.loads(line))
        self._heard.put(None)

    def _failed(self, why: str) -> PeerFailed:
        self._log.flush()
        said = Path(str(self._log.name)).read_text()[-2_000:]
        return PeerFailed(f"{self._process.args!r}: {why}\n{said}")


@dataclass(frozen=True, slots=True)
class _Run:
    peer: Peer
    submitter: Program
    worker: Program
    database: psycopg.Connection[tuple[Any, ...]]

    def one(self) -> None:
        """The worker is there, and has run a job: what is only done once is done."""
        self.submitter.say("many 1")
        self.submitter.hear("seconds", READY_SECONDS)
        self.worker.hear("first", READY_SECONDS)
        self.until_done(1)

    def until_done(self, jobs: int) -> None:
        """Exactly so many, as its own table says."""
        if self.peer.done is None:
            return
        deadline = time.monotonic() + READY_SECONDS
        while (done := self._done()) < jobs:
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self.peer.name}: {done} of {jobs} jobs are done in its table")
            time.sleep(POLL_SECONDS)
        if done != jobs:
            raise PeerFailed(f"{self.peer.name}: {done} jobs are done, of {jobs} that were asked")

    def _done(self) -> int:
        assert self.peer.done is not None
        row = self.database.execute(self.peer.done.encode()).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def _running(peer: Peer, batch: int, expected: int, dsn: str, kafka: str) -> Iterator[_Run]:
    python = peers_python()
    with ExitStack() as closing:
        logs = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        address = closing.enter_context(_fresh_database(dsn, f"peer_{peer.name}"))
        server = address if peer.done is not None else f"{kafka}/peer_{uuid4().hex}"

        def start(role: str) -> Program:
            log = closing.enter_context((logs / role).open("wb"))
            program = PROGRAMS / peer.program
            words: list[str | Path] = [python, program, role, server, str(batch), str(expected)]
            return closing.enter_context(Program(words, log))

        start("prepare").wait()
        worker, submitter = start("work"), start("submit")
        worker.hear("ready", READY_SECONDS)
        submitter.hear("ready", READY_SECONDS)
        database = closing.enter_context(psycopg.connect(address, autocommit=True))
        yield _Run(peer, submitter, worker, database)


@contextmanager
def _fresh_database(dsn: str, name: str) -> Iterator[str]:
    drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield urlsplit(dsn)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(drop)
