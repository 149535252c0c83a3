"""Kafka and Postgres together under one directory, as the demo and `ledger dev` use them.

One process at a time may run a stack: it holds a lock on the directory for as long as it lives, and
says in `addresses.json` where its servers are, so that other processes can use them or say who has
them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from ledger.embedded.downloads import kafka_jars, postgres_programs
from ledger.embedded.java import java
from ledger.embedded.kafka import Kafka
from ledger.embedded.postgres import Postgres
from ledger.embedded.processes import POLL_SECONDS, EmbeddedError, locked, write_whole

# Whoever only asks whether a stack is running holds the lock for an instant.
LOCK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Addresses:
    kafka: str
    postgres: str


@dataclass(frozen=True, slots=True)
class Running:
    """A stack that some process runs; `addresses` is None while it starts or stops."""

    pid: int
    addresses: Addresses | None


class AlreadyRunning(EmbeddedError):
    """Another process runs a stack in this directory."""

    def __init__(self, directory: Path, running: Running) -> None:
        self.pid = running.pid
        self.addresses = running.addresses
        where = f": Kafka at {running.addresses.kafka}" if running.addresses else ""
        super().__init__(f"process {running.pid} already runs the servers of {directory}{where}")


class Stack:
    """Both servers; `directory=None` means a temporary one that is removed at the end.

    For the options see `Kafka` and `Postgres`. A KeyboardInterrupt at any moment leaves nothing
    running: what `stop` is kept from ending ends with the process.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        kafka_port: int | None = None,
        postgres_port: int | None = None,
        durable: bool = True,
        fast_start: bool = False,
    ) -> None:
        self._temporary = directory is None
        self.directory = _temporary_directory() if directory is None else directory.resolve()
        self.kafka = Kafka(self.directory / "kafka", port=kafka_port, fast_start=fast_start)
        self.postgres = Postgres(self.directory / "postgres", port=postgres_port, durable=durable)
        self._lock: FileIO | None = None

    @property
    def addresses(self) -> Addresses:
        """Only while started."""
        return Addresses(kafka=self.kafka.bootstrap, postgres=self.postgres.dsn)

    def start(self) -> None:
        """Returns when both answer. Raises `AlreadyRunning`, or `EmbeddedError` and leaves nothing
        running."""
        if self._lock is not None:
            raise EmbeddedError("the stack has already been started")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = _hold(self.directory)
        try:
            # Those of a process that was killed.
            _addresses_file(self.directory).unlink(missing_ok=True)
            # In this thread, where an interrupt ends the download.
            java()
            kafka_jars()
            postgres_programs()
            with ThreadPoolExecutor(max_workers=2) as starters:
                starting = [starters.submit(server.start) for server in (self.kafka, self.postgres)]
                try:
                    for server in starting:
                        server.result()
                except BaseException:
                    self._stop_servers()
                    raise
            self._write_addresses()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops both and gives the directory free. May be called again."""
        if self._lock is None:
            return
        self._stop_servers()
        _addresses_file(self.directory).unlink(missing_ok=True)
        if self._temporary:
            self._remove()
        self._lock.close()
        self._lock = None

    def erase(self) -> None:
        """Removes the data of both and the directory. Raises `AlreadyRunning`."""
        if self._lock is not None:
            raise EmbeddedError("the stack is running: stop it before its data is removed")
        if self.directory.exists():
            with _hold(self.directory):
                self._remove()

    @staticmethod
    def running(directory: Path) -> Running | None:
        """Who runs a stack in this directory now, if anybody."""
        try:
            with (directory / "lock").open("rb", buffering=0) as lock:
                return None if locked(lock, fcntl.LOCK_SH) else _holder(directory)
        except FileNotFoundError:
            return None

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

    def _stop_servers(self) -> None:
        try:
            self.kafka.stop()
        finally:
            self.postgres.stop()

    def _remove(self) -> None:
        self.postgres.erase()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write_addresses(self) -> None:
        text = json.dumps(asdict(self.addresses), indent=2)
        # It holds the password of Postgres.
        write_whole(_addresses_file(self.directory), text, mode=0o600)


def _temporary_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="ledger-"))
    # As root, Postgres runs as another user, who has to get in; its own folder is closed.
    directory.chmod(0o711)
    return directory


def _addresses_file(directory: Path) -> Path:
    return directory / "addresses.json"


def _hold(directory: Path) -> FileIO:
    """The open lock file, with our process id in it. Closing it, or our end, gives it free."""
    lock = (directory / "lock").open("ab", buffering=0)
    deadline = time.monotonic() + LOCK_SECONDS
    while not locked(lock):
        if time.monotonic() > deadline:
            lock.close()
            raise AlreadyRunning(directory, _holder(directory))
        time.sleep(POLL_SECONDS)
    lock.truncate(0)
    lock.write(str(os.getpid()).encode())
    return lock


def _holder(directory: Path) -> Running:
    try:
        addresses = Addresses(**json.loads(_addresses_file(directory).read_bytes()))
    except FileNotFoundError:
        addresses = None
    return Running(int((directory / "lock").read_text() or 0), addresses)
