"""What the read models cost, counted: the same on any machine, however busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from msgspec import Raw

from ledger.domain.commands import Report, ReportedResult, ReportedStart
from ledger.domain.events import LeaseGranted
from ledger.domain.ids import Session
from projections.batches import Batch
from projections.projector import Projector
from projections.schema import connect
from tests.unit.projections.histories import QUEUES, Script

pytestmark = pytest.mark.services
TOPIC = "ledger.events.v1"
JOBS = 200
"""That begin in a batch."""
BATCHES = 4
PAYLOAD = Raw(b'{"text":"' + b"x" * 189 + b'"}')
"""200 bytes."""


class Asked:
    """Counts statements, copies and commits of all connections: each is a round trip."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.many = 0
        for kind, name in (
            (psycopg.Cursor, "execute"),
            (psycopg.Cursor, "copy"),
            (psycopg.Connection, "commit"),
        ):
            patch.setattr(kind, name, self._counted(getattr(kind, name)))

    def _counted(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.many += 1
            return ask(*args, **kwargs)

        return counted


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def batches(flushes: int, jobs: int, partition: int = 0) -> Iterator[Batch]:
    """In each as many jobs begin and end; those of one batch come in so many flushes."""
    script = Script(partition)
    granted: list[LeaseGranted] = []
    done = 0
    while True:
        report(script, granted)
        granted = script.grant(many=jobs) if flushes == 3 and script.partition.jobs else []
        if flushes == 2:
            report(script, script.grant(many=jobs))
        for number in range(jobs):
            script.submit(payload=PAYLOAD, labels={"user": str(number % 50)})
        if flushes == 1:
            report(script, script.grant(many=jobs))
        *_, batch = script.batches((done,))
        done = len(script.items)
        yield batch


def report(script: Script, granted: list[LeaseGranted]) -> None:
    words: list[ReportedStart | ReportedResult] = []
    for one in granted:
        words += [
            ReportedStart(one.job_id, one.fence),
            ReportedResult(one.job_id, one.fence, output=Raw(b'{"ok":true}')),
        ]
    if words:
        script.do(Report(granted[0].runtime_id, Session("s1"), QUEUES[0], tuple(words)))


def wal(look: psycopg.Connection[Any]) -> int:
    [(at,)] = look.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
    return int(at)


def wal_of(views: str, flushes: int, jobs: int = JOBS) -> float:
    """Bytes a job, of some batches after as many that brought the tables into use."""
    made = batches(flushes, jobs)
    with connect(views) as look, Projector(views, topic=TOPIC) as projector:
        projector.cursor(0)
        for _ in range(BATCHES):
            projector.apply(next(made))
        before = wal(look)
        for _ in range(BATCHES):
            assert not projector.apply(next(made)).folded
        return (wal(look) - before) / (BATCHES * jobs)


@pytest.mark.parametrize(("flushes", "most"), [(1, 1_720), (2, 2_380), (3, 2_620)])
def test_a_job_costs_so_much_journal(views: str, flushes: int, most: int) -> None:
    found = wal_of(views, flushes)
    assert found < most


@pytest.mark.parametrize(("flushes", "trips"), [(1, 8), (2, 10), (3, 11)])
@pytest.mark.parametrize("jobs", [3, JOBS])
def test_a_batch_takes_so_many_round_trips_however_many_jobs_it_is_of(
    views: str, asked: Asked, flushes: int, trips: int, jobs: int
) -> None:
    made = batches(flushes, jobs)
    with Projector(views, topic=TOPIC) as projector:
        projector.cursor(0)
        for _ in range(BATCHES):
            projector.apply(next(made))
        before = asked.many
        projector.apply(next(made))
        assert asked.many - before == trips


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_several_partitions_take_as_many_round_trips_as_one(
    views: str, asked: Asked, flushes: int
) -> None:
    partitions = range(5)
    made = [batches(flushes, 3, partition) for partition in partitions]
    with Projector(views, topic=TOPIC) as projector:
        for partition in partitions:
            projector.cursor(partition)
        for _ in range(BATCHES):
            projector.apply_together([next(its) for its in made])
        before = asked.many
        projector.apply(next(made[0]))
        alone = asked.many - before
        before = asked.many
        projector.apply_together([next(its) for its in made[1:]])
        assert asked.many - before == alone


WAITING = 40
"""Batches of jobs: more than one moves by far."""


def read_of_open_jobs(views: str, projector: Projector) -> int:
    """Rows that were fetched from the table so far."""
    assert projector._connection is not None
    projector._connection.execute("SELECT pg_stat_force_next_flush()")
    projector._connection.commit()
    return int(
        one(
            views,
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables "
            "WHERE relname = 'open_jobs'",
        )
    )


@pytest.mark.parametrize("cleared_up", [True, False])
def test_jobs_that_move_are_found_by_their_keys_although_there_were_few(
    views: str, cleared_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner takes a table for as large as it was when it was last looked over, and keeps what
    it planned: each of those that moved was looked for among all."""
    monkeypatch.setattr("projections.projector.CLEARED_UP_AT_REST_AFTER", 1)
    script = Script()
    done = 0
    with Projector(views, topic=TOPIC) as projector:
        projector.cursor(0)

        def apply() -> None:
            nonlocal done
            *_, batch = script.batches((done,))
            done = len(script.items)
            projector.apply(batch)

        def live(many: int) -> None:
            """They begin, are given, and end, in three batches."""
            for _ in range(many):
                script.submit()
            apply()
            granted = script.grant(many=many)
            apply()
            report(script, granted)
            apply()

        script.submit(queue=QUEUES[1])
        for _ in range(10):
            live(JOBS)
        script.submit(queue=QUEUES[1])  # Behind them: their pages stay.
        live(2)
        if cleared_up:
            projector.rest()
        for _ in range(8):
            live(2)
        for _ in range(WAITING):
            for _ in range(JOBS):
                script.submit()
            apply()
        before = read_of_open_jobs(views, projector)
        report(script, script.grant(many=JOBS))
        apply()
        script.grant(many=JOBS)
        apply()
        assert read_of_open_jobs(views, projector) - before <= 4 * JOBS


def one(views: str, query: str) -> Any:
    with psycopg.connect(views, autocommit=True) as connection:
        connection.execute("SET search_path = ledger")
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize(
    ("flushes", "ended", "first"), [(1, 200, 870), (2, 560, 510), (3, 560, 510)]
)
def test_a_job_leaves_so_many_rows_and_bytes(
    views: str, flushes: int, ended: int, first: int
) -> None:
    wal_of(views, flushes)
    assert one(views, "SELECT max(pg_column_size(j.*)) FROM ended_jobs j") < ended
    assert one(views, "SELECT max(pg_column_size(e.*)) FROM job_events e") < first
    assert one(views, "SELECT count(*) FROM job_events") == one(views, "SELECT count(*) FROM jobs")
    assert one(views, "SELECT count(*) FROM flushes") <= 2 * BATCHES * flushes
    assert one(views, "SELECT count(*) FROM jobs WHERE state IS NOT NULL") == 0


def test_open_jobs_move_without_touching_an_index(views: str) -> None:
    wal_of(views, 3)
    moved = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'open_jobs'"
    hot = "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'open_jobs'"
    assert one(views, moved) >= (2 * BATCHES - 1) * JOBS
    assert one(views, hot) > 0.9 * one(views, moved)
