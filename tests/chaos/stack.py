"""Everything that a storm runs over: three brokers and Postgres behind wires, and every role of the
ledger in processes of its own, each of which can be ended, frozen and started again."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from cli.local import answers
from ledger.client.producer import Producer
from ledger.embedded import Kafka, Postgres
from ledger.embedded.processes import Child, free_ports
from ledger.objects import open_store
from tests.support.processes import Cluster
from tests.support.wandering_clock import WanderingClock
from tests.support.wire import Wire

PARTITIONS = 4
NODES = (1, 2, 3)
HEAP_MEGABYTES = 256
READY_SECONDS = 180.0
WATCH_SECONDS = 1.0
PROBE_SECONDS = 2.0
PASSING = {"restless", "verify"}
"""They end by themselves when they are done."""
BROKEN = (
    "ChainBroken",
    "LogTruncated",
    "CheckpointNotBorneOut",
    "OffsetOutOfRange",
    "LedgerMismatch",
    "CheckpointLost",
    "owner.input_missing",
)
"""What no process may ever say here: nobody touched the brokers' data."""


@dataclass(frozen=True)
class Size:
    owners: int = 3
    projectors: int = 2
    apis: int = 2
    runtimes: tuple[tuple[str, str, int], ...] = (
        ("kafka-a", "kafka", 3),
        ("kafka-b", "kafka", 2),
        ("http-a", "http", 3),
    )
    """Processes: name, how they speak, and how many runtimes each has."""


SMALL = Size(owners=2, projectors=1, runtimes=(("kafka-a", "kafka", 3), ("http-a", "http", 2)))


@dataclass
class WanderingCluster(Cluster):
    """Each role has a wall clock of its own, which a fault puts wrong; a role that is started again
    finds it as it was."""

    @property
    def clocks(self) -> Path:
        return self.directory.with_name("clocks")

    def clock(self, name: str) -> WanderingClock:
        return WanderingClock(self.clocks / name)

    def start(self, name: str, *words: str, **variables: str) -> Child:
        clock = self.clock(name)
        if not clock.place.exists():
            clock.set(0)
        python_m, *module = words
        assert python_m == "-m"
        wandering = ("-m", "tests.support.wandering_clock", *module)
        return super().start(name, *wandering, LEDGER_TEST_CLOCK=str(clock.place), **variables)


@dataclass
class Stack:
    directory: Path
    kafka: Kafka
    postgres: Postgres
    broker_wires: dict[int, Wire]
    postgres_wire: Wire
    cluster: WanderingCluster
    size: Size
    urls: dict[str, str] = field(default_factory=dict)
    health_urls: dict[str, str] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Ended by a fault, which starts them again itself."""
    seen: Counter[str] = field(default_factory=Counter)
    """What processes told of themselves, added up over all of their lives."""
    _last: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def wires(self) -> list[Wire]:
        return [*self.broker_wires.values(), self.postgres_wire]

    def names(self, role: str) -> list[str]:
        match role:
            case "owner" | "projector" | "api":
                return [name for name in self.cluster.children if name.startswith(f"{role}-")]
            case "runtime":
                return [name for name, *_ in self.size.runtimes]
            case _:
                raise ValueError(role)

    def start(self, name: str) -> Child:
        role = name.partition("-")[0]
        match role:
            case "owner" | "projector":
                [port] = free_ports(1)
                self.health_urls[name] = f"http://127.0.0.1:{port}/healthz"
                return self.cluster.worker(name, "--only", role, "--health-port", str(port))
            case "api":
                child, self.urls[name] = self.cluster.api(name, self._api_port(name))
                return child
            case _:
                how, count = next(
                    (how, count) for one, how, count in self.size.runtimes if one == name
                )
                words = ("-m", "tests.support.storm_runtime", how, name, str(count))
                urls = self.urls.values() if how == "http" else ()
                return self.cluster.start(name, *words, *urls)

    def _api_port(self, name: str) -> int:
        url = self.urls.get(name)
        return free_ports(1)[0] if url is None else int(url.rpartition(":")[2])

    async def start_all(self) -> None:
        apis = [f"api-{number}" for number in range(self.size.apis)]
        for name in (
            *(f"owner-{number}" for number in range(self.size.owners)),
            *(f"projector-{number}" for number in range(self.size.projectors)),
            *apis,
            *(name for name, *_ in self.size.runtimes),
        ):
            self.start(name)
        for name in apis:
            await self.cluster.until(
                partial(answers, f"{self.urls[name]}/readyz"),
                seconds=READY_SECONDS,
                what=f"{name} is ready",
            )

    def producer(self) -> Producer:
        return Producer(
            self.cluster.connection,
            partitions=PARTITIONS,
            wait_seconds=10.0,
            objects=open_store(str(self.directory / "objects")),
        )

    async def leaders(self) -> dict[int, int]:
        """The broker that leads each partition of the events, as one of the others tells."""
        admin = AIOKafkaAdminClient(**self.cluster.connection.client("storm"))
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await admin.start()
                (topic,) = await admin.describe_topics([self.cluster.topics.events])
        except (KafkaError, TimeoutError):
            return {}
        finally:
            await admin.close()
        return {found["partition"]: found["leader"] for found in topic["partitions"]}

    # --- Watching --------------------------------------------------------------------------------
    async def watch(self) -> None:
        """Starts again what has ended by itself, and adds up what processes tell."""
        async with httpx.AsyncClient(timeout=PROBE_SECONDS) as http:
            while True:
                for name, child in list(self.cluster.children.items()):
                    if not child.alive and name not in self.down | PASSING:
                        self.seen[f"{name.partition('-')[0]} ended by itself"] += 1
                        self.start(name)
                for name in self.health_urls:
                    with suppress(httpx.HTTPError, ValueError):
                        report = (await http.get(self.health_urls[name])).json()
                        self._count(self.cluster.children[name].pid, report)
                await asyncio.sleep(WATCH_SECONDS)

    def _count(self, pid: int, report: dict[str, Any]) -> None:
        for part, wanted in (("owner", "take_overs"), ("projector", "superseded")):
            partitions = (report.get(part) or {}).get("partitions") or {}
            told = sum(facts.get(wanted, 0) for facts in partitions.values())
            before = self._last.get((pid, wanted), 0)
            self.seen[f"{part} {wanted}"] += max(0, told - before)
            self._last[pid, wanted] = told

    def logged(self) -> Iterable[str]:
        for log in sorted(self.cluster.directory.glob("*.log")):
            with log.open(errors="replace") as lines:
                yield from lines

    def broken(self) -> list[str]:
        return [line.strip() for line in self.logged() if any(word in line for word in BROKEN)]

    # --- Postgres's data -------------------------------------------------------------------------
    def copy_postgres(self) -> None:
        """While it stands still."""
        subprocess.run(["rm", "-rf", self._copy], check=True)
        subprocess.run(["cp", "-a", self._data, self._copy], check=True)

    def put_postgres_back(self) -> None:
        subprocess.run(["rm", "-rf", self._data], check=True)
        subprocess.run(["cp", "-a", self._copy, self._data], check=True)

    @property
    def _data(self) -> Path:
        return Path(os.path.realpath(self.directory / "postgres" / "data"))

    @property
    def _copy(self) -> Path:
        return self._data.with_name("data.copy")


@asynccontextmanager
async def running(directory: Path, size: Size, chance: random.Random) -> AsyncIterator[Stack]:
    """The servers; the roles are started by `start_all`. Everything ends with the block."""
    wires = {number: Wire(f"broker {number}", chance) for number in NODES}
    postgres_wire = Wire("postgres", chance)
    for wire in (*wires.values(), postgres_wire):
        await wire.start()
    kafka = Kafka(
        directory / "kafka",
        cluster_size=len(NODES),
        fast_start=True,
        advertised_ports=[wire.port for wire in wires.values()],
        heap_megabytes=HEAP_MEGABYTES,
    )
    postgres = Postgres(directory / "postgres")
    cluster: WanderingCluster | None = None
    try:
        await asyncio.gather(asyncio.to_thread(kafka.start), asyncio.to_thread(postgres.start))
        for number, port in kafka.ports.items():
            wires[number].target = port
        direct = urlsplit(postgres.dsn)
        postgres_wire.target = direct.port or 0
        host = direct.netloc.rpartition(":")[0]
        dsn = direct._replace(netloc=f"{host}:{postgres_wire.port}")
        for folder in ("logs", "clocks", "effects", "objects"):
            (directory / folder).mkdir()
        os.environ.update(
            LEDGER_KAFKA=kafka.bootstrap,
            LEDGER_POSTGRES=dsn.geturl(),
            LEDGER_PARTITIONS=str(PARTITIONS),
            LEDGER_MODE="production",
            LEDGER_OBJECTS=str(directory / "objects"),
            LEDGER_CLEAN_SECONDS="1",
            LEDGER_TEST_EFFECTS=str(directory / "effects"),
        )
        cluster = WanderingCluster(
            kafka.bootstrap, dsn.geturl(), "", PARTITIONS, directory / "logs", mode="production"
        )
        await cluster.prepare()
        yield Stack(directory, kafka, postgres, wires, postgres_wire, cluster, size)
    finally:
        if cluster is not None:
            await asyncio.to_thread(cluster.stop)
        await asyncio.gather(asyncio.to_thread(kafka.stop), asyncio.to_thread(postgres.stop))
        for wire in (*wires.values(), postgres_wire):
            await wire.close()
