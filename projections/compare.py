"""Whether two sets of read models say the same, row by row, histories unpacked to (job, seq).

`rows = fold(log[0 .. checkpoint])` is shown by folding the log anew into a schema beside and
comparing. `commands` is left out: it is kept for an hour only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import sql

from projections.packing import raw_events

TABLES: dict[str, tuple[str, ...]] = {
    "checkpoints": ("application_name",),
    "partitions": ("partition",),
    "open_jobs": ("id",),
    "ended_jobs": ("id",),
    "queues": ("name",),
    "runtimes": ("queue", "runtime_id"),
    "queue_settings": ("queue",),
    "schedules": ("queue", "name"),
    "models": ("name",),
    "templates": ("queue", "type", "version"),
    "operations": ("id",),
    "operation_parts": ("operation_id", "partition"),
}
"""By their keys."""
HISTORY = "job_events"
NEWEST = "newest"
"""The part of a job's history that lies in its own row: it is compared with the rest of it."""
NOT_COMPARED = (HISTORY, "flushes", "commands", "schema_migrations")
"""Row by row, that is; the other tables of the read models."""
ROWS_AT_ONCE = 2_000
DIFFERENCES_MAX = 100

Connection = psycopg.Connection[tuple[Any, ...]]
Key = tuple[Any, ...]
Row = tuple[Key, Any]


class Difference(Struct, frozen=True):
    table: str
    key: Key
    left: Any
    """None: it has no such row."""
    right: Any

    def __str__(self) -> str:
        if self.left is None or self.right is None:
            side = "left" if self.left is None else "right"
            return f"{self.table} {self.key}: missing on the {side}"
        return f"{self.table} {self.key}: {self.left} is not {self.right}"


def compare(
    left: Connection,
    right: Connection,
    *,
    differences_max: int = DIFFERENCES_MAX,
    progress: Callable[[str, int], None] = lambda table, rows: None,
) -> list[Difference]:
    """Both connections have their `search_path` on the schema to read, in a transaction each whose
    snapshot stands at the same positions. Rows are streamed, so any size fits in memory.

    `progress` is told each table's name and how many rows were compared.
    """
    found: list[Difference] = []
    for table in (*TABLES, HISTORY):
        rows = 0
        pairs = _merged(_rows(left, table), _rows(right, table))
        for key, of_left, of_right in pairs:
            rows += 1
            if of_left != of_right:
                found.append(Difference(table, key, of_left, of_right))
                if len(found) >= differences_max:
                    return found
        progress(table, rows)
    return found


def _rows(connection: Connection, table: str) -> Iterator[Row]:
    """In the order of their keys."""
    return _histories(connection) if table == HISTORY else _digests(connection, table)


def _digests(connection: Connection, table: str) -> Iterator[Row]:
    keys = TABLES[table]
    columns = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
        "AND NOT attisdropped AND attname <> %s ORDER BY attname",
        (table, NEWEST),
    ).fetchall()
    query = sql.SQL("SELECT {keys}, md5(ROW({columns})::text) FROM {table} ORDER BY {keys}").format(
        keys=sql.SQL(", ").join(map(sql.Identifier, keys)),
        columns=sql.SQL(", ").join(sql.Identifier(name) for (name,) in columns),
        table=sql.Identifier(table),
    )
    with connection.cursor(name=f"compare_{table}") as cursor:
        cursor.itersize = ROWS_AT_ONCE
        for row in cursor.execute(query):
            yield row[:-1], row[-1]


def _histories(connection: Connection) -> Iterator[Row]:
    """One row an event, by the place at which its job began."""
    with connection.cursor(name="compare_history", binary=True) as cursor:
        cursor.itersize = ROWS_AT_ONCE
        cursor.execute(
            "SELECT partition, born, first_seq, last_seq, packed, job_id, request, payload "
            "FROM job_events UNION ALL "
            "SELECT partition, born, version, version, newest, NULL, NULL, NULL "
            "FROM jobs WHERE newest <> '' ORDER BY partition, born, first_seq"
        )
        for partition, born, first_seq, last_seq, stretch, *asked in cursor:
            if first_seq == 1:
                yield (partition, born, 0), asked
            for seq, *event in raw_events(last_seq, stretch):
                yield (partition, born, seq), event


def _merged(left: Iterator[Row], right: Iterator[Row]) -> Iterator[tuple[Key, Any, Any]]:
    """Rows of equal keys side by side; None where one side has none."""
    ours, theirs = next(left, None), next(right, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours[0] < theirs[0]):
            assert ours is not None
            yield ours[0], ours[1], None
            ours = next(left, None)
        elif ours is None or theirs[0] < ours[0]:
            yield theirs[0], None, theirs[1]
            theirs = next(right, None)
        else:
            yield ours[0], ours[1], theirs[1]
            ours, theirs = next(left, None), next(right, None)
