"""What the views say has changed, on a real Postgres: everything once, in the log's order, however
the log was cut into flushes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from ledger.domain.commands import Beat, HeldLease
from ledger.domain.ids import JobId, RuntimeId, Session
from ledger.domain.job import Job
from projections import writing
from projections.answers import HistoryEvent
from projections.change_feed import ALL_OF_IT, Happened, Place
from projections.projector import Projector
from projections.reads import Reads, open_reads
from projections.schema import connect, migrate
from projections.unpacking import folded
from projections.writing import NEWEST_MAX
from tests.unit.projections.histories import QUEUES, Script, long_job, plain_job, random_history

pytestmark = pytest.mark.services
TOPIC = "ledger.events.v1"
BEGINNING: Place = (-1, ALL_OF_IT)
SEEDS = range(6)


@pytest.fixture(autouse=True, params=[0, NEWEST_MAX])
def newest_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories in the jobs' own rows, and in as many rows of their own as there can be."""
    monkeypatch.setattr(writing, "NEWEST_MAX", request.param)


def project(dsn: str, script: Script, cuts: Sequence[int], *, fed: bool) -> None:
    migrate(dsn)
    with Projector(dsn, topic=TOPIC) as projector:
        projector.cursor(script.number)
        for batch in script.batches(cuts, fed=fed):
            projector.apply(batch)


def cut(script: Script, seed: int, many: int = 12) -> list[int]:
    random = Random(seed)
    return [random.randrange(len(script.items)) for _ in range(many)]


async def told(reads: Reads, script: Script, after: Place, rows_max: int) -> list[Happened]:
    """All that happened after a place, asked for in parts."""
    end = script.offset - 1
    found: list[Happened] = []
    while after < (end, ALL_OF_IT):
        part = await reads.changes(script.number, after, end, rows_max=rows_max)
        found += part.items
        assert (part.until, ALL_OF_IT) > after
        after = (part.until, ALL_OF_IT)
    return found


async def histories(reads: Reads, script: Script) -> dict[JobId, tuple[HistoryEvent, ...]]:
    jobs = {job_id for touched in script.touched for job_id in touched}
    found = {}
    for job_id in jobs:
        history = await reads.history(job_id, limit=10_000)
        assert history is not None
        found[job_id] = history.items
    return found


@pytest.mark.parametrize("seed", SEEDS)
async def test_all_that_happened_is_told_once_and_in_order(dsn: str, seed: int) -> None:
    script = random_history(Random(seed), 200)
    await asyncio.to_thread(project, dsn, script, cut(script, seed), fed=seed % 2 == 0)
    async with open_reads(dsn) as reads:
        found = await told(reads, script, BEGINNING, rows_max=1 + seed * 7)
        of_jobs: dict[JobId, list[HistoryEvent]] = {}
        for happened in found:
            of_jobs.setdefault(happened.job.id, []).append(happened.event())
        assert of_jobs == {
            job_id: list(items) for job_id, items in (await histories(reads, script)).items()
        }
    places = [happened.place for happened in found]
    assert places == sorted(set(places))
    assert [place[0] for place in places] == [happened.logical.offset for happened in found]


@pytest.mark.parametrize("seed", SEEDS)
async def test_from_every_place_the_rest_is_told(dsn: str, seed: int) -> None:
    script = random_history(Random(seed), 60)
    await asyncio.to_thread(project, dsn, script, cut(script, seed, 5), fed=True)
    async with open_reads(dsn) as reads:
        found = await told(reads, script, BEGINNING, rows_max=1_000)
        for number, happened in enumerate(found, 1):
            rest = await told(reads, script, happened.place, rows_max=3)
            assert [one.place for one in rest] == [one.place for one in found[number:]]


@pytest.mark.parametrize("rows_max", [1, 3, 1_000])
async def test_a_long_history_is_told_once_and_in_order(dsn: str, rows_max: int) -> None:
    """Among short ones, over first rows, rows of its own and what lies with the job."""
    script = Script()
    plain_job(script)
    version = script.partition.jobs[long_job(script, 60)].version
    plain_job(script)
    cuts = range(0, len(script.items), 2)
    await asyncio.to_thread(project, dsn, script, cuts, fed=True)
    async with open_reads(dsn) as reads:
        found = await told(reads, script, BEGINNING, rows_max)
    assert [one.place for one in found] == [
        (offset, ALL_OF_IT) for offset in range(1, script.offset)
    ]
    assert [one.logical.seq for one in found] == [
        *range(1, 5),
        *range(1, version + 1),
        *range(1, 5),
    ]


async def test_an_end_within_a_flush_is_kept_to(dsn: str) -> None:
    """As it may be after a rebuild, which cuts the log otherwise."""
    script = Script()
    for _ in range(5):
        plain_job(script)
    await asyncio.to_thread(project, dsn, script, (3, 9), fed=True)
    async with open_reads(dsn) as reads:
        for after in range(script.offset):
            for until in range(after + 1, script.offset):
                part = await reads.changes(0, (after, ALL_OF_IT), until, rows_max=1_000)
                assert part.until == until
                assert [one.place[0] for one in part.items] == list(range(after + 1, until + 1))


async def test_places_do_not_depend_on_how_the_log_was_cut(dsn: str) -> None:
    """As it is after a rebuild: what was told before goes on behind it."""
    script = leases_extended()
    migrate(dsn, schema="whole")
    with Projector(dsn, topic=TOPIC, schema="whole") as projector:
        projector.cursor(0)
        for batch in script.batches():
            projector.apply(batch)
    await asyncio.to_thread(project, dsn, script, range(len(script.items)), fed=True)
    async with open_reads(dsn) as cut_up, open_reads(dsn, schema="whole") as whole:
        one = await told(cut_up, script, BEGINNING, rows_max=5)
        other = await told(whole, script, BEGINNING, rows_max=5)
    assert [(each.place, each.event()) for each in one] == [
        (each.place, each.event()) for each in other
    ]


def leases_extended() -> Script:
    """Three jobs whose leases one record extends."""
    script = Script()
    for _ in range(3):
        script.submit()
    granted = script.grant(QUEUES[0], 3, "s1")
    leases = tuple(HeldLease(one.job_id, one.fence) for one in granted)
    beat = Beat(RuntimeId("runtime-1"), Session("s1"), QUEUES[0], 1, ("send",), leases=leases)
    script.do(beat)
    script.do(beat, seconds=50)
    plain_job(script)
    return script


async def test_one_record_of_many_jobs_is_told_job_by_job(dsn: str) -> None:
    script = leases_extended()
    await asyncio.to_thread(project, dsn, script, (), fed=True)
    async with open_reads(dsn) as reads:
        found = await told(reads, script, BEGINNING, rows_max=100)
        shared = [one for one in found if one.place[0] == _shared_offset(found)]
        assert [one.place[1] for one in shared] == [0, 1, ALL_OF_IT]
        assert [one.job.id for one in shared] == sorted(one.job.id for one in shared)
        rest = await told(reads, script, shared[0].place, rows_max=100)
    assert [one.place for one in rest[:2]] == [one.place for one in shared[1:]]


def _shared_offset(found: list[Happened]) -> int:
    offsets = [one.place[0] for one in found]
    return next(offset for offset in offsets if offsets.count(offset) == 3)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_followed_job_goes_on_from_the_version_that_is_known(dsn: str, seed: int) -> None:
    script = random_history(Random(seed), 150)
    await asyncio.to_thread(project, dsn, script, cut(script, seed), fed=True)
    async with open_reads(dsn) as reads:
        for job_id, items in (await histories(reads, script)).items():
            for version in range(len(items)):
                [changed] = await reads.changed_jobs({job_id: version, "default.unknown": 0})
                assert [one.seq for one in changed.events] == list(
                    range(version + 1, len(items) + 1)
                )
                before = await reads.as_of(job_id, version=version) if version else None
                job: Job | None = None if before is None else before.job
                for logical in changed.events:
                    job = folded(job, logical.event, logical.at)
                assert job == changed.job
            assert await reads.changed_jobs({job_id: len(items)}) == []


async def test_who_follows_hears_of_each_flush(dsn: str) -> None:
    script = Script()
    plain_job(script)
    heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    await asyncio.to_thread(migrate, dsn)
    async with open_reads(dsn) as reads:
        reads.follow(lambda partition, offset: heard.put_nowait((partition, offset)))
        await listening(dsn)
        await asyncio.to_thread(project, dsn, script, (2,), fed=True)
        async with asyncio.timeout(30):
            assert [await heard.get(), await heard.get()] == [(0, 1), (0, script.offset - 1)]


async def listening(dsn: str) -> None:
    """Returns once a watch's own connection listens."""
    async with asyncio.timeout(30):
        while True:
            if await asyncio.to_thread(_listens, dsn):
                return
            await asyncio.sleep(0.01)  # Between two looks, not for luck.


def _listens(dsn: str) -> bool:
    with connect(dsn) as connection:
        found = connection.execute(
            "SELECT FROM pg_stat_activity WHERE application_name = 'ledger positions' AND "
            "query LIKE 'LISTEN%' AND state = 'idle' AND datname = current_database()"
        )
        return found.rowcount == 1
