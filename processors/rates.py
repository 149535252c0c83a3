"""Jobs per minute, by queue and by what became of them: a reaction to the log, as a Faust agent.

`RatesFeed` is the shared reader: it takes the proven entries that an owner in this process offers,
and reads the log where they do not continue its checkpoint. Once a second it hands what has come to
the agent, whole effective entries in a batch, on a channel in this process. `RatesStore` writes
counts and checkpoint in one transaction, the checkpoint by compare-and-set: a batch counts once,
however often it is sent and by how many workers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

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
from ledger.domain.ids import SECOND, JobId
from ledger.domain.job import Job
from ledger.log.effective import START, Cursor, Effective, TakenOver
from ledger.log.errors import LogError
from processors.sql import statement
from projections.batches import advanced, end_of
from projections.feed import Source
from projections.schema import connect

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 1.0
"""Between batches: one transaction a second and partition, not one an entry."""
BUFFERED_EVENTS_MAX = 200_000
"""Offered and not yet handed on; beyond, the log is read again later."""
RETRY_SECONDS = 2.0
"""After Postgres or the log did not answer."""
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


def counted(items: Sequence[Effective]) -> Counted:
    """Total: an entry that raises is counted as quarantined, and none of its events otherwise."""
    counts: Counter[Key] = Counter()
    quarantined = 0
    for item in items:
        if isinstance(item, TakenOver):
            continue
        try:
            counts.update(_counted_entry(item.entry))
        except Exception as error:
            quarantined += 1
            log.error(
                "rates.quarantined",
                offset=item.first_offset,
                entry=item.entry.number,
                reason=repr(error),
            )
    return Counted(counts, quarantined)


def _counted_entry(entry: Entry) -> Counter[Key]:
    minute = entry.at // MINUTE_US * 60
    found: Counter[Key] = Counter()
    for event in entry.events:
        outcome = OUTCOMES.get(type(event))
        if outcome is not None:
            queue = event.job_id.rpartition(".")[0]  # type: ignore[union-attr]
            found[minute, queue, outcome] += 1
    return found


class RatesStore:
    """Counts and checkpoints in Postgres. Blocking, for threads; one connection, made when needed.

    Every method may raise `psycopg.Error`; the next call connects anew.
    """

    def __init__(self, dsn: str, *, topic: str, schema: str = "ledger") -> None:
        self._dsn = dsn
        self._topic = topic
        self._schema = schema
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._lock = threading.Lock()

    def cursor(self, partition: int) -> Cursor:
        """Where to go on; the log's beginning where nothing was ever counted."""
        with self._lock, self._transaction() as connection:
            row = connection.execute(
                statement("rates_cursor"), {"partition": partition}
            ).fetchone()
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
        place = {
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
        with self._lock, self._transaction() as connection:
            if connection.execute(statement(name), place).fetchone() is None:
                raise Superseded
            connection.cursor().executemany(statement("rates_count"), rows)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _transaction(self) -> psycopg.Connection[tuple[Any, ...]]: ...


class _Follower:
    """One partition: where its counting stands, and what waits to be counted."""

    def __init__(self) -> None:
        self.cursor: Cursor | None = None
        """Behind what was handed to the agent; None: ask the store."""
        self.offered: list[tuple[int, Sequence[Effective]]] = []
        self.events = 0
        self.is_caught_up = False
        """False: the log has to be read before what was offered can continue."""
        self.generation = 0

    def reset(self) -> None:
        self.cursor = None
        self.is_caught_up = False
        self.generation += 1


class RatesFeed:
    """One a process. `follow`, `offer` and `unfollow` belong to the event loop; never block."""

    def __init__(self, store: RatesStore, source: Source) -> None:
        self.store = store
        self._source = source
        self._followers: dict[int, _Follower] = {}
        self._generations = 0
        self._news = asyncio.Event()
        self._send: Callable[[RatesBatch], Awaitable[object]] | None = None
        self._counts: Counter[str] = Counter()
        self._last_error: str | None = None
