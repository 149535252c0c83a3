"""One Kafka broker, or three, as child processes on loopback.

Each node is broker and controller at once. The data directory survives restarts; the ports may
change between them, so clients ask `bootstrap` anew. A node that is killed and restarted within the
life of one `Kafka` comes back on its own ports.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from ledger.embedded.downloads import kafka_jars
from ledger.embedded.java import java
from ledger.embedded.processes import (
    Child,
    EmbeddedError,
    claimed,
    free_ports,
    run,
    write_whole,
)

READY_SECONDS = 60.0
STOP_SECONDS = 15.0
CLUSTER_STOP_SECONDS = 2.0
FORMAT_SECONDS = 60.0
HEAP_MEGABYTES = 512
"""At most, of each node."""
READY_LINE = "Kafka Server started"

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=CLIENTS://127.0.0.1:{port},{inner_listeners}
advertised.listeners=CLIENTS://127.0.0.1:{advertised_port},{inner_listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=BROKERS
listener.security.protocol.map=CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}

auto.create.topics.enable=false
num.partitions=1
default.replication.factor={replicas}
min.insync.replicas={in_sync_min}
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync_min}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync_min}
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=4

# How soon a dead broker is given up, and how long its successor waits to take its place.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=2097152
log.index.size.max.bytes=1048576
num.network.threads=2
num.io.threads=4
background.threads=2
group.coordinator.threads=1
"""

LOG4J_PROPERTIES = f"""\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c)%n
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
# The one that says "{READY_LINE}".
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=info
"""


@dataclass
class _Node:
    directory: Path
    port: int
    advertised_port: int
    brokers_port: int
    controller_port: int
    child: Child | None = field(default=None)

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"


class Kafka:
    """A cluster under `directory`, its nodes numbered from 1.

    `port` is where node 1 listens; every other port is a free one. `fast_start` spares the JVM its
    optimising compiler: ready sooner, slower later; for tests, never for measurements.
    `advertised_ports` are where clients find each node, if not where it listens: whoever listens
    there passes on to `ports`. The nodes reach each other directly.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        cluster_size: int = 1,
        fast_start: bool = False,
        advertised_ports: Sequence[int] | None = None,
        heap_megabytes: int = HEAP_MEGABYTES,
    ) -> None:
        self._directory = directory.resolve()
        self._port = port
        self._advertised_ports = advertised_ports
        self._heap_megabytes = heap_megabytes
        self._fast_start = fast_start
        self._numbers = range(1, cluster_size + 1)
        self._nodes: dict[int, _Node] = {}
        self._stopped = threading.Event()
        self._spawning = threading.Lock()

    @property
    def bootstrap(self) -> str:
        """Comma-separated addresses, as clients take them. Only while started."""
        if not self._nodes or self._stopped.is_set():
            raise EmbeddedError("Kafka is not running")
        return ",".join(f"127.0.0.1:{node.advertised_port}" for node in self._nodes.values())

    @property
    def ports(self) -> dict[int, int]:
        """Where each node listens for clients."""
        return {number: node.port for number, node in self._nodes.items()}

    @property
    def pids(self) -> dict[int, int]:
        """The process of each node that is alive (a paused one is)."""
        return {
            number: node.child.pid
            for number, node in self._nodes.items()
            if node.child is not None and node.child.alive
        }

    def start(self) -> None:
        """Returns when every node serves. Raises `EmbeddedError` and leaves nothing running."""
        if self.pids:
            raise EmbeddedError("Kafka has already been started")
        self._stopped.clear()
        self._nodes = self._new_nodes()
        try:
            self._launch(*self._nodes)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Asks every node to end, kills those that do not; the data stays. May be called again,
        and from another thread than the one in `start`, which then raises."""
        self._stopped.set()
        with self._spawning:
            children = [node.child for node in self._nodes.values() if node.child is not None]
        # All at once. A node asks a majority for leave to go, so the last to ask get no answer and
        # would wait for minutes: they are killed, and recover their logs at the next start.
        for child in children:
            child.send(signal.SIGTERM)
        seconds = STOP_SECONDS if len(children) == 1 else CLUSTER_STOP_SECONDS
        for child in children:
            child.stop(signal.SIGTERM, seconds=seconds)

    def kill(self, *numbers: int) -> None:
        """SIGKILL, and wait until they are gone."""
        for number in numbers:
            self._child(number).kill()

    def pause(self, number: int) -> None:
        """SIGSTOP: the node keeps its connections and answers nothing. Returns once it stands."""
        self._child(number).pause()

    def resume(self, number: int) -> None:
        """SIGCONT: it goes on as if nothing had been, its timers long due."""
        self._child(number).send(signal.SIGCONT)

    def restart(self, *numbers: int) -> None:
        """Stops those that are alive and starts them on the same ports; returns when all serve.

        Nodes that need each other for a majority must be named in one call.
        """
        for number in numbers:
            self._child(number).stop(signal.SIGTERM, seconds=STOP_SECONDS)
        self._launch(*numbers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _new_nodes(self) -> dict[int, _Node]:
        size = len(self._numbers)
        free = free_ports(3 * size)
        ports, brokers_ports, controller_ports = free[:size], free[size:-size], free[-size:]
        if self._port is not None:
            ports[0] = self._port
        advertised_ports = self._advertised_ports or ports
        places = zip(ports, advertised_ports, brokers_ports, controller_ports, strict=True)
        return {
            number: _Node(self._directory / f"node-{number}", *place)
            for number, place in zip(self._numbers, places, strict=True)
        }

    def _child(self, number: int) -> Child:
        child = self._nodes[number].child
        if child is None:
            raise EmbeddedError(f"Kafka node {number} has not been started")
        return child

    def _launch(self, *numbers: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.properties").write_text(LOG4J_PROPERTIES)
        command = [*self._java(fast_start=self._fast_start), "kafka.Kafka"]
        for number in numbers:
            node = self._nodes[number]
            node.directory.mkdir(parents=True, exist_ok=True)
            with claimed(node.directory) as claim:
                self._write_settings(number, node)
                self._format(node, claim)
                with self._spawning:
                    if self._stopped.is_set():
                        raise EmbeddedError("Kafka was stopped while it started")
                    node.child = Child(
                        [*command, node.properties],
                        log=node.log,
                        directory=node.directory,
                        claim=claim,
                    )
        for number in numbers:
            self._child(number).wait_until(
                lambda child: READY_LINE in child.output,
                name=f"Kafka node {number}",
                seconds=READY_SECONDS,
            )

    def _write_settings(self, number: int, node: _Node) -> None:
        # Static voters, because their addresses are read from here at each start: those of a
        # dynamic quorum lie in its log, and nodes whose ports all changed would never meet.
        voters = ",".join(
            f"{number}@127.0.0.1:{node.controller_port}" for number, node in self._nodes.items()
        )
        size = len(self._nodes)
        node.properties.write_text(
            SERVER_PROPERTIES.format(
                node=number,
                voters=voters,
                port=node.port,
                advertised_port=node.advertised_port,
                inner_listeners=(
                    f"BROKERS://127.0.0.1:{node.brokers_port},"
                    f"CONTROLLER://127.0.0.1:{node.controller_port}"
                ),
                data=node.directory / "data",
                replicas=size,
                in_sync_min=size // 2 + 1,
            )
        )

    def _format(self, node: _Node, claim: FileIO) -> None:
        if (node.directory / "data" / "meta.properties").exists():
            return
        tool = [*self._java(fast_start=True), "kafka.tools.StorageTool", "format"]
        # An id may begin with a dash.
        cluster = f"--cluster-id={self._cluster_id()}"
        run(
            [*tool, "--ignore-formatted", cluster, "-c", node.properties],
            name="formatting Kafka's data directory",
            log=node.directory / "format.log",
            directory=node.directory,
            seconds=FORMAT_SECONDS,
            claim=claim,
        )

    def _cluster_id(self) -> str:
        place = self._directory / "cluster.id"
        if not place.exists():
            write_whole(place, urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        return place.read_text()

    def _java(self, *, fast_start: bool) -> list[str]:
        return [
            str(java()),
            *("-Xms64m", f"-Xmx{self._heap_megabytes}m", "-XX:+UseSerialGC"),
            "-Djava.awt.headless=true",
            *(["-XX:TieredStopAtLevel=1"] if fast_start else []),
            # Or each broker that is killed leaves files behind in the machine's temporary folder.
            *(f"-Djava.io.tmpdir={self._directory}", "-XX:-UsePerfData"),
            f"-Dlog4j2.configurationFile=file:{self._directory / 'log4j2.properties'}",
            *("-cp", os.pathsep.join(map(str, kafka_jars()))),
        ]
