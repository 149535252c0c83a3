"""What the reaction `rates` counts, and where it keeps the counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
import structlog
from msgspec import Struct

from ledger.domain.entries import Entry
from ledger.domain.events import (
    Event,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRequested,
    JobSucceeded,
    RetryScheduled,
)
from ledger.domain.ids import SECOND
from ledger.log.effective import START, Cursor, Effective, TakenOver
from processors.sql import statement
from projections.schema import connect

log = structlog.get_logger(__name__)

MINUTE_US = 60 * SECOND

OUTCOMES: dict[type[Event], str] = {
    JobRequested: "requested",
    RetryScheduled: "retried",
    JobSucceeded: "succeeded",
    JobFailed: "failed",
    JobCancelled: "cancelled",
    JobExpired: "expired",
}

Key = tuple[int, str, str]
"""Minute (seconds since 1970), queue, outcome."""


Answer = TypeVar("Answer")
Connection = psycopg.Connection[tuple[Any, ...]]


class Superseded(Exception):
    """The stored checkpoint is another than the batch begins at: somebody else has counted it."""


class RatesBatch(Struct, frozen=True, gc=False):
    partition: int
    generation: int
    """Of the partition's follower: what was sent before a reset is passed over."""
    before: Cursor
    after: Cursor
    items: Sequence[Effective]


class Counted(Struct, frozen=True, gc=False):
    counts: Mapping[Key, int]
    quarantined: int
    """Entries that could not be counted."""


def count_of(items: Sequence[Effective]) -> Counted:
    """Total: an entry that raises is counted as quarantined, and none of its events otherwise."""
    counts: dict[Key, int] = {}
    quarantined = 0
    for item in items:
        if isinstance(item, TakenOver):
            continue
        try:
            for key in _keys_of(item.entry):
                counts[key] = counts.get(key, 0) + 1
        except Exception as error:
            quarantined += 1
            log.error(
                "rates.quarantined",
                offset=item.first_offset,
                entry=item.entry.number,
                reason=repr(error),
            )
    return Counted(counts, quarantined)


def _keys_of(entry: Entry) -> list[Key]:
    """One for each event that counts; all of them before any is counted."""
    minute = entry.at // MINUTE_US * 60
    found: list[Key] = []
    for event in entry.events:
        outcome = OUTCOMES.get(type(event))
        if outcome is not None:
            queue = event.job_id.rpartition(".")[0]  # type: ignore[union-attr]
            found.append((minute, queue, outcome))
    return found


class RatesStore:
    """Counts and checkpoints in Postgres. Blocking, for threads; one connection, made when needed.

    Every method may raise `psycopg.Error`; the next call connects anew where that is needed.
    """

    def __init__(self, dsn: str, *, topic: str, schema: str = "ledger") -> None:
        self._dsn = dsn
        self._topic = topic
        self._schema = schema
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def cursor(self, partition: int) -> Cursor:
        """Where to go on; the log's beginning where nothing was ever counted."""
        row = self._run(
            lambda connection: connection.execute(
                statement("rates_cursor"), {"partition": partition}
            ).fetchone()
        )
        if row is None:
            return START
        topic, cursor = row
        if topic != self._topic:
            raise ValueError(
                f"the counts of partition {partition} are of the topic {topic}, not {self._topic}"
            )
        return msgspec.json.decode(cursor, type=Cursor)

    def apply(self, batch: RatesBatch, counted: Counted) -> None:
        """Raises `Superseded`, and then has written nothing."""
        checkpoint = {
            "partition": batch.partition,
            "topic": self._topic,
            "before": batch.before.offset,
            "after": batch.after.offset,
            "cursor": msgspec.json.encode(batch.after),
            "quarantined": counted.quarantined,
        }
        name = "rates_begin" if batch.before.offset == 0 else "rates_advance"
        rows = [
            {"minute": minute, "queue": queue, "outcome": outcome, "count": count}
            for (minute, queue, outcome), count in sorted(counted.counts.items())
        ]

        def write(connection: Connection) -> None:
            if connection.execute(statement(name), checkpoint).fetchone() is None:
                raise Superseded
            connection.cursor().executemany(statement("rates_count"), rows)

        self._run(write)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _run(self, work: Callable[[Connection], Answer]) -> Answer:
        """In one transaction."""
        with self._lock:
            connection = self._connection
            if connection is None or connection.closed:
                connection = self._connection = connect(
                    self._dsn, schema=self._schema, name="ledger-rates"
                )
            try:
                with connection.transaction():
                    return work(connection)
            except psycopg.OperationalError:
                connection.close()
                raise
