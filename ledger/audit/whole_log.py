"""What spans the whole log, however long ago it was: kept in a file, and sorted there.

Memory holds what an owner remembers. Beyond that: a command that was done twice under its id (I4),
a job that was requested again (I10), a fence that went back (I6), an occurrence that came twice
(I17), a rerun of a job that had not ended (I18). Since each rerun lies behind the end of what it
repeats, no lineage has a cycle. Results are hashed anew (I10).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import UNSET

from ledger.domain.canonical import sha256_hex
from ledger.domain.entries import Proven, command_of
from ledger.domain.events import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    ScheduleFired,
    StepSucceeded,
)
from ledger.domain.ids import NO_SESSION, JobId
from ledger.domain.invariants import Violation
from ledger.domain.remembered import KEYED

ROWS_AT_ONCE = 5_000
FOUND_MAX = 1_000
"""Of one rule."""
CACHE_KIB = 65_536

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -%d;
CREATE TABLE done (id BLOB, number INTEGER, place INTEGER, job TEXT);
CREATE TABLE requested (id TEXT, number INTEGER, place INTEGER, origin TEXT);
CREATE TABLE ended (id TEXT, number INTEGER);
CREATE TABLE fences (id TEXT, fence INTEGER, number INTEGER, place INTEGER);
CREATE TABLE fired (id TEXT, nominal INTEGER, number INTEGER, place INTEGER, job TEXT);
"""
_AGAIN = """
SELECT job, number, place, before, before_place, {said} FROM (
    SELECT *, lag(number) OVER w AS before, lag(place) OVER w AS before_place{more}
    FROM {table} WINDOW w AS (PARTITION BY {key} ORDER BY number, rowid)
) WHERE before IS NOT NULL AND {wrong} LIMIT ?
"""
_TWICE: tuple[tuple[str, str, str], ...] = (
    (
        "I4",
        "its command had been done before",
        _AGAIN.format(said="NULL", more="", table="done", key="id", wrong="number > before"),
    ),
    (
        "I10",
        "requested a second time",
        _AGAIN.format(
            said="NULL", more=", id AS job", table="requested", key="id", wrong="number >= before"
        ),
    ),
    (
        "I6",
        "a fence that is not above the one before it, {}",
        _AGAIN.format(
            said="last",
            more=", id AS job, lag(fence) OVER w AS last",
            table="fences",
            key="id",
            wrong="fence <= last",
        ),
    ),
    (
        "I17",
        "an occurrence that came before: {}",
        _AGAIN.format(
            said="id || ' at ' || nominal",
            more="",
            table="fired",
            key="id, nominal",
            wrong="number >= before",
        ),
    ),
)
_ORIGINS = """
SELECT r.id, r.number, r.place, NULL, NULL, r.origin FROM requested r
LEFT JOIN (SELECT id, min(number) AS number FROM ended GROUP BY id) e ON e.id = r.origin
WHERE r.origin IS NOT NULL AND (e.number IS NULL OR e.number >= r.number) LIMIT ?
"""


class WholeLog:
    """`with`: the file is removed at the end. Of one partition; a `log_check.Beyond`."""

    def __init__(self, directory: Path, partition: int, *, told_from: int = 0) -> None:
        self._path = directory / f"verify-{partition}.sqlite"
        self._told_from = told_from
        self._path.unlink(missing_ok=True)
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.executescript(_TABLES % CACHE_KIB)
        self._database.execute("BEGIN")
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._waiting = 0
        self._found: list[Violation] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()
        self._path.unlink(missing_ok=True)

    def hear(self, proven: Proven) -> None:
        entry, offset = proven.entry, proven.first_offset
        number = entry.number
        done: JobId | None = None
        event: Any
        for event in entry.events:
            kind = type(event)
            if kind is LeaseGranted:
                self._add("fences", event.job_id, event.fence, number, offset)
                done = event.job_id if event.session == NO_SESSION else done
            elif kind is JobRequested:
                self._add("requested", event.job_id, number, offset, event.retried_from)
                done = event.job_id
            elif kind is JobSucceeded or kind is StepSucceeded:
                self._check_hash(event, number, offset)
                if kind is JobSucceeded:
                    self._add("ended", event.job_id, number)
            elif kind is JobFailed or kind is JobCancelled or kind is JobExpired:
                self._add("ended", event.job_id, number)
            elif kind is ScheduleFired and not event.manual:
                name = f"{event.queue}/{event.name}"
                self._add("fired", name, event.nominal_at, number, offset, event.job_id)
        command_id = None if done is None else command_of(entry.cause)
        # An Idempotency-Key may be used again once it is forgotten.
        if command_id is not None and not command_id.startswith(KEYED):
            identity = sha256(command_id.encode()).digest()[:16]
            self._add("done", identity, number, offset, done)
        if self._waiting >= ROWS_AT_ONCE:
            self._flush()

    def violations(self) -> Iterator[Violation]:
        """Sorts: as long as it takes."""
        self._flush()
        yield from self._found
        for rule, detail, query in _TWICE:
            yield from self._asked(rule, detail, query)
        yield from self._asked("I18", "a rerun of {}, which had not ended, or never was", _ORIGINS)

    def _asked(self, rule: str, detail: str, query: str) -> Iterable[Violation]:
        with closing(self._database.execute(query, (FOUND_MAX,))) as rows:
            for job, number, place, before, before_place, said in rows:
                if place < self._told_from:
                    continue
                seen = (0, -1) if before is None else (before, before_place)
                job_id = None if job is None else JobId(job)
                yield Violation(rule, job_id, number, detail.format(said), place, seen)

    def _check_hash(self, event: JobSucceeded | StepSucceeded, number: int, offset: int) -> None:
        """Of what lies in the log itself."""
        if event.output is UNSET or event.output_ref is not None:
            return
        try:
            found = sha256_hex(msgspec.json.decode(event.output))
        except ValueError:
            return  # Of a number beyond what has one form: as its sender said.
        if found != event.output_hash and offset >= self._told_from:
            what = f"its output has the hash {found}, not {event.output_hash}"
            self._found.append(Violation("I10", event.job_id, number, what, offset))

    def _add(self, table: str, *values: Any) -> None:
        self._rows.setdefault(table, []).append(values)
        self._waiting += 1

    def _flush(self) -> None:
        for table, rows in self._rows.items():
            marks = ",".join("?" * len(rows[0]))
            self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        self._rows, self._waiting = {}, 0
