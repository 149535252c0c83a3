"""Where the read models lie, and how they come to be: numbered migrations, each applied once.

All statements name tables without a schema; `search_path` says which. A rebuild makes the same
tables in a schema beside the live one and changes their names.
"""

from __future__ import annotations

import re
import time
from importlib.resources import files
from typing import Any, TypeVar, cast

import psycopg
from msgspec import Struct
from psycopg import errors, sql
from psycopg.abc import PQGen
from psycopg.waiting import Ready

from projections.packing import StoredByAnotherVersion

SCHEMA = "ledger"
LOCK = 0x6C65_6467_6572_0001
"""Of migrations and of the switch of a rebuild, in Postgres's space of advisory locks."""
CONNECT_SECONDS = 10
KEPT_ALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""So that TCP itself gives up a peer that does not answer, in about 25 s."""
SILENCE_SECONDS = 10.0
"""Beyond what a statement may take, by the server's own clock."""
MIGRATE_SECONDS = 600
Answer = TypeVar("Answer")
_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,48}")


class ServerSilent(psycopg.OperationalError):
    """No answer came, and none will."""


class MigrationsChanged(Exception):
    """The database has migrations that this version does not know: it belongs to a later one."""


class Migration(Struct, frozen=True):
    number: int
    name: str
    statements: str


def migrations() -> tuple[Migration, ...]:
    """Of this version, in order."""
    found = [
        Migration(int(match[1]), file.name, file.read_text(encoding="utf-8"))
        for file in files("projections").joinpath("migrations").iterdir()
        if (match := _NAME.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda one: one.number))


def checked(schema: str) -> str:
    """Raises ValueError for what needs quoting as a schema's name."""
    if not _SCHEMA.fullmatch(schema):
        raise ValueError(f"{schema!r} is no schema name: lower case letters, digits and _")
    return schema


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up a server that says nothing for longer than any statement may last.

    The server's own bounds, and TCP's, do not help where something in between has forgotten the
    connection and still acknowledges what is sent: whoever waits would wait for ever.
    """

    silence_seconds_max: float = CONNECT_SECONDS

    def wait(self, gen: PQGen[Answer], *args: Any, **kwargs: Any) -> Answer:
        try:
            return super().wait(_bounded(gen, self.silence_seconds_max), *args, **kwargs)
        except ServerSilent:
            self.close()
            raise


class BoundedAsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same for an event loop."""

    silence_seconds_max: float = CONNECT_SECONDS

    async def wait(self, gen: PQGen[Answer], *args: Any, **kwargs: Any) -> Answer:
        try:
            return await super().wait(_bounded(gen, self.silence_seconds_max), *args, **kwargs)
        except ServerSilent:
            await self.close()
            raise


def _bounded(gen: PQGen[Answer], seconds: float) -> PQGen[Answer]:
    """The same steps; psycopg comes by now and then even where nothing arrives."""
    deadline = time.monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready == Ready.NONE and time.monotonic() > deadline:
                raise ServerSilent(f"Postgres has said nothing for {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return cast(Answer, end.value)


def connect(
    dsn: str, *, schema: str = SCHEMA, name: str = "ledger", statement_seconds: float = 30.0
) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection whose statements and waits are bounded. Not in autocommit mode."""
    connection = BoundedConnection.connect(
        dsn,
        connect_timeout=CONNECT_SECONDS,
        application_name=name,
        **KEPT_ALIVE,
    )
    connection.silence_seconds_max = statement_seconds + SILENCE_SECONDS
    try:
        configure(connection, schema=schema, statement_seconds=statement_seconds)
    except BaseException:
        connection.close()
        raise
    return connection


def configure(
    connection: psycopg.Connection[Any], *, schema: str, statement_seconds: float
) -> None:
    connection.execute(settings_of(schema, statement_seconds))
    connection.commit()


def settings_of(schema: str, statement_seconds: float) -> sql.Composed:
    """What a session is to be told first."""
    milliseconds = sql.Literal(int(statement_seconds * 1000))
    return sql.SQL(
        "SET search_path = {schema}; SET timezone = 'UTC'; SET client_min_messages = warning; "
        "SET statement_timeout = {bound}; SET lock_timeout = {bound}; "
        "SET idle_in_transaction_session_timeout = {bound}"
    ).format(schema=sql.Identifier(checked(schema)), bound=milliseconds)


def migrate(dsn: str, *, schema: str = SCHEMA) -> tuple[str, ...]:
    """Applies what is missing, in one transaction; returns the names of what was applied.

    Two at once wait for each other. Raises `MigrationsChanged`, `StoredByAnotherVersion`.
    """
    known = migrations()
    with connect(dsn, schema=schema, statement_seconds=MIGRATE_SECONDS) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        return apply_missing(connection, schema, known)


def apply_missing(
    connection: psycopg.Connection[Any], schema: str, known: tuple[Migration, ...]
) -> tuple[str, ...]:
    identifier = sql.Identifier(checked(schema))
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(identifier))
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations (number integer PRIMARY KEY, "
        "name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    rows = connection.execute("SELECT number, name FROM schema_migrations").fetchall()
    applied = {int(number): str(name) for number, name in rows}
    names = {migration.number: migration.name for migration in known}
    if strange := sorted(set(applied.items()) - set(names.items())):
        raise MigrationsChanged(f"the database has {strange}, this version knows {sorted(names)}")
    missing = [migration for migration in known if migration.number not in applied]
    for migration in missing:
        try:
            connection.execute(migration.statements.encode())
        except errors.RaiseException as error:
            raise StoredByAnotherVersion(f"{migration.name}: {error}") from error
        connection.execute(
            "INSERT INTO schema_migrations (number, name) VALUES (%s, %s)",
            (migration.number, migration.name),
        )
    return tuple(migration.name for migration in missing)
