"""A whole ledger on this machine: servers, topics, tables, workers, an api. All are child
processes of ours that end with us, however we end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from cli.outcome import CommandError, Exit
from cli.servers import api_file
from cli.settings import Settings
from ledger.embedded import AlreadyRunning, Stack
from ledger.embedded.processes import Child, free_ports, write_whole
from ledger.sealing.keyring import generate_key

OBJECTS = "objects"
"""In the data directory, where no other object store is set."""
READY_SECONDS = 60.0
PROBE_SECONDS = 2.0
WORKER_STOP_SECONDS = 30.0
API_STOP_SECONDS = 20.0
KEYS_FILE = "sealing.keys"
WORKER = ("-m", "cli.main", "worker")

Tell = Callable[[str, str], None]
"""What is ready, and where."""


class LocalLedger:
    """Use with `with`; everything runs inside it. `directory` None: data that goes at the end."""

    def __init__(
        self,
        settings: Settings,
        *,
        directory: Path | None,
        api_port: int,
        tell: Tell,
        kafka_port: int | None = None,
        calls_models: bool = False,
    ) -> None:
        """`kafka_port` is taken if it is free. `calls_models`: also on this machine."""
        # What is set for a real ledger must not reach this one.
        self.settings = settings.model_copy(
            update={"kafka_security": "PLAINTEXT", "mode": "development"}
        )
        self._tell = tell
        self._api_port = api_port
        self._calls_models = calls_models
        try:
            # What goes at the end lives for a minute, and outlives no machine.
            is_short = directory is None
            self.stack = Stack(
                directory,
                kafka_port=_if_free(kafka_port),
                durable=not is_short,
                fast_start=is_short,
            )
        except OSError as error:
            raise CommandError(f"{directory} cannot be used: {error}") from None
        self.directory = self.stack.directory
        self.api_url = ""
        self.health_url = ""
        self._children: dict[str, Child] = {}
        self._closing = ExitStack()

    def __enter__(self) -> LocalLedger:
        try:
            with self._closing:
                self._start()
                self._closing = self._closing.pop_all()
        except AlreadyRunning as error:
            raise CommandError(
                str(error),
                fix=f"use it, stop process {error.pid}, or take another place with LEDGER_DATA",
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def start_child(self, name: str, words: Sequence[str], *, stop_seconds: float = 5.0) -> Child:
        """A Python module as a process of its own, such as `-m cli.main worker`."""
        child = Child(
            [sys.executable, *words], log=self.directory / f"{name}.log", directory=Path.cwd()
        )
        self._closing.callback(child.stop, signal.SIGTERM, seconds=stop_seconds)
        return child

    def ended(self) -> tuple[str, Child] | None:
        """A worker or the api, if it has ended by itself."""
        for name, child in self._children.items():
            if not child.alive:
                return name, child
        return None

    def _start(self) -> None:
        self._closing.enter_context(self.stack)
        addresses = self.stack.addresses
        self._tell("kafka", addresses.kafka)
        self._tell("postgres", addresses.postgres)
        # Children inherit it; on a command line everybody could read the password.
        os.environ.update(
            LEDGER_KAFKA=addresses.kafka,
            LEDGER_POSTGRES=addresses.postgres,
            LEDGER_KAFKA_SECURITY=self.settings.kafka_security,
            LEDGER_MODE=self.settings.mode,
        )
        if self.settings.sealing_keys is None:
            os.environ["LEDGER_SEALING_KEYS"] = str(own_keys(self.directory))
        if not self.settings.objects:
            os.environ["LEDGER_OBJECTS"] = str(self.directory / OBJECTS)
        if self._calls_models and not self.settings.model_allow:
            os.environ["LEDGER_MODEL_ALLOW"] = "loopback"
        self.settings = self.settings.model_copy(update={"kafka": addresses.kafka})
        self._prepare()
        health_port, calls_port, *free = free_ports(3)
        api_port = self._api_port or free[0]
        self.health_url = f"http://127.0.0.1:{health_port}"
        self.api_url = f"http://127.0.0.1:{api_port}"
        # Together: each takes a second of imports.
        self._children["worker"] = self.start_child(
            "worker",
            [*WORKER, "--health-port", str(health_port)],
            stop_seconds=WORKER_STOP_SECONDS,
        )
        self._children["api"] = self.start_child(
            "api",
            ["-m", "cli.main", "api", "--host", "127.0.0.1", "--port", str(api_port)],
            stop_seconds=API_STOP_SECONDS,
        )
        if self._calls_models:
            self._children["model-calls"] = self.start_child(
                "model-calls",
                [*WORKER, "--only", "model-calls", "--health-port", str(calls_port)],
                stop_seconds=WORKER_STOP_SECONDS,
            )
        self._wait_for("worker", f"{self.health_url}/readyz")
        self._tell("worker", f"{self.health_url}/healthz")
        if self._calls_models:
            calls_url = f"http://127.0.0.1:{calls_port}"
            self._wait_for("model-calls", f"{calls_url}/readyz")
            self._tell("model-calls", f"{calls_url}/healthz")
        self._wait_for("api", f"{self.api_url}/readyz")
        write_whole(api_file(self.directory), self.api_url)
        self._closing.callback(api_file(self.directory).unlink, missing_ok=True)
        self._tell("api", self.api_url)

    def _prepare(self) -> None:
        from projections.schema import migrate

        settings, addresses = self.settings, self.stack.addresses
        connection = settings.connection(addresses.kafka)
        asyncio.run(
            settings.topics.apply(connection, partitions=settings.partitions, mode=settings.mode)
        )
        migrate(addresses.postgres, schema=settings.postgres_schema)

    def _wait_for(self, name: str, url: str) -> None:
        self._children[name].wait_until(
            lambda _: answers(url), name=f"the {name}", seconds=READY_SECONDS
        )


def own_keys(directory: Path) -> Path:
    """The file with the key that this ledger's secrets are sealed under: as long as the data."""
    place = (directory / KEYS_FILE).absolute()
    if not place.exists():
        write_whole(place, f"dev:{generate_key()}\n", mode=0o600)
    return place


def _if_free(port: int | None) -> int | None:
    if port is None:
        return None
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
    return port


def answers(url: str) -> bool:
    """Whether a GET is answered with success."""
    if urlsplit(url).scheme != "http":
        raise ValueError(url)
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGTERM is a Ctrl-C too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_running(ledger: LocalLedger) -> None:
    """Raises CommandError if a worker or the api has ended."""
    ended = ledger.ended()
    if ended is not None:
        name, child = ended
        raise CommandError(
            f"the {name} ended by itself; the end of {child.log}:\n{child.output[-2_000:]}",
            exit_code=Exit.BAD,
        )
