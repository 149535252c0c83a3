"""One Postgres server as a child process on loopback.

It listens on TCP only, and asks for the password that lies beside its data: the superuser of a
server may run programs as whoever runs the server, so other users of the machine must not get in.

Postgres refuses to run as root. For root it runs as `nobody`, and where `nobody` may not enter the
directory (a home folder, pytest's temporary folders) the data lies under /var/lib/job-ledger and
the directory holds a link to it: whoever removes such a directory for good removes both.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import tempfile
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from ledger.embedded.downloads import postgres_programs
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
INIT_SECONDS = 60.0
CONNECT_SECONDS = 10
USER = "ledger"
DATABASE = "ledger"
ROOTS_DATA = Path("/var/lib/job-ledger")

# What is lost is lost only when the machine itself fails. `synchronous_commit=off` would also lose
# commits when no more than the server is killed, and next to `fsync=off` it gains little.
NOT_DURABLE = ("-c", "fsync=off", "-c", "full_page_writes=off")


class Postgres:
    """A server under `directory`, with one database `ledger` to begin with.

    `durable=False` spares the disk: for tests, never for measurements.
    """

    def __init__(self, directory: Path, *, port: int | None = None, durable: bool = True) -> None:
        self._directory = directory.resolve()
        self._fixed_port = port
        self._port: int | None = None
        self._durable = durable
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._child: Child | None = None
        self._stopped = threading.Event()
        self._spawning = threading.Lock()

    @property
    def dsn(self) -> str:
        """The address of the database `ledger`, with its password. Only while started."""
        return self.dsn_of(DATABASE)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.alive else None

    def dsn_of(self, database: str) -> str:
        if self._port is None:
            raise EmbeddedError("Postgres is not running")
        password = self._password.read_text()
        return f"postgresql://{USER}:{password}@127.0.0.1:{self._port}/{database}"

    def start(self) -> None:
        """Returns when it answers. Raises `EmbeddedError` and leaves nothing running."""
        if self.pid is not None:
            raise EmbeddedError("Postgres has already been started")
        self._stopped.clear()
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            with claimed(self._directory) as claim:
                data = self._data()
                self._initialise(data, claim)
                # After a kill, clients find it where it was.
                self._port = self._fixed_port or self._port or free_ports(1)[0]
                self._launch(data, claim)
            self._ensure_database()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends sessions and the server; the data stays. May be called again, and from another
        thread than the one in `start`, which then raises."""
        self._end(signal.SIGINT)
        self._port = None

    def kill(self) -> None:
        """A crash: no checkpoint, every session cut, and the next start replays the journal.

        Postgres's own way to crash ends its session processes with it, which SIGKILL would orphan.
        """
        self._end(signal.SIGQUIT)

    def erase(self) -> None:
        """Removes the data, wherever it lies, and the directory; the server must be stopped."""
        if self.pid is not None:
            raise EmbeddedError("Postgres is running: stop it before its data is removed")
        if not self._directory.exists():
            return
        place = self._directory / "data"
        with claimed(self._directory):
            pass
        if place.is_symlink():
            shutil.rmtree(Path(os.path.realpath(place)).parent, ignore_errors=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Creates a database, a copy of `template` if named; returns its address."""
        query = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            query += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        self._administer(query)
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Drops it under the feet of whoever is still connected; no error if it is not there."""
        query = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self._administer(query.format(sql.Identifier(name)))

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

    @property
    def _password(self) -> Path:
        return self._directory / "password"

    def _administer(self, query: sql.Composed) -> None:
        with psycopg.connect(
            self.dsn_of("postgres"), autocommit=True, connect_timeout=CONNECT_SECONDS
        ) as connection:
            connection.execute(query)

    def _ensure_database(self) -> None:
        with suppress(psycopg.errors.DuplicateDatabase):
            self.create_database(DATABASE)

    def _end(self, number: signal.Signals) -> None:
        self._stopped.set()
        with self._spawning:
            child = self._child
        if child is not None:
            child.stop(number, seconds=STOP_SECONDS)

    def _data(self) -> Path:
        """Where the data lies: in the directory, or behind the link in it."""
        place = self._directory / "data"
        if place.is_symlink() or self._user is None or _may_enter(self._user, self._directory):
            return Path(os.path.realpath(place))
        ROOTS_DATA.mkdir(mode=0o755, parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix="postgres-", dir=ROOTS_DATA))
        home.chmod(0o755)
        place.symlink_to(home / "data")
        return home / "data"

    def _initialise(self, data: Path, claim: FileIO) -> None:
        """Makes a data directory beside its place and moves it there once it is whole."""
        if (data / "PG_VERSION").exists():
            return
        password = secrets.token_urlsafe(18)
        fresh, word = data.with_name("data.fresh"), data.with_name("password.fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700, parents=True)
        word.unlink(missing_ok=True)
        word.touch(mode=0o600)
        word.write_text(password)
        if self._user is not None:
            for path in (fresh, word):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        run(
            [
                *(postgres_programs() / "initdb", "-D", fresh),
                *("-U", USER, f"--pwfile={word}", "--auth=scram-sha-256"),
                *("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
                *("--locale=C", "--no-sync", "--no-instructions"),
            ],
            name="initdb",
            log=self._directory / "initdb.log",
            directory=fresh,
            seconds=INIT_SECONDS,
            claim=claim,
            user=self._user,
        )
        word.unlink()
        write_whole(self._password, password, mode=0o600)
        fresh.rename(data)

    def _launch(self, data: Path, claim: FileIO) -> None:
        command = [
            *(postgres_programs() / "postgres", "-D", data, "-p", str(self._port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
            *(() if self._durable else NOT_DURABLE),
        ]
        # The claim tells us that no process of an earlier server lives. Postgres goes by the ids of
        # processes in this file, and one that is dead but not waited for yet looks alive to it.
        (data / "postmaster.pid").unlink(missing_ok=True)
        with self._spawning:
            if self._stopped.is_set():
                raise EmbeddedError("Postgres was stopped while it started")
            self._child = Child(
                command,
                log=self._directory / "server.log",
                directory=data,
                claim=claim,
                user=self._user,
            )
        self._child.wait_until(
            lambda child: _is_ready(data, child.pid), name="Postgres", seconds=READY_SECONDS
        )


def _is_ready(data: Path, pid: int) -> bool:
    """What Postgres writes about itself: its process in the first line, its state in the eighth."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _may_enter(user: pwd.struct_passwd, directory: Path) -> bool:
    """Whether a user who owns none of these folders can pass through all of them."""
    return all(
        folder.stat().st_mode & 0o001 or folder.stat().st_uid == user.pw_uid
        for folder in (directory, *directory.parents)
    )
