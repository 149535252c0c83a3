"""Where each view of a partition stands: the only module here that imports `eventsourcing`.

The library's tracking recorder is the base: its table, its `Tracking` (application_name =
topic-partition, notification_id = the next offset to read), its way to begin. Its own check is
`new > current` only, so a batch prepared at 100…199 would still be taken after somebody else
committed 100…149. Here a checkpoint moves by compare-and-set on the old position, in the
transaction of the rows, and carries what a reader of the log needs to resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresDatastore, PostgresTrackingRecorder
from msgspec import Struct
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from ledger.log.effective import START, Cursor
from projections.packing import LAYOUT, StoredByAnotherVersion
from projections.schema import SCHEMA, checked, connect
from projections.sql import statement

TABLE = "checkpoints"
Connection = psycopg.Connection[tuple[Any, ...]]


class Superseded(Exception):
    """Somebody else moved the checkpoint: what was prepared from it must be dropped."""

    def __init__(self, application: str, expected: int, stored: int) -> None:
        super().__init__(f"the checkpoint of {application} is {stored}, not {expected}")
        self.stored = stored


class CheckpointLost(Exception):
    """The views of a partition were begun, and their checkpoint is gone or is another's. Starting
    again over the rows that are there would count them twice: rebuild."""


class Move(Struct, frozen=True, gc=False):
    """From one place in a partition to another."""

    partition: int
    old: Cursor
    new: Cursor


class Checkpoints(PostgresTrackingRecorder):
    """Reads and moves checkpoints within the caller's transactions.

    What the base does on connections of its own (`max_tracking_id`, `wait` …) opens a small pool
    at its first use; `close` closes it.
    """

    def __init__(self, dsn: str, *, topic: str, schema: str = SCHEMA) -> None:
        words = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
        store = PostgresDatastore(
            dbname=words.get("dbname", ""),
            host=words.get("host", ""),
            port=words.get("port", ""),
            user=words.get("user", ""),
            password=words.get("password", ""),
            schema=checked(schema),
            single_row_tracking=True,
        )
        super().__init__(store, tracking_table_name=TABLE)
        self._topic = topic

    def close(self) -> None:
        self.datastore.close()

    def application(self, partition: int) -> str:
        return f"{self._topic}-{partition}"

    def read(self, connection: Connection, partition: int) -> Cursor | None:
        """None: the partition was never begun. Raises `CheckpointLost`."""
        application = self.application(partition)
        row = connection.execute(statement("apply/checkpoint"), {"partition": partition}).fetchone()
        if row is None:
            return None
        begun_as, entry, layout, offset, packed, nonces = row
        if layout != LAYOUT:
            raise StoredByAnotherVersion(
                f"the views of {application} have layout {layout}, this version reads {LAYOUT}"
            )
        if begun_as != application:
            raise CheckpointLost(f"the views of partition {partition} are of {begun_as}")
        if offset is None:
            raise CheckpointLost(f"{application} was read up to entry {entry}; nothing says where")
        cursor = unpacked(packed, nonces)
        if (cursor.offset, cursor.entry) != (offset, entry):
            raise CheckpointLost(
                f"{application}: the rows are of entry {entry}, the checkpoint is of "
                f"{cursor.entry} at offset {cursor.offset}, tracked as {offset}"
            )
        return cursor

    def begin(self, connection: Connection, partition: int) -> Cursor:
        """The start of the log, as the first checkpoint; or the one that is there."""
        application = self.application(partition)
        with connection.transaction():
            begun = connection.execute(
                statement("apply/begin_partition"),
                {"partition": partition, "application": application, "layout": LAYOUT},
            )
            if begun.rowcount == 1:
                with connection.cursor(row_factory=dict_row) as cursor:
                    self._insert_tracking(cursor, Tracking(application, START.offset))
        return self.read(connection, partition) or START

    def move(self, connection: Connection, moves: Sequence[Move]) -> None:
        """In the caller's transaction; holds the rows until its end, so rivals wait, then see.
        All or none: give them in the order of their partitions, and rivals wait in one direction.

        Raises `Superseded`, `CheckpointLost`, of one of them.
        """
        packed = [packed_cursor(move.new) for move in moves]
        moved = connection.execute(
            statement("apply/move_checkpoints"),
            {
                "applications": [self.application(move.partition) for move in moves],
                "old": [move.old.offset for move in moves],
                "new": [move.new.offset for move in moves],
                "cursors": [cursor for cursor, _ in packed],
                "nonces": [
                    nonces if move.old.nonces != move.new.nonces else b""
                    for move, (_, nonces) in zip(moves, packed, strict=True)
                ],
            },
            prepare=True,
        )
        stood = {application for (application,) in moved}
        for move in moves:
            application = self.application(move.partition)
            if application not in stood:
                raise self._elsewhere(connection, application, move.old.offset)

    def _elsewhere(
        self, connection: Connection, application: str, expected: int
    ) -> Superseded | CheckpointLost:
        stored = connection.execute(
            "SELECT notification_id FROM checkpoints WHERE application_name = %s", (application,)
        ).fetchone()
        if stored is None:
            return CheckpointLost(f"the checkpoint of {application} is gone")
        return Superseded(application, expected, stored[0])


def cursors(dsn: str, *, topic: str, schema: str = SCHEMA) -> dict[int, Cursor]:
    """How far the views of each partition are that was begun: what they saw of its log."""
    checkpoints = Checkpoints(dsn, topic=topic, schema=schema)
    try:
        with connect(dsn, schema=schema) as connection:
            begun = connection.execute(statement("queries/status")).fetchall()
            found = {row[0]: checkpoints.read(connection, row[0]) for row in begun}
    finally:
        checkpoints.close()
    return {partition: cursor for partition, cursor in found.items() if cursor is not None}


def packed_cursor(cursor: Cursor) -> tuple[bytes, bytes]:
    """Without its nonces, and the nonces."""
    return _encode(replace(cursor, nonces=())), _encode(cursor.nonces)


def unpacked(packed: bytes | None, nonces: bytes | None) -> Cursor:
    if packed is None:
        return START
    return replace(_cursor(packed), nonces=() if nonces is None else _nonces(nonces))


_encode = msgspec.msgpack.Encoder().encode
_cursor = msgspec.msgpack.Decoder(Cursor).decode
_nonces = msgspec.msgpack.Decoder(tuple[str, ...]).decode
