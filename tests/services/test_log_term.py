"""Take-overs and appends on a real broker: who may write, and how it is proven."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from ledger.domain.entries import Entry, Proven, TakeOver
from ledger.domain.events import Event, JobCancelled
from ledger.domain.ids import JobId, Micros
from ledger.embedded import Kafka
from ledger.log.admin import Admin
from ledger.log.connection import Bounds, Connection
from ledger.log.effective import START, Cursor, Effective, TakenOver
from ledger.log.entries_reader import EntriesReader
from ledger.log.entry_codec import take_over_record
from ledger.log.errors import (
    AppendRefused,
    ChainBroken,
    CheckpointNotBorneOut,
    EntryTooLarge,
    Fenced,
    LedgerMismatch,
    LogError,
    LogTruncated,
    LogUnavailable,
    OffsetOutOfRange,
    OutcomeUnknown,
    TakeOverAgain,
    TermEnded,
)
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.term import Term
from ledger.log.topics import Topics

pytestmark = pytest.mark.services

LEDGER = "ledger-under-test"
PARTITIONS = 2
JOB = JobId("q.0190a7b2-7b1c-7def-8a12-0123456789ab")


class Clock:
    """Steps by a millisecond whenever it is asked."""

    def __init__(self) -> None:
        self.at = 1_700_000_000_000_000

    def __call__(self) -> Micros:
        self.at += 1_000
        return Micros(self.at)


@pytest.fixture
def connection(bootstrap: str) -> Connection:
    return Connection(bootstrap=bootstrap)


@pytest.fixture
async def topics(connection: Connection, topic_prefix: str) -> Topics:
    topics = Topics(topic_prefix)
    await topics.apply(connection, partitions=PARTITIONS, mode="development")
    return topics


class Owners:
    """Makes terms of partition 0 and closes them."""

    def __init__(self, connection: Connection, topics: Topics) -> None:
        self.connection = connection
        self.topics = topics
        self.clock = Clock()
        self.terms: list[Term] = []

    async def take_over(
        self,
        name: str,
        *,
        cursor: Cursor = START,
        applied: list[Effective] | None = None,
        ledger_id: str = LEDGER,
        partitions: int = PARTITIONS,
    ) -> Term:
        term = await Term.take_over(
            self.connection,
            self.topics,
            0,
            ledger_id=ledger_id,
            partitions=partitions,
            at=self.clock,
            apply=(applied if applied is not None else []).extend,
            cursor=cursor,
            owner=name,
        )
        self.terms.append(term)
        return term

    def entries(self, term: Term, *sizes: int) -> list[Entry]:
        return [
            Entry(term.next_entry + index, self.clock(), 0, 0, facts(size))
            for index, size in enumerate(sizes)
        ]

    async def append(self, term: Term, *sizes: int) -> list[Proven]:
        return await term.append(self.entries(term, *sizes))


def facts(size: int, text: str = "") -> tuple[Event, ...]:
    return tuple(JobCancelled(JOB, "at_once", reason=text) for _ in range(size))


@pytest.fixture
async def owners(connection: Connection, topics: Topics) -> AsyncIterator[Owners]:
    owners = Owners(connection, topics)
    yield owners
    for term in owners.terms:
        await term.close()


@pytest.fixture
async def outbox(connection: Connection) -> AsyncIterator[Outbox]:
    outbox = Outbox(connection)
    yield outbox
    await outbox.close()


async def effective(owners: Owners, cursor: Cursor = START) -> list[Effective]:
    """What a reader that begins now finds up to the end."""
    async with EntriesReader(owners.connection, owners.topics, 0, cursor) as reader:
        return [item async for items in reader.batches(await reader.end()) for item in items]


def numbers(items: Iterable[Effective]) -> list[int]:
    return [item.entry.number for item in items if isinstance(item, Proven)]


ALIEN = (b"k", b"not ours", [("ce_ledger", b"nonsense")])


# --- A term in peace ----------------------------------------------------------------------------
async def test_what_is_proven_is_what_every_reader_finds(owners: Owners) -> None:
    term = await owners.take_over("a")
    proven = await owners.append(term, 1, 3, 2)
    proven += await owners.append(term, 1)
    assert [(each.first_offset, each.last_offset) for each in proven] == [
        (1, 1), (2, 4), (5, 6), (7, 7),
    ]  # fmt: skip
    found = await effective(owners)
    assert isinstance(found[0], TakenOver)
    assert found[1:] == proven
    assert (term.entry, term.hash, term.end) == (4, proven[-1].hash, 8)
    assert term.appended_at > 1_700_000_000_000_000


async def test_appends_that_overlap_stay_in_order(owners: Owners) -> None:
    term = await owners.take_over("a")
    first = owners.entries(term, *[1] * 50)
    pending = [
        asyncio.create_task(term.append(first[index : index + 5])) for index in range(0, 50, 5)
    ]
    proven = [each for found in await asyncio.gather(*pending) for each in found]
    assert [each.first_offset for each in proven] == list(range(1, 51))
    assert numbers(await effective(owners)) == list(range(1, 51))


async def test_many_entries_leave_in_batches_none_of_which_an_entry_spans(owners: Owners) -> None:
    term = await owners.take_over("a")
    large = [Entry(number, owners.clock(), 0, 0, facts(4, "x" * 50_000)) for number in range(1, 21)]
    proven = await term.append(large)
    assert numbers(proven) == list(range(1, 21))
    assert [each.entry for each in await effective(owners) if isinstance(each, Proven)] == large


async def test_an_entry_that_does_not_fit_leaves_the_term_as_it_was(owners: Owners) -> None:
    term = await owners.take_over("a")
    [small, large] = owners.entries(term, 1, 9)
    large = Entry(2, large.at, 0, 0, facts(9, "x" * 65_000))
    assert term.fits(small)
    assert not term.fits(large)
    with pytest.raises(EntryTooLarge) as refused:
        await term.append([small, large])
    assert refused.value.number == 2
    assert numbers(await term.append([small])) == [1]


async def test_numbers_that_do_not_continue_are_a_mistake_of_the_caller(owners: Owners) -> None:
    term = await owners.take_over("a")
    with pytest.raises(ValueError, match="does not continue"):
        await term.append([Entry(2, owners.clock(), 0, 0, facts(1))])
    assert not term.ended


# --- The next term ------------------------------------------------------------------------------
async def test_a_take_over_finds_all_that_was_proven(owners: Owners) -> None:
    first = await owners.take_over("a")
    proven = await owners.append(first, 1, 2)
    applied: list[Effective] = []
    second = await owners.take_over("b", applied=applied)
    assert applied[1:-1] == proven
    assert isinstance(applied[-1], TakenOver)
    assert applied[-1].take_over.nonce == second.nonce
    assert (second.entry, second.hash) == (first.entry, first.hash)
    assert numbers(await owners.append(second, 1)) == [3]


async def test_a_take_over_goes_on_from_a_snapshot(owners: Owners) -> None:
    first = await owners.take_over("a")
    await owners.append(first, 1, 2)
    snapshot = first.cursor
    await owners.append(first, 3)
    applied: list[Effective] = []
    second = await owners.take_over("b", cursor=snapshot, applied=applied)
    assert numbers(applied) == [3]
    assert (second.entry, second.hash) == (first.entry, first.hash)


async def test_who_was_overtaken_is_fenced_and_stays_so(owners: Owners) -> None:
    zombie = await owners.take_over("a")
    await owners.append(zombie, 1)
    current = await owners.take_over("b")
    with pytest.raises(Fenced):
        await owners.append(zombie, 1)
    with pytest.raises(TermEnded):
        await owners.append(zombie, 1)
    assert zombie.ended
    await owners.append(current, 1)
    assert numbers(await effective(owners)) == [1, 2]


async def test_two_that_fence_each_other_waste_work_and_corrupt_nothing(owners: Owners) -> None:
    proven: list[Proven] = []
    for turn in range(6):
        term = await owners.take_over("ab"[turn % 2])
        proven += await owners.append(term, 1)
        for zombie in owners.terms[:-1]:
            with pytest.raises(LogError):
                await owners.append(zombie, 1)
        proven += await owners.append(term, 2)
    assert [item for item in await effective(owners) if isinstance(item, Proven)] == proven


async def test_a_pipelined_append_behind_a_fenced_one_fails_too(owners: Owners) -> None:
    zombie = await owners.take_over("a")
    await owners.take_over("b")
    one, two = owners.entries(zombie, 1, 1)
    failed = await asyncio.gather(
        zombie.append([one]), zombie.append([two]), return_exceptions=True
    )
    assert [type(each) for each in failed] == [Fenced, TermEnded]


async def test_a_late_take_over_of_ones_own_means_take_over_again(owners: Owners) -> None:
    term = await owners.take_over("a")
    await owners.append(term, 1)
    await owners.take_over("a")  # Given up by its maker, and landed all the same.
    with pytest.raises(TakeOverAgain):
        await owners.append(term, 1)
    again = await owners.take_over("a")
    assert numbers(await owners.append(again, 1)) == [2]


async def test_a_doubled_take_over_reinstates_nobody(owners: Owners, outbox: Outbox) -> None:
    old = await owners.take_over("a")
    current = await owners.take_over("b")
    await owners.append(current, 1)
    doubled = take_over_record(TakeOver(old.nonce, Micros(1), LEDGER, PARTITIONS), partition=0)
    await outbox.send_one(owners.topics.events, 0, doubled)
    with pytest.raises(TakeOverAgain):
        await owners.append(current, 1)
    assert numbers(await effective(owners)) == [1, 2]  # It stood; nobody was told so.
    again = await owners.take_over("b")
    assert (again.entry, numbers(await owners.append(again, 1))) == (2, [3])


async def test_an_alien_record_in_between_is_harmless(owners: Owners, outbox: Outbox) -> None:
    term = await owners.take_over("a")
    proven = await owners.append(term, 1)
    for _ in range(3):
        await outbox.send(owners.topics.events, 0, [ALIEN] * 2)
        proven = await owners.append(term, 1, 2)
        assert [each.entry.number for each in proven] == [term.entry - 1, term.entry]
    found = await effective(owners)
    assert numbers(found) == list(range(1, 8))
    assert found[-1].last_offset == term.end - 1  # type: ignore[union-attr]
    assert [item for item in found if isinstance(item, Proven)][-2:] == proven


# --- Whose log it is ----------------------------------------------------------------------------
@pytest.mark.parametrize(("ledger_id", "partitions"), [("other", PARTITIONS), (LEDGER, 16)])
async def test_another_ledgers_log_is_left_alone(
    owners: Owners, ledger_id: str, partitions: int
) -> None:
    term = await owners.take_over("a")
    with pytest.raises(LedgerMismatch):
        await owners.take_over("b", ledger_id=ledger_id, partitions=partitions)
    assert numbers(await owners.append(term, 1)) == [1]
    async with Offsets(owners.connection) as offsets:
        assert await offsets.end(owners.topics.events, 0) == 2


# --- Checkpoints --------------------------------------------------------------------------------
async def test_a_checkpoint_of_another_history_stops_the_reader(owners: Owners) -> None:
    term = await owners.take_over("a")
    await owners.append(term, 1, 1)
    cursor = term.cursor
    wrong_hash = replace(cursor, hash=b"\1" * 32)
    beyond = replace(cursor, offset=900, hash_offset=899)
    elsewhere = replace(cursor, hash_offset=cursor.hash_offset - 1)
    for bad in (wrong_hash, beyond, elsewhere):
        with pytest.raises(CheckpointNotBorneOut):
            await effective(owners, bad)
        with pytest.raises(CheckpointNotBorneOut):
            await owners.take_over("b", cursor=bad)
    assert await effective(owners, cursor) == []


async def test_a_log_whose_beginning_was_deleted_is_refused(owners: Owners) -> None:
    term = await owners.take_over("a")
    await owners.append(term, 1, 1)
    async with Admin(owners.connection) as admin:
        await admin.delete_records(owners.topics.events, {0: 2})
    with pytest.raises(OffsetOutOfRange, match=r"at offset 0"):
        await effective(owners)


async def test_a_forged_entry_is_found_and_named(owners: Owners, outbox: Outbox) -> None:
    term = await owners.take_over("a")
    await owners.append(term, 1)
    [forged] = owners.entries(term, 1)
    encoded = term._encoder.encode(forged, b"another history")
    await outbox.send(owners.topics.events, 0, encoded.records)
    with pytest.raises(ChainBroken) as broken:
        await effective(owners)
    assert (broken.value.partition, broken.value.offset) == (0, 2)
    with pytest.raises(ChainBroken):
        await owners.append(term, 1)
    assert term.ended


async def test_a_reader_follows_what_comes(owners: Owners) -> None:
    term = await owners.take_over("a")
    seen: list[int] = []
    async with asyncio.timeout(20):
        async with EntriesReader(owners.connection, owners.topics, 0) as reader:
            async for items in reader.batches():
                seen += numbers(items)
                if seen and seen[-1] == 5:
                    break
                await owners.append(term, 1)
    assert seen == [1, 2, 3, 4, 5]


async def test_a_reader_that_fetches_no_more_is_made_anew(owners: Owners) -> None:
    term = await owners.take_over("a")
    await owners.append(term, 1)
    impatient = Connection(bootstrap=owners.connection.bootstrap, bounds=Bounds(stuck_seconds=0.5))
    async with EntriesReader(impatient, owners.topics, 0) as reader:
        stuck = reader._consumer
        stuck.pause(*stuck.assignment())
        async with asyncio.timeout(20):
            found = [item async for items in reader.batches(2) for item in items]
        assert numbers(found) == [1]
        assert reader._consumer is not stuck


# --- A broker that does not answer, and one that forgets ----------------------------------------
SHORT = Bounds(append_seconds=1.0, close_seconds=0.5, request_seconds=2.0, connect_seconds=10.0)


@pytest.fixture
def kafka(server_directory: Path) -> Iterator[Kafka]:
    with Kafka(server_directory, fast_start=True) as kafka:
        yield kafka


@asynccontextmanager
async def own_broker(kafka: Kafka) -> AsyncIterator[Owners]:
    connection = Connection(bootstrap=kafka.bootstrap, bounds=SHORT)
    topics = Topics()
    await topics.apply(connection, partitions=PARTITIONS, mode="development")
    owners = Owners(connection, topics)
    try:
        yield owners
    finally:
        for term in owners.terms:
            await term.close()


async def test_an_append_without_an_answer_is_unknown_and_may_land_later(kafka: Kafka) -> None:
    async with own_broker(kafka) as owners:
        term = await owners.take_over("a")
        await owners.append(term, 1)
        kafka.pause(1)
        with pytest.raises(OutcomeUnknown):
            await owners.append(term, 1)
        assert term.ended
        await term.close()
        with pytest.raises(LogError):
            await owners.take_over("a")
        kafka.resume(1)
        again = await owners.take_over("a")
        landed = again.entry == 2
        assert numbers(await owners.append(again, 1)) == [3 if landed else 2]


async def test_a_producer_closed_under_an_append_leaves_it_unknown(owners: Owners) -> None:
    term = await owners.take_over("a")
    await term._producer.close()
    with pytest.raises(OutcomeUnknown):
        await owners.append(term, 1)
    with pytest.raises(TermEnded):
        await owners.append(term, 1)


async def test_a_cancelled_append_ends_the_term(owners: Owners) -> None:
    term = await owners.take_over("a")
    task = asyncio.create_task(owners.append(term, 1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert term.ended


async def test_no_broker_is_an_error_in_bounded_time() -> None:
    bounds = Bounds(connect_seconds=1.0, close_seconds=0.2)
    nowhere = Connection(bootstrap="127.0.0.1:9", bounds=bounds)
    with pytest.raises(LogUnavailable):
        await Owners(nowhere, Topics()).take_over("a")


async def test_a_batch_that_the_broker_refuses_is_no_unknown(owners: Owners) -> None:
    term = await owners.take_over("a")
    async with Admin(owners.connection) as admin:
        await admin.set(owners.topics.events, {"max.message.bytes": "1000"})
    noise = "".join(sha256(bytes([each])).hexdigest() for each in range(100))  # Packs badly.
    [entry] = owners.entries(term, 1)

    async def append_on() -> None:
        # A broker's log takes a setting over a moment after the broker tells it.
        for number in range(1, 200):
            await term.append([Entry(number, entry.at, 0, 0, facts(1, noise))])

    with pytest.raises(AppendRefused):
        await append_on()
    assert term.ended


async def test_a_log_that_was_cut_is_found_by_the_next_append(owners: Owners) -> None:
    term = await owners.take_over("a")
    await owners.append(term, 1, 1)
    term.end += 5  # As if five records more had been acknowledged and then lost.
    with pytest.raises(LogTruncated):
        await owners.append(term, 1)
    assert term.ended
