"""A ledger of real processes that tests kill, freeze and start again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import psycopg

from ledger.client.operators import Operator
from ledger.embedded.processes import Child, free_ports
from ledger.log.connection import Connection
from ledger.log.topics import Mode, Topics
from projections.schema import migrate
from tests.support.ledger import Ledger

STOP_SECONDS = 30
LOOK_SECONDS = 0.2
"""Between two looks, of which many cost a connection to Postgres."""
OWNER_POINTS = (
    "owner.before_take_over",
    "take_over.before_record",
    "take_over.after_record",
    "owner.after_take_over",
    "owner.after_poll",
    "owner.after_decide",
    "append.before_proof",
    "owner.after_append",
    "owner.before_effects",
    "owner.after_effects",
)
"""Between any two steps of an owner, in their order; see `ledger.log.crash_points`."""
ENDED = frozenset({"succeeded", "failed", "cancelled", "expired"})


@dataclass
class Cluster:
    """Every role a process of its own, of one ledger on the tests' servers."""

    bootstrap: str
    dsn: str
    prefix: str
    partitions: int
    directory: Path
    mode: Mode = "development"
    children: dict[str, Child] = field(default_factory=dict)
    started: int = 0

    @property
    def connection(self) -> Connection:
        return Connection(bootstrap=self.bootstrap)

    @property
    def topics(self) -> Topics:
        return Topics(self.prefix)

    @property
    def settings(self) -> dict[str, str]:
        """The variables by which its processes find it."""
        return {
            "LEDGER_KAFKA": self.bootstrap,
            "LEDGER_POSTGRES": self.dsn,
            "LEDGER_PREFIX": self.prefix,
            "LEDGER_PARTITIONS": str(self.partitions),
        }

    @property
    def ledger(self) -> Ledger:
        """For what a test asks or reads itself."""
        return Ledger(self.connection, self.topics, self.partitions)

    def operator(self, *, wait_seconds: float = 60.0) -> Operator:
        """`wait_seconds`: as long as it waits while nothing is decided."""
        return Operator(
            self.connection,
            partitions=self.partitions,
            prefix=self.prefix,
            wait_seconds=wait_seconds,
        )

    async def prepare(self) -> None:
        """Topics, and tables where there is a database."""
        await self.topics.apply(self.connection, partitions=self.partitions, mode=self.mode)
        if self.dsn:
            await asyncio.to_thread(migrate, self.dsn)

    def start(self, name: str, *words: str, **variables: str) -> Child:
        """`python <words>`; a name used before is the same role, started again."""
        old = self.children.get(name)
        assert old is None or not old.alive, f"{name} runs already"
        self.started += 1
        log = self.directory / f"{self.started:03}-{name}.log"
        with patch.dict(os.environ, self.settings | variables):
            child = Child([sys.executable, *words], log=log, directory=Path.cwd())
        self.children[name] = child
        return child

    def worker(self, name: str = "worker", *words: str, **variables: str) -> Child:
        return self.start(name, "-m", "cli.main", "worker", *words, **variables)

    def lone_owner(self, name: str, *words: str, crash_at: str = "") -> Child:
        """An owner in a group of its own: it need not wait until its predecessor, killed, is
        missed. `crash_at`: as LEDGER_CRASH_AT."""
        group = f"{name}-{self.started}"
        module = ("-m", "tests.support.rival_owner", group)
        return self.start(name, *module, *words, **_crashing(crash_at))

    def lone_worker(self, name: str, *words: str, **variables: str) -> Child:
        """A whole worker likewise; it gives up soon on a broker that sends nothing."""
        group = f"{name}-{self.started}"
        return self.start(name, "-m", "tests.support.lone_worker", group, *words, **variables)

    def runtime(self, name: str, queue: str, *, slots: int = 20, crash_at: str = "") -> Child:
        module = ("-m", "tests.support.chaos_runtime", name, queue, str(slots))
        return self.start(name, *module, **_crashing(crash_at))

    def api(self, name: str = "api", port: int | None = None) -> tuple[Child, str]:
        [port] = free_ports(1) if port is None else [port]
        child = self.start(name, "-m", "cli.main", "api", "--port", str(port))
        return child, f"http://127.0.0.1:{port}"

    def kill(self, name: str) -> None:
        self.children[name].kill()

    def freeze(self, name: str) -> None:
        self.children[name].pause()

    def thaw(self, name: str) -> None:
        self.children[name].send(signal.SIGCONT)

    def stop(self) -> None:
        for child in self.children.values():
            child.send(signal.SIGTERM)
            child.send(signal.SIGCONT)
        for child in self.children.values():
            child.stop(signal.SIGTERM, seconds=STOP_SECONDS)

    def statuses(self) -> dict[str, str]:
        """Of every job, as the views have it."""
        with psycopg.connect(self.dsn) as connection:
            return dict(connection.execute("SELECT id, status FROM ledger.jobs").fetchall())

    async def until_says(self, name: str, event: str) -> None:
        """In its log, in this life."""
        child = self.children[name]
        await self.until(
            lambda: f'"{event}"' in child.output, seconds=60, what=f"{name} says {event}"
        )

    async def until_serving(self, *runtimes: str) -> None:
        """They have told the owner of each of their queues that they are there."""

        def serve() -> bool:
            with psycopg.connect(self.dsn) as connection:
                rows = connection.execute(
                    "SELECT runtime_id FROM ledger.runtimes WHERE ended_at IS NULL"
                )
                return {*runtimes} <= {runtime_id for (runtime_id,) in rows}

        await self.until(serve, seconds=60, what=f"{runtimes} serve")

    async def until_ran(self, *job_ids: str) -> None:
        """The handler of each, of the type `told`, has begun."""
        await self.until(
            lambda: {*job_ids} <= {*self.ran()}, seconds=60, what=f"{job_ids} have begun"
        )

    def ran(self) -> list[str]:
        """The jobs whose handlers of the type `told` have begun, once for each time."""
        return [json.loads(line)["job"] for line in self.logged("told.ran")]

    async def until_ended(self, *job_ids: str, seconds: float = 60.0) -> dict[str, str]:
        """How they ended."""

        def have_ended() -> bool:
            statuses = self.statuses()
            return all(statuses.get(job_id) in ENDED for job_id in job_ids)

        await self.until(have_ended, seconds=seconds, what=f"{job_ids} have ended")
        statuses = self.statuses()
        return {job_id: statuses[job_id] for job_id in job_ids}

    def logged(self, event: str) -> list[str]:
        """Lines of all processes, of all their lives, that name this event."""
        return [
            line
            for log in sorted(self.directory.glob("*.log"))
            for line in log.read_text(errors="replace").splitlines()
            if f'"{event}"' in line
        ]

    async def died(self, name: str, *, seconds: float = 60.0) -> None:
        """By SIGKILL, its own or another's: not by an error."""
        await self.ended(name, seconds=seconds)
        child = self.children[name]
        assert child.status == -signal.SIGKILL, child.output[-3000:]

    async def ended(self, name: str, *, seconds: float = 60.0) -> None:
        """However that came."""
        child = self.children[name]
        await self.until(lambda: not child.alive, seconds=seconds, what=f"{name} has ended")

    async def until(self, holds: Callable[[], bool], *, seconds: float, what: str) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await asyncio.to_thread(holds):
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what}\n{self.tails()}")
            await asyncio.sleep(LOOK_SECONDS)

    def tails(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}"
            for log in sorted(self.directory.glob("*.log"))[-8:]
        )


def _crashing(point: str) -> dict[str, str]:
    return {"LEDGER_CRASH_AT": point} if point else {}
