"""The reaction `rates`: every job counted once, whoever counts and however often."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from ledger.domain.commands import CancelJob, RequestJob
from ledger.domain.ids import JobId, QueueName
from ledger.log.effective import Effective
from ledger.log.entries_reader import EntriesReader
from processors import rates
from processors.rates import RatesFeed
from processors.rates_store import RatesBatch, RatesStore, Superseded, count_of
from projections.batches import advanced, end_of
from projections.reads import open_reads
from projections.schema import connect, migrate
from tests.support.ledger import Client, Ledger, ledger_on

pytestmark = pytest.mark.services

PATIENCE_SECONDS = 30.0
QUEUE = QueueName("counted")
COUNTS = "SELECT outcome, sum(count)::bigint FROM job_rates WHERE queue = %s GROUP BY outcome"


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix, partitions=1) as ledger:
        yield ledger


@pytest.fixture
def store(dsn: str, ledger: Ledger) -> Iterator[RatesStore]:
    migrate(dsn)
    store = RatesStore(dsn, topic=ledger.topics.events)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "OLD_SECONDS", 0.0)


def counts_in(dsn: str) -> dict[str, int]:
    with connect(dsn) as connection:
        return {str(name): int(n) for name, n in connection.execute(COUNTS, (QUEUE,)).fetchall()}


async def request_and_cancel(client: Client, many: int) -> None:
    for _ in range(many):
        asked = await client.ask(RequestJob(type="t", queue=QUEUE))
        assert asked.job_id is not None
        await client.ask(CancelJob(job_id=JobId(asked.job_id)))


async def effective(ledger: Ledger) -> list[Effective]:
    found: list[Effective] = []
    async with EntriesReader(ledger.connection, ledger.topics, 0) as reader:
        async for items in reader.batches(await reader.end()):
            found += items
    return found


@asynccontextmanager
async def counting(ledger: Ledger, store: RatesStore) -> AsyncIterator[RatesFeed]:
    feed = RatesFeed(store, partial(EntriesReader, ledger.connection, ledger.topics))
    # The agent's body, without the agent.
    feed.sends_to(feed.count)
    stop = asyncio.Event()
    running = asyncio.create_task(feed.run(stop))
    try:
        yield feed
    finally:
        stop.set()
        await running


async def until_counted(dsn: str, wanted: dict[str, int]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await asyncio.to_thread(counts_in, dsn) == wanted:
                return
            await asyncio.sleep(0.05)  # Between two looks, not for luck.


async def test_what_the_log_holds_is_counted_from_its_beginning(
    ledger: Ledger, store: RatesStore, dsn: str
) -> None:
    async with ledger.owner(), ledger.client() as client:
        await request_and_cancel(client, 3)

    async with counting(ledger, store) as feed:
        feed.follow(0)
        await until_counted(dsn, {"requested": 3, "cancelled": 3})

    async with open_reads(dsn) as reads:
        told = Counter[str]()
        for rate in await reads.rates(60, QUEUE):
            told[rate.outcome] += rate.count
        assert told == {"requested": 3, "cancelled": 3}
        assert await reads.rates(60, "nobodys") == ()


async def test_what_an_owner_offers_goes_on_where_the_log_was_read_up_to(
    ledger: Ledger, store: RatesStore, dsn: str
) -> None:
    async with ledger.owner(), ledger.client() as client:
        await request_and_cancel(client, 2)
        before = await effective(ledger)
        async with counting(ledger, store) as feed:
            feed.follow(0)
            await until_counted(dsn, {"requested": 2, "cancelled": 2})
            await request_and_cancel(client, 1)
            later = (await effective(ledger))[len(before) :]

            assert feed.offer(0, end_of(before[-1]), later)

            await until_counted(dsn, {"requested": 3, "cancelled": 3})


async def test_two_that_count_the_same_log_count_it_once(
    ledger: Ledger, store: RatesStore, dsn: str
) -> None:
    other = RatesStore(dsn, topic=ledger.topics.events)
    async with ledger.owner(), ledger.client() as client:
        await request_and_cancel(client, 5)

    async with counting(ledger, store) as one, counting(ledger, other) as two:
        one.follow(0)
        two.follow(0)
        await until_counted(dsn, {"requested": 5, "cancelled": 5})

    async with counting(ledger, store) as again:
        again.follow(0)
        await until_caught_up(again)
    assert counts_in(dsn) == {"requested": 5, "cancelled": 5}


async def test_the_same_batch_twice_is_refused_the_second_time(
    ledger: Ledger, store: RatesStore, dsn: str
) -> None:
    async with ledger.owner(), ledger.client() as client:
        await request_and_cancel(client, 1)
    items = await effective(ledger)
    start = store.cursor(0)
    batch = RatesBatch(0, 1, start, advanced(start, items), items)

    store.apply(batch, count_of(items))
    with pytest.raises(Superseded):
        store.apply(batch, count_of(items))

    assert counts_in(dsn) == {"requested": 1, "cancelled": 1}
    assert store.cursor(0) == batch.after


async def test_an_entry_that_cannot_be_counted_is_quarantined_and_the_rest_counted(
    ledger: Ledger, store: RatesStore, dsn: str
) -> None:
    async with ledger.owner(), ledger.client() as client:
        await request_and_cancel(client, 2)
    items = await effective(ledger)
    poison = next(n for n, item in enumerate(items) if hasattr(item, "entry"))
    spoilt = msgspec.structs.replace(
        items[poison],
        entry=msgspec.structs.replace(items[poison].entry, at="not an instant"),  # type: ignore[union-attr]
    )
    items[poison] = spoilt

    counted = count_of(items)
    start = store.cursor(0)
    store.apply(RatesBatch(0, 1, start, advanced(start, items), items), counted)

    assert counted.quarantined == 1
    assert counts_in(dsn) == {"requested": 1, "cancelled": 2}
    with connect(dsn) as connection:
        row = connection.execute("SELECT quarantined FROM job_rates_checkpoints").fetchone()
    assert row == (1,)


async def until_caught_up(feed: RatesFeed) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if not feed.health()["behind"]:
                return
            await asyncio.sleep(0.05)  # Between two looks, not for luck.
