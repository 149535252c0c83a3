"""The two sources of a projector, and views made anew, on a real Postgres and a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import psycopg
import pytest

from ledger.domain.ids import Micros
from ledger.log.effective import START, Cursor, Effective
from ledger.log.errors import LogBroken, LogUnavailable
from projections import feed as feed_module
from projections.batches import Batch, advanced, end_of
from projections.checkpoints import CheckpointLost
from projections.feed import ProjectorFeed
from projections.projector import Projector
from projections.reads import open_reads
from projections.rebuild import Rebuild, status, verify
from projections.schema import connect, migrate
from tests.support.views import differences
from tests.unit.projections.histories import Script, plain_job, random_history

pytestmark = pytest.mark.services
TOPIC = "ledger.events.v1"
NOW = Micros(1_800_000_000_000_000)


class MemoryLog:
    """The effective items of some partitions, which grow while they are read."""

    def __init__(self, *scripts: Script) -> None:
        self.items = {script.number: list(script.items) for script in scripts}
        self.readings = 0
        self.fails_next: list[Exception] = []
        self.grown = asyncio.Event()

    def end(self, partition: int) -> int:
        items = self.items.get(partition)
        return end_of(items[-1]) if items else 0

    async def end_of(self, partition: int) -> int:
        return self.end(partition)

    def put(self, partition: int, items: list[Effective]) -> None:
        self.items[partition] += items
        self.grown.set()

    async def source(
        self, partition: int, cursor: Cursor, *, until: int | None = None
    ) -> AsyncGenerator[list[Effective]]:
        self.readings += 1
        if self.fails_next:
            raise self.fails_next.pop(0)
        read = [item for item in self.items[partition] if end_of(item) <= cursor.offset]
        assert advanced(START, read) == cursor
        place = len(read)
        while True:
            ready = self.items[partition][place : place + 7]
            found = [item for item in ready if until is None or end_of(item) <= until]
            place += len(found)
            if found:
                yield found
            elif until is not None:
                return
            else:
                self.grown.clear()
                await self.grown.wait()


@asynccontextmanager
async def running(
    views: str, log: MemoryLog, *, buffered_events_max: int = 50_000
) -> AsyncIterator[ProjectorFeed]:
    feed = ProjectorFeed(
        Projector(views, topic=TOPIC),
        log.source,
        now=lambda: NOW,
        buffered_events_max=buffered_events_max,
    )
    stop = asyncio.Event()
    run = asyncio.create_task(feed.run(stop))
    try:
        yield feed
    finally:
        stop.set()
        await asyncio.wait_for(run, 20)


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    async with asyncio.timeout(10):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(what)


def stands_at(feed: ProjectorFeed, partition: int, offset: int) -> Callable[[], bool]:
    def stands() -> bool:
        health = feed.health().get(partition)
        return health is not None and health.offset == offset

    return stands


def equal_to_a_fold(views: str, *scripts: Script) -> bool:
    with psycopg.connect(views, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS folded CASCADE")
    migrate(views, schema="folded")
    with Projector(views, topic=TOPIC, schema="folded") as projector:
        for script in scripts:
            projector.cursor(script.number)
            for batch in script.batches(fed=False):
                projector.apply(batch)
    assert differences(views, "ledger", "folded") == []
    return True


# --- Sources -------------------------------------------------------------------------------------
async def test_partitions_that_nobody_feeds_are_read_from_the_log(views: str) -> None:
    scripts = [random_history(Random(seed), 60) for seed in range(2)]
    scripts[1].number = 1
    log = MemoryLog(*scripts)
    async with running(views, log) as feed:
        for script in scripts:
            feed.follow(script.number)
        for script in scripts:
            await until(stands_at(feed, script.number, log.end(script.number)), "caught up")
    assert await asyncio.to_thread(equal_to_a_fold, views, *scripts)


async def test_an_owner_s_items_are_taken_where_the_log_was_read_to(views: str) -> None:
    script = random_history(Random(4), 120)
    batches = script.batches(range(30, 120, 10))
    log = MemoryLog(script)
    log.items[0] = list(batches[0].items)
    async with running(views, log) as feed:
        feed.follow(0)
        await until(stands_at(feed, 0, batches[0].after), "read")
        for batch in batches[1:]:
            assert feed.offer(0, batch.before, batch.items, batch.jobs)
        await until(stands_at(feed, 0, batches[-1].after), "fed")
        assert feed.health()[0].fed
        assert feed.health()[0].lag_seconds == 0
    assert log.readings == 1
    assert await asyncio.to_thread(equal_to_a_fold, views, script)


async def test_what_is_offered_from_the_first_item_on_needs_no_log(views: str) -> None:
    script = random_history(Random(5), 60)
    log = MemoryLog(script)
    async with running(views, log) as feed:
        feed.follow(0)
        for batch in script.batches((10, 20)):
            feed.offer(0, batch.before, batch.items, batch.jobs)
        await until(stands_at(feed, 0, script.offset), "fed")
    assert log.readings == 0


async def test_a_gap_in_what_is_offered_is_read_from_the_log(views: str) -> None:
    script = random_history(Random(6), 120)
    batches = script.batches((20, 40, 60, 80))
    log = MemoryLog(script)
    async with running(views, log) as feed:
        feed.follow(0)
        first, _, third, *rest = batches
        feed.offer(0, first.before, first.items, first.jobs)
        await until(stands_at(feed, 0, first.after), "fed")
        for batch in (third, *rest):
            feed.offer(0, batch.before, batch.items, batch.jobs)
        await until(stands_at(feed, 0, script.offset), "read, then fed")
    assert log.readings == 1
    assert await asyncio.to_thread(equal_to_a_fold, views, script)


async def test_where_there_is_no_room_the_log_is_read(views: str) -> None:
    script = random_history(Random(7), 120)
    log = MemoryLog(script)
    async with running(views, log, buffered_events_max=20) as feed:
        feed.follow(0)
        kept = [feed.offer(0, b.before, b.items, b.jobs) for b in script.batches(range(0, 120, 9))]
        assert not all(kept)
        await until(stands_at(feed, 0, script.offset), "caught up")
    assert await asyncio.to_thread(equal_to_a_fold, views, script)


async def test_two_feeds_of_one_partition_double_nothing(views: str) -> None:
    script = random_history(Random(8), 150)
    log = MemoryLog(script)
    async with running(views, log) as feed, running(views, log) as rival:
        feed.follow(0)
        rival.follow(0)
        for batch in script.batches(range(0, 150, 5)):
            feed.offer(0, batch.before, batch.items, batch.jobs)
            await asyncio.sleep(0)
        await until(stands_at(feed, 0, script.offset), "one")
        await until(stands_at(rival, 0, script.offset), "the other")
    assert await asyncio.to_thread(equal_to_a_fold, views, script)


async def test_after_unfollow_nothing_is_taken(views: str) -> None:
    script = random_history(Random(9), 60)
    first, second = script.batches((20,))
    log = MemoryLog(script)
    log.items[0] = list(first.items)
    async with running(views, log) as feed:
        feed.follow(0)
        await until(stands_at(feed, 0, first.after), "read")
        feed.unfollow(0)
        assert not feed.offer(0, second.before, second.items, second.jobs)
        assert feed.health() == {}
        feed.follow(0)
        log.put(0, list(second.items))
        await until(stands_at(feed, 0, second.after), "read again")


# --- Failures ------------------------------------------------------------------------------------
async def test_a_log_that_is_away_is_tried_again(views: str) -> None:
    script = random_history(Random(10), 30)
    log = MemoryLog(script)
    log.fails_next = [LogUnavailable("no broker")]
    async with running(views, log) as feed:
        feed.follow(0)
        await until(lambda: bool(feed.health()[0].error), "it says so")
        await until(stands_at(feed, 0, script.offset), "caught up")
        assert feed.health()[0].error is None


async def test_rows_that_postgres_refuses_are_waited_for(views: str) -> None:
    script = random_history(Random(13), 30)
    with psycopg.connect(views) as connection:
        connection.execute("ALTER TABLE ledger.job_events ADD CONSTRAINT nobody CHECK (born < 0)")
    log = MemoryLog(script)
    async with running(views, log) as feed:
        feed.follow(0)
        await until(lambda: "violates" in (feed.health()[0].error or ""), "it says so")
        assert feed.health()[0].offset == 0
        with psycopg.connect(views) as connection:
            connection.execute("ALTER TABLE ledger.job_events DROP CONSTRAINT nobody")
        await until(stands_at(feed, 0, script.offset), "caught up")


async def test_rows_that_postgres_refuses_keep_no_other_partition_waiting(views: str) -> None:
    scripts = [Script(number) for number in range(3)]
    for script in scripts:
        for _ in range(5):
            plain_job(script)
    with psycopg.connect(views) as connection:
        connection.execute(
            "ALTER TABLE ledger.job_events ADD CONSTRAINT nobody CHECK (partition <> 1)"
        )
    async with running(views, MemoryLog(*scripts)) as feed:
        for script in scripts:
            feed.follow(script.number, 0)
            for batch in script.batches(range(4, 20, 4)):
                feed.offer(script.number, batch.before, batch.items, batch.jobs)
        await until(stands_at(feed, 0, scripts[0].offset), "the first has")
        await until(stands_at(feed, 2, scripts[2].offset), "the third has")
        await until(lambda: "violates" in (feed.health()[1].error or ""), "the second says so")
        with psycopg.connect(views) as connection:
            connection.execute("ALTER TABLE ledger.job_events DROP CONSTRAINT nobody")
        await until(stands_at(feed, 1, scripts[1].offset), "caught up")
    assert await asyncio.to_thread(equal_to_a_fold, views, *scripts)


@pytest.mark.parametrize("broken", ["log", "reader", "checkpoint"])
async def test_what_no_retry_can_cure_stops_the_feed(views: str, broken: str) -> None:
    script = random_history(Random(11), 30)
    log = MemoryLog(script)
    expected: type[Exception] = CheckpointLost
    if broken == "log":
        log.fails_next = [LogBroken("t", 0, 5, "cut")]
        expected = LogBroken
    elif broken == "reader":
        log.fails_next = [RecursionError("nobody foresaw it")]
        expected = RecursionError
    else:
        with Projector(views, topic="another") as other:
            other.cursor(0)
    feed = ProjectorFeed(Projector(views, topic=TOPIC), log.source, now=lambda: NOW)
    feed.follow(0)
    with pytest.raises(expected):
        await asyncio.wait_for(feed.run(asyncio.Event()), 10)


async def test_sessions_cut_under_load_lose_and_double_nothing(views: str) -> None:
    script = random_history(Random(12), 300)
    log = MemoryLog(script)

    def cut() -> None:
        with psycopg.connect(views, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'ledger projector' AND datname = current_database()"
            )

    async with running(views, log) as feed:
        feed.follow(0)
        for number, batch in enumerate(script.batches(range(0, 300, 6))):
            feed.offer(0, batch.before, batch.items, batch.jobs)
            await asyncio.sleep(0.005)
            if number % 10 == 3:
                await asyncio.to_thread(cut)
        await until(stands_at(feed, 0, script.offset), "caught up")
    assert await asyncio.to_thread(equal_to_a_fold, views, script)


async def test_an_older_copy_of_the_views_catches_up_though_the_log_is_silent(
    views: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.1)
    script = random_history(Random(11), 60)
    migrate(views, schema="older")
    with Projector(views, topic=TOPIC, schema="older") as projector:
        projector.cursor(script.number)
        projector.apply(script.batches((5,), fed=False)[0])
    log = MemoryLog(script)
    end = log.end(script.number)
    async with running(views, log) as feed:
        feed.follow(script.number)
        await until(stands_at(feed, script.number, end), "caught up")
        with psycopg.connect(views) as connection:
            connection.execute("ALTER SCHEMA ledger RENAME TO newer")
            connection.execute("ALTER SCHEMA older RENAME TO ledger")
        await until(lambda: status(views, {})[0].offset == end, "caught up again")
        assert feed.health()[script.number].superseded >= 1
    assert await asyncio.to_thread(equal_to_a_fold, views, script)


async def test_what_went_wrong_is_over_once_it_goes_again_though_the_log_is_silent(
    views: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 1.0)
    script = random_history(Random(12), 20)
    log = MemoryLog(script)
    async with running(views, log) as feed:
        feed.follow(script.number)
        await until(stands_at(feed, script.number, log.end(script.number)), "caught up")
    log.fails_next.append(LogUnavailable("away"))
    async with running(views, log) as feed:
        feed.follow(script.number)
        await until(lambda: feed.health()[script.number].error is not None, "it was noticed")
        await until(lambda: feed.health()[script.number].error is None, "it is over")


# --- Made anew -----------------------------------------------------------------------------------
def project(views: str, script: Script, batches: list[Batch] | None = None) -> None:
    with Projector(views, topic=TOPIC) as projector:
        projector.cursor(script.number)
        for batch in batches or script.batches((20, 50)):
            projector.apply(batch)


def rebuild_of(views: str, log: MemoryLog, partitions: int = 1) -> Rebuild:
    return Rebuild(views, topic=TOPIC, partitions=partitions, source=log.source, end_of=log.end_of)


async def test_live_views_are_what_the_log_says(views: str) -> None:
    script = random_history(Random(13), 200)
    log = MemoryLog(script)
    _, second, _ = batches = script.batches((50, 100))
    await asyncio.to_thread(project, views, script, batches[:2])
    assert await verify(views, topic=TOPIC, source=log.source) == []
    with psycopg.connect(views) as connection:
        connection.execute("UPDATE ledger.queues SET pending = pending + 1")
        connection.execute("UPDATE ledger.open_jobs SET newest = ''")
        connection.execute("UPDATE ledger.ended_jobs SET version = version + 1")
    found = await verify(views, topic=TOPIC, source=log.source)
    assert {difference.table for difference in found} == {"queues", "ended_jobs", "job_events"}
    [stands] = status(views, {0: log.end(0)})
    assert (stands.offset, stands.behind) == (second.after, log.end(0) - second.after)


async def test_views_made_anew_take_the_place_of_broken_ones(views: str) -> None:
    script = random_history(Random(14), 200)
    log = MemoryLog(script)
    await asyncio.to_thread(project, views, script)
    with psycopg.connect(views) as connection:
        connection.execute("UPDATE ledger.ended_jobs SET status = 'pending'")
    await rebuild_of(views, log).run()
    assert await verify(views, topic=TOPIC, source=log.source) == []
    async with open_reads(views) as reads:
        assert await reads.positions() == {0: log.end(0) - 1}


async def test_a_rebuild_goes_on_where_it_was_stopped(views: str) -> None:
    script = random_history(Random(15), 200)
    log = MemoryLog(script)
    await asyncio.to_thread(project, views, script)
    stopped = rebuild_of(views, log)
    await asyncio.to_thread(migrate, views, schema="ledger_next")
    middle = end_of(script.items[60])
    assert await stopped.read_to(0, middle) == middle
    await stopped.close()
    again = rebuild_of(views, log)
    assert await again.read_to(0, log.end(0)) == log.end(0) - middle
    await again.close()
    await rebuild_of(views, log).run()
    assert await verify(views, topic=TOPIC, source=log.source) == []


async def test_a_switch_under_a_projector_at_work_loses_nothing(views: str) -> None:
    script = random_history(Random(16), 300)
    log = MemoryLog(script)
    batches = script.batches(range(0, 300, 4))
    log.items[0] = []
    async with running(views, log) as feed, open_reads(views) as reads:
        feed.follow(0)
        rebuilding: asyncio.Task[None] | None = None
        seen = -1
        for number, batch in enumerate(batches):
            log.put(0, list(batch.items))
            feed.offer(0, batch.before, batch.items, batch.jobs)
            if number == 15:
                rebuilding = asyncio.create_task(rebuild_of(views, log).run())
            await asyncio.sleep(0.01)
            position = (await reads.positions()).get(0, -1)
            assert position >= seen
            seen = position
        assert rebuilding is not None
        await rebuilding
        await until(stands_at(feed, 0, script.offset), "caught up")
        assert (await reads.positions())[0] == script.offset - 1
    assert await asyncio.to_thread(equal_to_a_fold, views, script)


async def test_tables_that_are_no_fold_of_ours_outlive_a_rebuild(views: str) -> None:
    script = random_history(Random(17), 30)
    log = MemoryLog(script)
    await asyncio.to_thread(project, views, script)
    with psycopg.connect(views) as connection:
        connection.execute("CREATE TABLE ledger.others (n integer)")
        connection.execute("INSERT INTO ledger.others VALUES (7)")
    await rebuild_of(views, log).run()
    with connect(views) as connection:
        assert connection.execute("SELECT n FROM others").fetchall() == [(7,)]


async def test_the_first_views_can_be_made_by_a_rebuild(dsn: str) -> None:
    script = Script()
    job_id = plain_job(script)
    log = MemoryLog(script)
    await rebuild_of(dsn, log).run()
    async with open_reads(dsn) as reads:
        assert await reads.job(job_id) is not None
