"""The projector and the read side on a real Postgres: rows are the fold of what was applied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import LiteralString

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError, Tracking
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.commands import (
    AcknowledgeCancel,
    Beat,
    CancelJob,
    FailAttempt,
    Report,
    ReportedResult,
    RequestJob,
    StartAttempt,
    Template,
    Where,
)
from ledger.domain.commands import PutTemplate as Put
from ledger.domain.events import (
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
    Event,
    JobRequested,
    Unknown,
)
from ledger.domain.evolve import begin
from ledger.domain.ids import LEDGER_QUEUE, Fence, JobId, Micros, QueueName, RuntimeId, Session
from ledger.domain.job import Job, Status, status
from ledger.domain.steps import JOB_STATUSES
from ledger.log import crash_points
from ledger.log.crash_points import CrashPointReached
from ledger.log.effective import START
from projections import projector as projector_module
from projections import writing as writing_module
from projections.answers import JobFilter, position_text
from projections.batches import Batch
from projections.checkpoints import CheckpointLost, Checkpoints, Move, Superseded
from projections.packing import StoredByAnotherVersion
from projections.projector import Projector
from projections.reads import BadCursor, ReadsUnavailable, open_reads
from projections.schema import (
    MigrationsChanged,
    apply_missing,
    connect,
    migrate,
    migrations,
)
from projections.sql import statement
from projections.storable import MARK
from projections.writing import NEWEST_MAX
from tests.support.views import differences
from tests.unit.projections.histories import (
    QUEUES,
    Script,
    long_job,
    plain_job,
    random_history,
)

pytestmark = pytest.mark.services
TOPIC = "ledger.events.v1"


@pytest.fixture
def projector(views: str) -> Iterator[Projector]:
    with Projector(views, topic=TOPIC) as projector:
        projector.cursor(0)
        yield projector


def project(dsn: str, script: Script, *, fed: bool = True, cuts: tuple[int, ...] = ()) -> None:
    with Projector(dsn, topic=TOPIC) as projector:
        projector.cursor(script.number)
        for batch in script.batches(cuts, fed=fed):
            projector.apply(batch)


def count(dsn: str, table: str) -> int:
    with connect(dsn) as connection:
        [(many,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        return int(many)


def last_values(script: Script) -> dict[JobId, Job]:
    found: dict[JobId, Job] = {}
    for touched in script.touched:
        found |= touched
    return found


# --- Migrations ----------------------------------------------------------------------------------
def test_migrations_are_applied_once(dsn: str) -> None:
    assert migrate(dsn)[0] == "0001_read_models.sql"
    assert migrate(dsn) == ()


def test_a_database_of_a_later_version_is_refused(views: str) -> None:
    with connect(views) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (9999, '9999_later.sql')")
    with pytest.raises(MigrationsChanged):
        migrate(views)


@pytest.mark.parametrize("number", [103, 104])
def test_rows_of_an_older_version_are_refused(dsn: str, number: int) -> None:
    older = tuple(one for one in migrations() if one.number < number)
    with connect(dsn) as connection:
        apply_missing(connection, "ledger", older)
        connection.execute(
            "INSERT INTO partitions (partition, application_name, layout) VALUES (0, 'a', 1)"
        )
    with pytest.raises(StoredByAnotherVersion, match="older version"):
        migrate(dsn)
    assert count(dsn, "jobs") == 0, "what was there is there"


# --- Rows are the fold ---------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_both_modes_write_the_same_rows(
    dsn: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = random_history(Random(seed), 200)
    random = Random(seed)
    for schema, fed in (("fed", True), ("read", False)):
        monkeypatch.setattr(writing_module, "NEWEST_MAX", random.randrange(NEWEST_MAX))
        migrate(dsn, schema=schema)
        with Projector(dsn, topic=TOPIC, schema=schema) as projector:
            projector.cursor(0)
            cuts = [random.randrange(len(script.items)) for _ in range(8)]
            misfits = sum(projector.apply(batch).misfits for batch in script.batches(cuts, fed=fed))
        assert misfits == script.partition.misfits
    assert differences(dsn, "fed", "read") == []


@pytest.mark.parametrize("seed", range(6, 10))
async def test_jobs_read_are_the_jobs_that_the_owner_holds(views: str, seed: int) -> None:
    script = random_history(Random(seed), 200)
    await asyncio.to_thread(project, views, script, fed=seed % 2 == 0, cuts=(40, 90))
    async with open_reads(views) as reads:
        jobs = last_values(script)
        stored = await reads.jobs_by_id(list(jobs))
        assert {job_id: found.job for job_id, found in stored.items()} == jobs
        assert {found.position for found in stored.values()} == {f"0:{script.offset - 1}"}
        for queue in (await reads.queues()).items:
            here = [status(job) for job in jobs.values() if job.request.queue == queue.name]
            assert queue.counts == {one.value: here.count(one) for one in JOB_STATUSES}
        for job_id, job in jobs.items():
            history = await reads.history(job_id, limit=10_000)
            assert history is not None
            assert [event.seq for event in history.items] == list(range(1, job.version + 1))
            now = await reads.as_of(job_id, version=job.version)
            assert now is not None
            assert now.job == job


def test_values_that_do_not_fit_are_folded_instead(views: str, projector: Projector) -> None:
    script = Script()
    job_id = plain_job(script)
    [batch] = script.batches()
    assert batch.jobs is not None
    wrong = replace(batch.jobs[job_id], version=9)
    applied = projector.apply(replace(batch, jobs={job_id: wrong}))
    assert applied.folded
    assert count(views, "jobs") == 1


@pytest.mark.parametrize("ends", [False, True])
def test_a_job_that_begins_twice_has_one_row(views: str, projector: Projector, ends: bool) -> None:
    """Where its row lies among the ended jobs and is to be put among the open ones, or the other
    way, no key is violated."""
    script = Script()
    job_id = script.submit() if ends else plain_job(script)
    [batch] = script.batches()
    projector.apply(batch)
    asked = last_values(script)[job_id].request
    before = len(script.items)
    script.append((asked,))
    *_, again = script.batches((before,))
    lie = begin(asked, script.at)
    if ends:
        lie = replace(lie, end=Status.FAILED, finished_at=script.at)
    applied = projector.apply(replace(again, jobs={job_id: lie}))
    assert (applied.folded, applied.misfits) == (True, 1)
    assert count(views, "jobs") == 1


def times_cleared_up(views: str) -> int:
    with connect(views) as connection:
        [(times,)] = connection.execute(
            "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'open_jobs'"
        ).fetchall()
    return int(times)


def test_the_room_of_ended_jobs_is_cleared_up(
    views: str, projector: Projector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector_module, "CLEARED_UP_AFTER", 2)
    script = Script()
    plain_job(script)
    plain_job(script)
    for batch in script.batches(range(len(script.items))):
        projector.apply(batch)
    projector.close()
    assert times_cleared_up(views) == 1


def test_after_a_clearing_up_that_failed_a_batch_is_whole_or_not_there(
    views: str, projector: Projector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: LiteralString) -> LiteralString:
        return "SELECT 1 / 0" if name == "apply/clear_up" else statement(name)

    monkeypatch.setattr(projector_module, "CLEARED_UP_AFTER", 1)
    monkeypatch.setattr(projector_module, "statement", broken)
    script = Script()
    plain_job(script)
    cut = len(script.items)
    plain_job(script)
    *batches, last = script.batches((*range(2, cut), cut))
    for batch in batches:
        projector.apply(batch)
    monkeypatch.setattr(crash_points, "_name", "projector.before_commit")
    monkeypatch.setattr(crash_points, "_left", 1)
    monkeypatch.setattr(crash_points, "_raises", True)
    with pytest.raises(CrashPointReached):
        projector.apply(last)
    assert count(views, "jobs") == 1
    projector.apply(last)
    assert count(views, "jobs") == 2


def test_at_rest_less_is_cleared_up(
    views: str, projector: Projector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector_module, "CLEARED_UP_AT_REST_AFTER", 1)
    script = Script()
    plain_job(script)
    for batch in script.batches(range(len(script.items))):
        projector.apply(batch)
    projector.rest()
    projector.rest()
    projector.close()
    assert times_cleared_up(views) == 1


def test_among_many_that_are_open_more_have_to_end_before_it_is_cleared_up(
    views: str, projector: Projector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever clears up reads the indexes of all."""
    monkeypatch.setattr(projector_module, "CLEARED_UP_AT_REST_AFTER", 1)
    monkeypatch.setattr(projector_module, "CLEARED_UP_AT_REST_PART", 0.4)
    monkeypatch.setattr(projector_module, "COUNTED_AFTER", 1)
    script = Script()
    jobs = [script.submit() for _ in range(10)]
    done = 0

    def apply() -> None:
        nonlocal done
        *_, batch = script.batches((done,))
        done = len(script.items)
        projector.apply(batch)
        projector.rest()

    apply()
    for cleared_up, ended in ((0, jobs[:3]), (1, jobs[3:4])):
        for job_id in ended:
            script.do(CancelJob(job_id))
        apply()
        assert times_cleared_up(views) == cleared_up


def test_rest_is_not_disturbed_by_a_postgres_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector_module, "CLEARED_UP_AT_REST_AFTER", 0)
    with Projector("postgresql://u@127.0.0.1:1/none", topic=TOPIC) as projector:
        projector.rest()


# --- Histories -----------------------------------------------------------------------------------
@pytest.mark.parametrize("ends", [False, True])
async def test_a_history_that_has_grown_long_gets_rows_of_its_own(views: str, ends: bool) -> None:
    script = Script()
    job_id = long_job(script, 40)
    if ends:
        script.do(CancelJob(job_id, "why"))
        script.do(AcknowledgeCancel(job_id, script.partition.jobs[job_id].fence))
    await asyncio.to_thread(project, views, script, cuts=tuple(range(len(script.items))))
    version = last_values(script)[job_id].version
    with connect(views) as connection:
        rows = connection.execute(
            "SELECT first_seq, last_seq, length(packed), job_id FROM job_events ORDER BY 1"
        ).fetchall()
        [(newest, state)] = connection.execute(
            "SELECT length(newest), state IS NOT NULL FROM jobs"
        ).fetchall()
    assert len(rows) > 2
    assert [first for first, *_ in rows] == [1, *(last + 1 for _, last, *_ in rows[:-1])]
    assert [name for *_, name in rows] == [job_id] + [None] * (len(rows) - 1)
    assert all(length > NEWEST_MAX for _, _, length, _ in rows[1:])
    assert newest <= NEWEST_MAX
    assert state
    async with open_reads(views) as reads:
        for after in range(version + 1):
            history = await reads.history(job_id, after_seq=after, limit=3)
            assert history is not None
            seqs = [event.seq for event in history.items]
            assert seqs == list(range(after + 1, min(after + 3, version) + 1))
            assert history.next_seq == (after + 3 if after + 3 < version else None)
        stored = await reads.job(job_id)
        now = await reads.as_of(job_id, version=version)
    assert stored is not None
    assert stored == now
    assert stored.job == last_values(script)[job_id]


async def test_a_history_that_tells_the_job_stays_with_it_however_long(views: str) -> None:
    script = Script()
    job_id = script.submit()
    [granted] = script.grant()
    script.do(FailAttempt(job_id, granted.fence, "X", "x" * 3 * NEWEST_MAX))
    script.do(CancelJob(job_id, "why"))
    await asyncio.to_thread(project, views, script, cuts=tuple(range(len(script.items))))
    assert count(views, "job_events") == 1
    assert count(views, "jobs WHERE state IS NULL") == 1
    async with open_reads(views) as reads:
        stored = await reads.job(job_id)
    assert stored is not None
    assert stored.job == last_values(script)[job_id]


# --- Checkpoints ---------------------------------------------------------------------------------
def test_a_batch_that_was_applied_is_no_news(views: str, projector: Projector) -> None:
    script = Script()
    plain_job(script)
    [batch] = script.batches()
    assert projector.apply(batch).events == 4
    assert projector.apply(batch).events == 0
    assert count(views, "job_events") == 1


def test_a_rival_is_superseded_and_changes_nothing(views: str, projector: Projector) -> None:
    script = Script()
    plain_job(script)
    plain_job(script)
    first, second, third = script.batches((3, 5))
    with Projector(views, topic=TOPIC) as rival:
        assert rival.cursor(0).offset == 0
        projector.apply(first)
        projector.apply(second)
        overlapping = Batch(0, 0, (*first.items, *second.items, *third.items), None)
        with pytest.raises(Superseded) as superseded:
            rival.apply(overlapping)
        assert superseded.value.stored == second.after
        assert rival.cursor(0).offset == second.after
        rival.apply(third)
        with pytest.raises(Superseded):
            projector.apply(replace(second, before=second.before, items=second.items))
    assert count(views, "jobs") == 2


def test_a_checkpoint_moves_from_where_it_stands_only(views: str, projector: Projector) -> None:
    """By itself: a batch of no new rows has nothing else that would stop a rival."""
    script = Script()
    plain_job(script)
    (first,) = script.batches(())
    projector.apply(first)
    stood = projector.cursor(0)
    with closing(Checkpoints(views, topic=TOPIC)) as checkpoints, connect(views) as connection:
        with pytest.raises(Superseded):
            checkpoints.move(connection, [Move(0, START, stood)])
        checkpoints.move(connection, [Move(0, stood, stood)])
        other = checkpoints.begin(connection, 1)
        with pytest.raises(Superseded):
            checkpoints.move(connection, [Move(0, START, stood), Move(1, other, stood)])


def test_a_lost_checkpoint_does_not_start_the_views_again(views: str, projector: Projector) -> None:
    script = Script()
    plain_job(script)
    first, second = script.batches((3,))
    projector.apply(first)
    with connect(views) as connection:
        connection.execute("DELETE FROM checkpoints WHERE application_name <> '__migration__'")
    with pytest.raises(CheckpointLost):
        projector.apply(second)
    with Projector(views, topic=TOPIC) as fresh, pytest.raises(CheckpointLost):
        fresh.cursor(0)


def test_a_checkpoint_of_other_rows_is_refused(views: str, projector: Projector) -> None:
    script = Script()
    plain_job(script)
    first, second = script.batches((3,))
    projector.apply(first)
    with connect(views) as connection:
        stale = connection.execute("SELECT * FROM checkpoints ORDER BY 1 DESC LIMIT 1").fetchone()
        assert stale is not None
    projector.apply(second)
    with connect(views) as connection:
        connection.execute(
            "UPDATE checkpoints SET notification_id = %s, cursor = %s WHERE application_name = %s",
            (stale[1], stale[2], stale[0]),
        )
    with Projector(views, topic=TOPIC) as fresh, pytest.raises(CheckpointLost):
        fresh.cursor(0)


def test_views_of_another_topic_are_refused(views: str, projector: Projector) -> None:
    with Projector(views, topic="other.events.v1") as other, pytest.raises(CheckpointLost):
        other.cursor(0)


def test_rows_packed_by_another_version_are_refused(views: str, projector: Projector) -> None:
    with connect(views) as connection:
        connection.execute("UPDATE partitions SET layout = layout + 1")
    with Projector(views, topic=TOPIC) as later, pytest.raises(StoredByAnotherVersion):
        later.cursor(0)


def test_the_stored_cursor_is_what_a_reader_resumes_from(views: str, projector: Projector) -> None:
    script = Script()
    plain_job(script)
    script.take_over()
    for batch in script.batches((2, 3)):
        projector.apply(batch)
    with Projector(views, topic=TOPIC) as fresh:
        cursor = fresh.cursor(0)
    assert cursor.offset == script.offset
    assert cursor.entry == script.partition.entry
    assert cursor.hash == script.hash
    assert cursor.nonces == ("nonce0", "nonce5")
    assert cursor.nonce == "nonce5"
    assert cursor.ledger_id == "ledger-1"


def test_the_library_s_own_contract_holds_for_our_checkpoints(views: str) -> None:
    """As its `TrackingRecorderTestCase` has it (which cannot be imported without a cipher)."""
    recorder = Checkpoints(views, topic=TOPIC)
    try:
        recorder.create_table()
        recorder.insert_tracking(Tracking("upstream1", 21))
        recorder.insert_tracking(Tracking("upstream1", 22))
        recorder.insert_tracking(Tracking("upstream2", 21))
        for again in (Tracking("upstream1", 21), Tracking("upstream1", 22)):
            with pytest.raises(IntegrityError):
                recorder.insert_tracking(again)
        assert recorder.max_tracking_id("upstream1") == 22
        assert recorder.max_tracking_id("upstream2") == 21
        assert recorder.max_tracking_id("upstream3") is None
        assert recorder.has_tracking_id("upstream1", None)
        assert recorder.has_tracking_id("upstream1", 22)
        assert not recorder.has_tracking_id("upstream1", 23)
        recorder.insert_tracking(Tracking("upstream1", 24))
        with pytest.raises(IntegrityError):
            recorder.insert_tracking(Tracking("upstream1", 23))
        recorder.wait("upstream1", 24)
        with pytest.raises(TimeoutError):
            recorder.wait("upstream1", 25, timeout=0.1)
    finally:
        recorder.close()


# --- Crashes -------------------------------------------------------------------------------------
@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("point", ["projector.before_commit", "projector.after_commit"])
def test_a_crash_around_the_commit_loses_and_doubles_nothing(
    views: str, monkeypatch: pytest.MonkeyPatch, point: str, fed: bool
) -> None:
    script = random_history(Random(21), 80)
    batches = script.batches((20, 50), fed=fed)
    with Projector(views, topic=TOPIC) as projector:
        projector.cursor(0)
        projector.apply(batches[0])
        monkeypatch.setattr(crash_points, "_name", point)
        monkeypatch.setattr(crash_points, "_left", 1)
        monkeypatch.setattr(crash_points, "_raises", True)
        with pytest.raises(CrashPointReached):
            projector.apply(batches[1])
    stands = batches[1].after if point.endswith("after_commit") else batches[1].before
    with Projector(views, topic=TOPIC) as projector:
        assert projector.cursor(0).offset == stands
        for batch in batches[1:]:
            projector.apply(batch)
    migrate(views, schema="other")
    with Projector(views, topic=TOPIC, schema="other") as other:
        other.cursor(0)
        for batch in script.batches(fed=False):
            other.apply(batch)
    assert differences(views, "ledger", "other") == []


def test_a_cut_connection_is_made_anew(views: str, projector: Projector) -> None:
    script = Script()
    plain_job(script)
    first, second = script.batches((3,))
    projector.apply(first)
    with psycopg.connect(views, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'ledger projector' AND datname = current_database()"
        )
    assert projector.apply(second).offset == second.after
    assert count(views, "flushes") == 2


# --- Poison --------------------------------------------------------------------------------------
POISON = ("a\x00b", "x" * 5_000, "tab\t\\N\n", "\U0001f600", "é", '{"a", NULL}\\\'$1')


@pytest.mark.parametrize("fed", [True, False])
async def test_what_postgres_refuses_is_escaped_and_marked(views: str, fed: bool) -> None:
    script = Script()
    ids = []
    for number, text in enumerate(POISON):
        job_id = JobId(f"default.{text}")
        asked = JobRequested(
            job_id=job_id,
            queue=QueueName("default"),
            type=text,
            payload=Raw(b'{"x":"\\u0000"}'),
            ready_at=script.at,
            order=number,
            labels={text: text},
            scope=text,
            idempotency_key=text,
        )
        script.append((asked,), cause=f"a:{text}")
        script.append((Unknown(text, job_id, b"\x00\xff"),))
        ids.append(job_id)
    await asyncio.to_thread(project, views, script, fed=fed)
    async with open_reads(views) as reads:
        for job_id, text in zip(ids, POISON, strict=True):
            stored = await reads.job(job_id)
            assert stored is not None
            assert stored.job == script.partition.jobs[job_id]
            found = await reads.jobs(JobFilter(labels={text: text}, types=(text,), scope=text))
            assert len(found.items) == 1
            history = await reads.history(job_id)
            assert history is not None
            assert [event.type for event in history.items] == ["ledger.job.requested.v1", text]
            outcome = await reads.command(text)
            assert outcome is not None
            assert outcome.outcome == "accepted"
        listed = await reads.jobs()
        assert sum(job.id.startswith(MARK) for job in listed.items) == 2


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize(
    "broken",
    [
        {"order": 2**70},
        {"priority": 2**40},
        {"ready_at": Micros(2**62)},
        {"ready_at": Micros(-(2**62))},
        {"scope": "\ud800"},
        {"labels": {"\ud800": "\udfff"}},
        {"lease_us": 2**70},
    ],
)
async def test_numbers_beyond_every_range_do_not_stop_the_views(
    views: str, fed: bool, broken: dict[str, object]
) -> None:
    script = Script()
    before = plain_job(script)
    words = {"ready_at": script.at, "order": 1, **broken}
    odd = JobId("default.odd")
    asked = JobRequested(odd, QueueName("default"), "t", Raw(b"{}"), **words)  # type: ignore[arg-type]
    script.append((asked,))
    first = len(script.items)
    script.append((Unknown("odd", odd, b"{}"),))
    after = plain_job(script)
    await asyncio.to_thread(project, views, script, fed=fed, cuts=(first,))
    async with open_reads(views) as reads:
        found = await reads.jobs_by_id((before, odd, after))
        assert {job_id: stored.job.version for job_id, stored in found.items()} == {
            before: 4,
            odd: 2,
            after: 4,
        }
    migrate(views, schema="whole")
    with Projector(views, topic=TOPIC, schema="whole") as projector:
        projector.cursor(0)
        for batch in script.batches(fed=False):
            projector.apply(batch)
    assert differences(views, "ledger", "whole") == []


# --- Reading -------------------------------------------------------------------------------------
@pytest.fixture
def script() -> Script:
    return Script()


async def test_lists_go_on_where_the_page_before_ended(views: str, script: Script) -> None:
    ids = [script.submit(priority=n % 3, scope="s" if n % 2 else None) for n in range(25)]
    await asyncio.to_thread(project, views, script)
    async with open_reads(views) as reads:
        for order, expected in (
            ("-created_at", ids[::-1]),
            ("created_at", ids),
            ("priority", sorted(ids, key=lambda job_id: (ids.index(job_id) % 3, job_id))),
        ):
            for where in (JobFilter(), JobFilter(statuses=("pending", "leased"))):
                seen: list[str] = []
                cursor = None
                while True:
                    page = await reads.jobs(where, order=order, limit=10, cursor=cursor)  # type: ignore[arg-type]
                    seen += [job.id for job in page.items]
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                if order != "priority":
                    assert seen == expected
                assert sorted(seen) == sorted(expected)
                assert position_text(page.positions) == f"0:{script.offset - 1}"
        second = await reads.jobs_page(JobFilter(scope="s"), page=2, page_size=5)
        assert (second.total, second.total_exact, second.total_pages) == (12, True, 3)
        assert len(second.items) == 5
        first = await reads.jobs(limit=1)
        with pytest.raises(BadCursor):
            await reads.jobs(order="priority", cursor=first.next_cursor)
        for nonsense in ("", "x", "AAAA", "é", "=" * 40):
            with pytest.raises(BadCursor):
                await reads.jobs(cursor=nonsense)


async def test_each_filter_finds_what_it_names(views: str, script: Script) -> None:
    done = plain_job(script)
    failed = script.submit(type="resize", queue="mail", scope="project:1", labels={"user": "9"})
    [granted] = script.grant(QueueName("mail"))
    script.do(FailAttempt(failed, granted.fence, "INVALID", retryable=False))
    cancelled = script.submit(labels={"user": "9", "team": "a"})
    script.do(CancelJob(cancelled, "no more"))
    waits = script.submit(priority=0)
    middle = Micros(script.at)
    later = script.submit(delay_seconds=100 * 365 * 86_400.0 / 10)
    await asyncio.to_thread(project, views, script)
    expectations: list[tuple[JobFilter, set[JobId]]] = [
        (JobFilter(), {done, failed, cancelled, waits, later}),
        (JobFilter(queues=("mail",)), {failed}),
        (JobFilter(queues=("mail", "default"), types=("resize",)), {failed}),
        (JobFilter(statuses=("succeeded",)), {done}),
        (JobFilter(statuses=("failed", "cancelled")), {failed, cancelled}),
        (JobFilter(statuses=("pending",)), {waits, later}),
        (JobFilter(statuses=("pending", "succeeded")), {waits, later, done}),
        (JobFilter(scope="project:1"), {failed}),
        (JobFilter(error_code="INVALID"), {failed}),
        (JobFilter(created_from=Micros(middle + 1)), {later}),
        (JobFilter(created_to=Micros(middle)), {done, failed, cancelled}),
        (JobFilter(schedule="none"), set()),
        (JobFilter(retried_from=str(done)), set()),
        (JobFilter(queues=("no\x00ne",)), set()),
    ]
    for pair, ids in (
        (("user", "9"), {failed, cancelled}),
        (("team", "a"), {cancelled}),
        (("team", "b"), set()),
    ):
        expectations.append((JobFilter(labels=dict([pair])), ids))
    async with open_reads(views) as reads:
        for where, expected in expectations:
            for order in ("-created_at", "created_at", "priority"):
                found = await reads.jobs(where, order=order)
                assert {job.id for job in found.items} == expected, where
            assert (await reads.jobs_page(where)).total == len(expected)
        polled = await reads.poll(("default", "mail"), ("send",), 10)
        assert [job.id for job in polled.items] == [waits]
        assert await reads.count_matching(Where(queue=QueueName("default"))) == 2
        assert await reads.count_matching(Where(types=("resize",))) == 0


async def test_history_attempts_and_the_past_of_a_job(views: str, script: Script) -> None:
    job_id = script.submit(payload=Raw(b'{"to":"x"}'))
    [first] = script.grant()
    script.do(StartAttempt(job_id, first.fence))
    before_failure = script.at
    script.do(FailAttempt(job_id, first.fence, "NETWORK_ERROR"))
    script.tick(10.0)
    [second] = script.grant()
    result = ReportedResult(job_id, second.fence, output=Raw(b'{"ok":1}'))
    script.do(Report(RuntimeId("runtime-1"), Session("s"), QUEUES[0], (result,)))
    await asyncio.to_thread(project, views, script, cuts=(2, 4, 6))
    async with open_reads(views) as reads:
        history = await reads.history(job_id, limit=3)
        assert history is not None
        assert [event.type.split(".")[2] for event in history.items] == [
            "requested",
            "lease_granted",
            "attempt_started",
        ]
        assert b'"payload":{"to":"x"}' in bytes(history.items[0].data)
        rest = await reads.history(job_id, after_seq=history.next_seq or 0)
        assert rest is not None
        assert rest.next_seq is None
        assert b'"output":{"ok":1}' in bytes(rest.items[-1].data)
        assert rest.items[-1].position == f"0:{script.offset - 1}"
        assert rest.items[-1].hash == script.hash.hex()
        attempts = await reads.attempts(job_id)
        assert attempts is not None
        assert [(one.attempt, one.how, one.code) for one in attempts] == [
            (1, "failed", "NETWORK_ERROR"),
            (2, "succeeded", None),
        ]
        then = await reads.as_of(job_id, at=before_failure)
        assert then is not None
        assert status(then.job) is Status.RUNNING
        assert bytes(then.job.request.payload) == b'{"to":"x"}'
        assert await reads.as_of(job_id, version=99) is None
        assert await reads.as_of(job_id, at=Micros(1)) is None
        assert await reads.history("default.none") is None
        assert await reads.attempts("no\x00ne") is None


async def test_commands_templates_runtimes_and_operations(views: str, script: Script) -> None:
    script.do(RequestJob("send"), awaited=True)
    script.do(CancelJob(JobId("default.none")))
    script.do(Put(QUEUES[0], "send", Template(title="one")))
    script.do(Put(QUEUES[0], "send", Template(title="two")))
    await asyncio.to_thread(project, views, script)
    async with open_reads(views) as reads:
        accepted = await reads.command("command-0-1")
        assert accepted is not None
        assert (accepted.outcome, accepted.job_id) == (
            "accepted",
            next(iter(script.partition.jobs)),
        )
        rejected = await reads.command("command-0-2")
        assert rejected is not None
        assert (rejected.outcome, rejected.code) == ("rejected", "JOB_NOT_FOUND")
        assert await reads.command("command-0-3") is None
        newest = await reads.template("default", "send")
        assert newest is not None
        assert (newest.version, newest.template.title) == (2, "two")
        oldest = await reads.template("default", "send", 1)
        assert oldest is not None
        assert oldest.template.title == "one"
        assert [one.version for one in (await reads.templates()).items] == [2]
        assert (await reads.consumed(0)) is not None
        assert await reads.consumed(7) is None
        queue = await reads.queue("default")
        assert queue is not None
        assert queue.state.counts["pending"] == 1
        assert queue.state.oldest_pending_at is not None


async def test_runtimes_live_until_their_session_ends(views: str, script: Script) -> None:
    for runtime, session in (("r1", "s1"), ("r1", "s2"), ("r2", "s1")):
        script.do(Beat(RuntimeId(runtime), Session(session), QUEUES[0], 1, ("send",)))
    script.do(Beat(RuntimeId("r2"), Session("s1"), QUEUES[0], 2, ("send",), leaving=True))
    await asyncio.to_thread(project, views, script, cuts=(2, 4))
    async with open_reads(views) as reads:
        one, other = (await reads.runtimes()).items
        assert (one.runtime_id, one.session, one.why, one.types) == ("r1", "s2", None, ("send",))
        assert (other.runtime_id, other.session, other.why) == ("r2", "s1", "left")
        assert other.ended_at == script.at
        assert (await reads.runtimes(("mail",))).items == ()


async def test_an_operation_tells_how_far_it_is(views: str, script: Script) -> None:
    queue = LEDGER_QUEUE
    where = Raw(b'{"types":["send"]}')
    steps: list[Event] = [
        BulkStarted(queue, "op_1", "cancel", where, 2, "why", "somebody"),
        BulkPartStarted(queue, "op_1", where, 10),
        BulkPartAdvanced(queue, "op_1", 3),
        BulkPartAdvanced(queue, "op_1", 4),
        BulkPartEnded(queue, "op_1", 7),
        BulkPartConfirmed(queue, "op_1", 0, 7),
    ]
    ended: list[Event] = [BulkPartConfirmed(queue, "op_1", 1, 2), BulkEnded(queue, "op_1", 9)]
    script.append(steps)
    first = len(script.items)
    script.append(ended)
    batches = script.batches((first,))
    with Projector(views, topic=TOPIC) as projector:
        await asyncio.to_thread(projector.cursor, 0)
        async with open_reads(views) as reads:
            await asyncio.to_thread(projector.apply, batches[0])
            found = await reads.operation("op_1")
            assert found is not None
            assert (found.partitions, found.confirmed, found.matched, found.ended_at) == (
                2,
                1,
                7,
                None,
            )
            assert (bytes(found.where), found.reason, found.by) == (bytes(where), "why", "somebody")
            await asyncio.to_thread(projector.apply, batches[1])
            found = await reads.operation("op_1")
            assert found is not None
            assert (found.confirmed, found.matched, found.ended_at) == (2, 9, script.at)
            assert await reads.operation("op_2") is None


async def test_what_has_outlived_its_time_is_found(views: str, script: Script) -> None:
    job_id = script.submit(failed_ttl_seconds=60.0)
    [granted] = script.grant()
    script.do(FailAttempt(job_id, granted.fence, "X", retryable=False))
    await asyncio.to_thread(project, views, script)
    async with open_reads(views) as reads:
        due = Micros(script.at + 60 * 1_000_000)
        [found] = await reads.removable(due, [0])
        assert (found.job.id, found.due_at) == (job_id, due)
        assert await reads.removable(Micros(due - 1), [0]) == ()
        assert await reads.removable(due, [1]) == ()
        assert await reads.removable(due, [0], after=(due, job_id)) == ()


async def test_waiting_for_a_position(views: str, script: Script) -> None:
    plain_job(script)
    first, second = script.batches((3,))
    async with open_reads(views) as reads:
        assert not await reads.reached(0, 0, 0.01)
        with Projector(views, topic=TOPIC) as projector:
            await asyncio.to_thread(projector.cursor, 0)
            await asyncio.to_thread(projector.apply, first)
            assert await reads.reached(0, first.after - 1, 1.0)
            assert not await reads.reached(0, second.after - 1, 0.05)
            waiting = asyncio.create_task(reads.reached(0, second.after - 1, 5.0))
            await asyncio.to_thread(projector.apply, second)
            assert await waiting
        assert await reads.positions() == {0: second.after - 1}


async def test_reads_say_when_postgres_is_not_there() -> None:
    async with open_reads("postgresql://u@127.0.0.1:1/none", seconds_max=0.2) as reads:
        with pytest.raises(ReadsUnavailable):
            await reads.job("default.x")


def test_outcomes_of_commands_are_kept_for_an_hour(views: str, script: Script) -> None:
    script.do(RequestJob("send"), awaited=True)
    script.do(RequestJob("send"), awaited=True, seconds=3700.0)
    project(views, script, cuts=(2,))
    assert count(views, "commands") == 1


def test_a_refusal_gives_way_and_an_acceptance_stays(views: str, script: Script) -> None:
    job_id = script.submit()
    [granted] = script.grant()
    for fence in (Fence(7), granted.fence, Fence(7)):
        script.commands = 100
        script.do(StartAttempt(job_id, fence), awaited=True)
    for cuts in ((), (3, 4, 5)):
        schema = f"v{len(cuts)}"
        migrate(views, schema=schema)
        with Projector(views, topic=TOPIC, schema=schema) as projector:
            projector.cursor(0)
            for batch in script.batches(cuts):
                projector.apply(batch)
        with connect(views, schema=schema) as connection:
            rows = connection.execute("SELECT id, outcome FROM commands").fetchall()
        assert rows == [("command-0-101", "accepted")]
