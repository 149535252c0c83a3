"""A ledger of real processes that tests kill, freeze and start again."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ledger.embedded.processes import Child, free_ports
from ledger.log.connection import Connection
from ledger.log.topics import Mode, Topics
from projections.schema import migrate

STOP_SECONDS = 30


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

    async def prepare(self) -> None:
        await self.topics.apply(self.connection, partitions=self.partitions, mode=self.mode)
        await asyncio.to_thread(migrate, self.dsn)

    def start(self, name: str, *words: str) -> Child:
        """`python <words>`; a name used before is the same role, started again."""
        old = self.children.get(name)
        assert old is None or not old.alive, f"{name} runs already"
        self.started += 1
        log = self.directory / f"{self.started:03}-{name}.log"
        child = Child([sys.executable, *words], log=log, directory=Path.cwd())
        self.children[name] = child
        return child

    def worker(self, name: str = "worker", *words: str) -> Child:
        return self.start(name, "-m", "cli.main", "worker", *words)

    def runtime(self, name: str, queue: str, *, slots: int = 20) -> Child:
        return self.start(name, "-m", "tests.support.chaos_runtime", name, queue, str(slots))

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

    def logged(self, event: str) -> list[str]:
        """Lines of all processes, of all their lives, that name this event."""
        return [
            line
            for log in sorted(self.directory.glob("*.log"))
            for line in log.read_text(errors="replace").splitlines()
            if f'"{event}"' in line
        ]

    async def until(self, holds: Callable[[], bool], *, seconds: float, what: str) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await asyncio.to_thread(holds):
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what}\n{self.tails()}")
            await asyncio.sleep(0.1)  # Between two looks.

    def tails(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}"
            for log in sorted(self.directory.glob("*.log"))[-8:]
        )
