"""Intakes, the outbox and the sharing out of partitions, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from ledger.domain.ids import QueueName
from ledger.embedded import Kafka
from ledger.log.admin import Admin
from ledger.log.connection import Bounds, Connection
from ledger.log.errors import (
    LogUnavailable,
    OffsetOutOfRange,
    ReaderStuck,
    RecordTooLarge,
    UnsafeTopics,
)
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.records import Outgoing
from ledger.log.sharing import PartitionsAssigned, PartitionsRevoked, Sharing, SharingChange
from ledger.log.topics import Topics
from processors.owner.seams import wall_clock
from tests.support.records import records_of

pytestmark = pytest.mark.services

PARTITIONS = 4
DEADLINE_SECONDS = 30


@pytest.fixture
def connection(bootstrap: str) -> Connection:
    return Connection(bootstrap=bootstrap)


@pytest.fixture
async def topics(connection: Connection, topic_prefix: str) -> Topics:
    topics = Topics(topic_prefix)
    await topics.apply(connection, partitions=PARTITIONS, mode="development")
    return topics


@pytest.fixture
async def outbox(connection: Connection) -> AsyncIterator[Outbox]:
    outbox = Outbox(connection)
    await outbox.start()
    yield outbox
    await outbox.close()


@pytest.fixture
async def commands(connection: Connection, topics: Topics) -> AsyncIterator[Intake]:
    intake = Intake(connection, topics.commands, isolation="read_uncommitted", buffered_max=10)
    await intake.start()
    yield intake
    await intake.close()


@pytest.fixture
async def requests(connection: Connection, topics: Topics) -> AsyncIterator[Intake]:
    intake = Intake(connection, topics.requests, isolation="read_committed")
    await intake.start()
    yield intake
    await intake.close()


def some(count: int, first: int = 0) -> list[Outgoing]:
    return [(b"k", str(first + index).encode(), []) for index in range(count)]


async def taken(intake: Intake, partition: int, count: int) -> list[int]:
    """The values of the next `count` records."""
    found: list[int] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < count:
            intake.arrived(partition).clear()
            records = intake.take(partition, count - len(found))
            found += [int(record.value or b"") for record in records]
            if not records:
                await intake.arrived(partition).wait()
    return found


async def reached(intake: Intake, partition: int, offset: int) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while intake.position(partition) < offset:
            intake.arrived(partition).clear()
            await intake.arrived(partition).wait()


# --- Topics -------------------------------------------------------------------------------------
async def test_whatever_is_sent_is_as_old_as_its_append(
    connection: Connection, topics: Topics, outbox: Outbox
) -> None:
    """Or all of it would be older than any retention, and gone with the broker's next look."""
    await topics.ensure_assigned(connection, QueueName("red"), mode="development")
    names = [spec.name for spec in topics.specs(partitions=PARTITIONS, mode="development")]
    for name in (*names, topics.assigned(QueueName("red"))):
        began = wall_clock() // 1_000
        await outbox.send(name, 0, some(1))
        intake = Intake(connection, name, isolation="read_uncommitted")
        await intake.start()
        try:
            intake.follow(0, 0)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not (records := intake.take(0, 1)):
                    await intake.arrived(0).wait()
                    intake.arrived(0).clear()
        finally:
            await intake.close()
        assert records[0].timestamp >= began, name


# --- Intake -------------------------------------------------------------------------------------
async def test_who_takes_a_part_at_each_arrival_comes_to_the_end(
    commands: Intake, outbox: Outbox, topics: Topics
) -> None:
    """Its buffer was full, so that nothing more could arrive, and it waited for that."""
    commands.follow(1, 0)
    await outbox.send(topics.commands, 1, some(30))
    found: list[int] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < 30:
            await commands.arrived(1).wait()
            commands.arrived(1).clear()
            found += [int(record.value or b"") for record in commands.take(1, 1)]
    assert found == [*range(30)]


async def test_what_comes_is_taken_in_order(
    commands: Intake, outbox: Outbox, topics: Topics
) -> None:
    commands.follow(1, 0)
    assert commands.take(1, 10) == []
    await outbox.send(topics.commands, 1, some(5))
    assert await taken(commands, 1, 3) == [0, 1, 2]
    assert commands.position(1) == 3
    assert await taken(commands, 1, 2) == [3, 4]
    assert commands.position(1) == 5


async def test_each_partition_begins_where_it_is_told(
    commands: Intake, outbox: Outbox, topics: Topics
) -> None:
    for partition in range(PARTITIONS):
        await outbox.send(topics.commands, partition, some(4, 10 * partition))
        commands.follow(partition, partition)
    for partition in range(PARTITIONS):
        expected = [10 * partition + index for index in range(partition, 4)]
        assert await taken(commands, partition, 4 - partition) == expected


async def test_a_change_of_one_partition_leaves_the_others_where_they_are(
    commands: Intake, outbox: Outbox, topics: Topics
) -> None:
    commands.follow(0, 0)
    for turn in range(10):
        await outbox.send(topics.commands, 0, some(3, 3 * turn))
        commands.follow(1, 0)
        first = await taken(commands, 0, 1)
        commands.unfollow(1)
        assert first + await taken(commands, 0, 2) == [3 * turn, 3 * turn + 1, 3 * turn + 2]


async def test_a_partition_followed_anew_is_read_again(
    commands: Intake, outbox: Outbox, topics: Topics
) -> None:
    await outbox.send(topics.commands, 0, some(5))
    commands.follow(0, 0)
    assert await taken(commands, 0, 4) == [0, 1, 2, 3]
    commands.follow(0, 2)
    assert commands.position(0) == 2
    assert await taken(commands, 0, 3) == [2, 3, 4]
    commands.unfollow(0)
    commands.follow(0, 1)
    assert await taken(commands, 0, 1) == [1]


async def test_a_full_buffer_holds_only_its_own_partition_up(
    commands: Intake, outbox: Outbox, topics: Topics
) -> None:
    commands.follow(0, 0)
    commands.follow(1, 0)
    for turn in range(20):
        await outbox.send(topics.commands, 0, [(b"k", b"%d" % turn, [("pad", b"x" * 400_000)])])
    await reached(commands, 0, 0)
    await outbox.send(topics.commands, 1, some(1))
    assert await taken(commands, 1, 1) == [0]
    async with asyncio.timeout(DEADLINE_SECONDS):
        while commands.buffered(0) < 10:
            commands.arrived(0).clear()
            await commands.arrived(0).wait()
    await outbox.send(topics.commands, 1, some(1, 1))
    assert await taken(commands, 1, 1) == [1]
    assert commands.buffered(0) < 20
    assert await taken(commands, 0, 20) == list(range(20))


async def test_an_offset_that_is_not_there_stops_its_partition_only(
    commands: Intake, outbox: Outbox, topics: Topics
) -> None:
    await outbox.send(topics.commands, 0, some(2))
    commands.follow(0, 0)
    commands.follow(1, 7)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await commands.arrived(1).wait()
    with pytest.raises(OffsetOutOfRange, match=r"\[1\] at offset 7"):
        commands.take(1, 1)
    assert await taken(commands, 0, 2) == [0, 1]
    commands.follow(1, 0)
    await outbox.send(topics.commands, 1, some(1))
    assert await taken(commands, 1, 1) == [0]


async def test_deleted_records_are_a_gap_that_nobody_passes_silently(
    commands: Intake, outbox: Outbox, topics: Topics, connection: Connection
) -> None:
    await outbox.send(topics.commands, 0, some(5))
    async with Admin(connection) as admin:
        await admin.delete_records(topics.commands, {0: 3})
    async with Offsets(connection) as offsets:
        assert await offsets.first(topics.commands, 0) == 3
    commands.follow(0, 1)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await commands.arrived(0).wait()
    with pytest.raises(OffsetOutOfRange):
        commands.take(0, 1)


async def test_aborted_requests_are_not_seen_and_yet_passed(
    requests: Intake, connection: Connection, topics: Topics
) -> None:
    requests.follow(2, 0)
    producer = AIOKafkaProducer(
        bootstrap_servers=connection.bootstrap, transactional_id=f"{topics.prefix}t"
    )
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send(topics.requests, b"1", partition=2)
        await producer.begin_transaction()
        await producer.send_and_wait(topics.requests, b"2", partition=2)
        await producer.abort_transaction()
    finally:
        await producer.stop()
    assert await taken(requests, 2, 1) == [1]
    # Two records, a commit and an abort: the broker writes that one after its answer.
    await reached(requests, 2, 4)
    assert requests.take(2, 10) == []
    async with Offsets(connection) as offsets:
        assert await offsets.end(topics.requests, 2) == 4


async def test_an_intake_outlives_a_restart_of_the_broker(server_directory: Path) -> None:
    with Kafka(server_directory, fast_start=True) as kafka:
        bounds = Bounds(stuck_seconds=2.0, close_seconds=0.5, append_seconds=20.0)
        connection = Connection(bootstrap=kafka.bootstrap, bounds=bounds)
        topics = Topics()
        await topics.apply(connection, partitions=PARTITIONS, mode="development")
        intake = Intake(connection, topics.commands, isolation="read_uncommitted")
        outbox = Outbox(connection)
        try:
            await intake.start()
            intake.follow(0, 0)
            await outbox.send(topics.commands, 0, some(2))
            assert await taken(intake, 0, 2) == [0, 1]
            await asyncio.to_thread(kafka.restart, 1)
            await outbox.send(topics.commands, 0, some(2, 2))
            assert await taken(intake, 0, 2) == [2, 3]
            assert intake.failure is None
        finally:
            await intake.close()
            await outbox.close()


async def test_a_consumer_that_fetches_no_more_is_made_anew(
    connection: Connection, outbox: Outbox, topics: Topics
) -> None:
    impatient = Connection(bootstrap=connection.bootstrap, bounds=Bounds(stuck_seconds=1.0))
    intake = Intake(impatient, topics.commands, isolation="read_uncommitted")
    await intake.start()
    try:
        intake.follow(0, 0)
        await outbox.send(topics.commands, 0, some(1))
        assert await taken(intake, 0, 1) == [0]
        stuck = intake._consumer
        stuck.pause(*stuck.assignment())  # Behind the intake's back.
        await outbox.send(topics.commands, 0, some(2, 1))
        assert await taken(intake, 0, 2) == [1, 2]
        assert intake._consumer is not stuck
    finally:
        await intake.close()


async def test_a_consumer_that_stays_stuck_is_given_up(
    connection: Connection, outbox: Outbox, topics: Topics
) -> None:
    class NeverFetching(Intake):
        def _assign(self) -> None:
            super()._assign()
            self._consumer.pause(*self._consumer.assignment())

    impatient = Connection(bootstrap=connection.bootstrap, bounds=Bounds(stuck_seconds=0.5))
    intake = NeverFetching(impatient, topics.commands, isolation="read_uncommitted")
    await intake.start()
    try:
        intake.follow(0, 0)
        await outbox.send(topics.commands, 0, some(1))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await intake.arrived(0).wait()
        assert isinstance(intake.failure, ReaderStuck)
        with pytest.raises(LogUnavailable):
            intake.take(0, 1)
    finally:
        await intake.close()


# --- Outbox -------------------------------------------------------------------------------------
async def test_each_call_learns_where_its_records_lie(outbox: Outbox, topics: Topics) -> None:
    calls = [outbox.send(topics.commands, 0, some(size)) for size in (1, 3, 2, 5)]
    calls += [outbox.send_one(topics.commands, 0, some(1)[0]) for _ in range(50)]
    assert await asyncio.gather(*calls) == [0, 1, 4, 6, *range(11, 61)]


async def test_more_than_a_batch_leaves_in_several(
    outbox: Outbox, topics: Topics, connection: Connection
) -> None:
    large: list[Outgoing] = [(b"k", b"x" * 300_000, [])] * 8
    assert await outbox.send(topics.commands, 0, large) == 0
    async with Offsets(connection) as offsets:
        assert await offsets.ends(topics.commands, [0, 1]) == {0: 8, 1: 0}


async def test_a_record_that_fits_no_batch_is_refused_before_anything_is_sent(
    outbox: Outbox, topics: Topics
) -> None:
    with pytest.raises(RecordTooLarge):
        await outbox.send(topics.commands, 0, [*some(1), (b"k", b"x" * 1_040_000, [])])
    assert await outbox.send_one(topics.commands, 0, some(1)[0]) == 0


async def test_a_call_that_was_given_up_before_its_turn_sends_nothing(
    outbox: Outbox, topics: Topics
) -> None:
    gone = asyncio.create_task(outbox.send(topics.requests, 2, some(3)))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await outbox.send(topics.requests, 2, some(1)) == 0


async def test_a_caller_that_gives_up_does_not_disturb_the_others(
    outbox: Outbox, topics: Topics
) -> None:
    calls = [asyncio.create_task(outbox.send_one(topics.commands, 0, some(1)[0])) for _ in range(9)]
    await asyncio.sleep(0)
    calls[4].cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found[4], asyncio.CancelledError)
    assert sorted(each for each in found if isinstance(each, int))[0] == 0


async def test_a_broker_that_is_away_is_an_error_and_comes_back(server_directory: Path) -> None:
    with Kafka(server_directory, fast_start=True) as kafka:
        bounds = Bounds(append_seconds=4.0, request_seconds=4.0, close_seconds=0.5)
        connection = Connection(bootstrap=kafka.bootstrap, bounds=bounds)
        topics = Topics()
        await topics.apply(connection, partitions=PARTITIONS, mode="development")
        outbox = Outbox(connection)
        try:
            assert await outbox.send_one(topics.commands, 0, some(1)[0]) == 0
            kafka.pause(1)
            with pytest.raises(LogUnavailable):
                await outbox.send_one(topics.commands, 0, some(1)[0])
            kafka.resume(1)
            assert await outbox.send_one(topics.commands, 0, some(1)[0]) in (1, 2)
        finally:
            await outbox.close()
        with pytest.raises(LogUnavailable):
            await outbox.send_one(topics.commands, 0, some(1)[0])


# --- Sharing ------------------------------------------------------------------------------------
@pytest.fixture
async def members(connection: Connection, topics: Topics) -> AsyncIterator[list[Sharing]]:
    members = [Sharing(connection, topics), Sharing(connection, topics)]
    yield members
    for member in members:
        await member.close()
        assert member.failure is None


async def change(member: Sharing) -> SharingChange:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await member.changes.get()


ALL = frozenset(range(PARTITIONS))


async def test_members_share_all_partitions_and_none_twice(members: list[Sharing]) -> None:
    one, two = members
    await one.start()
    assert await change(one) == PartitionsAssigned(ALL)
    await two.start()
    assert await change(one) == PartitionsRevoked(ALL)
    of_one, of_two = await change(one), await change(two)
    assert isinstance(of_one, PartitionsAssigned)
    assert isinstance(of_two, PartitionsAssigned)
    assert of_one.partitions | of_two.partitions == ALL
    assert not of_one.partitions & of_two.partitions
    assert (one.partitions, two.partitions) == (of_one.partitions, of_two.partitions)


async def test_who_leaves_hands_over_at_once(members: list[Sharing]) -> None:
    one, two = members
    await one.start()
    await change(one)
    await two.start()
    for _ in range(2):
        await change(one)
    await change(two)
    await two.close()
    async with asyncio.timeout(5):  # Sooner than its session would have ended.
        assert isinstance(await change(one), PartitionsRevoked)
        assert await change(one) == PartitionsAssigned(ALL)


async def test_who_joins_anew_is_told_anew(members: list[Sharing]) -> None:
    one, _ = members
    await one.start()
    assert await change(one) == PartitionsAssigned(ALL)
    await one.rejoin()
    assert await change(one) == PartitionsRevoked(ALL)
    assert await change(one) == PartitionsAssigned(ALL)


async def test_a_member_outlives_its_session_without_reading(
    connection: Connection, topics: Topics, outbox: Outbox
) -> None:
    bounds = Bounds(session_seconds=1.0)
    member = Sharing(Connection(bootstrap=connection.bootstrap, bounds=bounds), topics)
    await member.start()
    try:
        assert await change(member) == PartitionsAssigned(ALL)
        await outbox.send(topics.commands, 0, some(3))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4 * bounds.session_seconds):
                await member.changes.get()
        assert member.partitions == ALL
    finally:
        await member.close()


# --- Topics -------------------------------------------------------------------------------------
async def test_topics_as_applied_are_safe_for_development_only(
    connection: Connection, topics: Topics
) -> None:
    await topics.require_safe(connection, partitions=PARTITIONS, mode="development")
    with pytest.raises(UnsafeTopics, match=r"replicas is 1, wanted 3 at least"):
        await topics.require_safe(connection, partitions=PARTITIONS, mode="production")


async def test_apply_mends_settings_and_leaves_partitions_alone(
    connection: Connection, topics: Topics
) -> None:
    async with Admin(connection) as admin:
        await admin.set(topics.events, {"retention.ms": "1000", "cleanup.policy": "compact"})
    problems = await topics.check(connection, partitions=PARTITIONS, mode="development")
    assert {problem.setting for problem in problems} == {"retention.ms", "cleanup.policy"}
    await topics.apply(connection, partitions=PARTITIONS, mode="development")
    assert not await topics.check(connection, partitions=PARTITIONS, mode="development")
    await topics.apply(connection, partitions=8, mode="development")
    problems = await topics.check(connection, partitions=8, mode="development")
    assert {problem.setting for problem in problems} == {"partitions"}


async def test_no_record_is_older_than_it_is(
    connection: Connection, topics: Topics, outbox: Outbox
) -> None:
    """Or Kafka would delete it at once: it goes by the time that stands in the record."""
    queue = QueueName("mail")
    await topics.ensure_assigned(connection, queue, mode="development")
    specs = [
        *topics.specs(partitions=PARTITIONS, mode="development"),
        topics.assigned_spec(queue, mode="development"),
    ]
    an_hour_ago = wall_clock() // 1000 - 3_600_000
    for spec in specs:
        await outbox.send_one(spec.name, 0, some(1)[0])
        [record] = await records_of(connection, spec.name, 0)
        assert record.timestamp > an_hour_ago, spec.name


async def test_an_inbox_topic_is_made_once(
    connection: Connection, topics: Topics, outbox: Outbox
) -> None:
    queue = QueueName("mail")
    await asyncio.gather(
        *(topics.ensure_assigned(connection, queue, mode="development") for _ in range(3))
    )
    assert await outbox.send_one(topics.assigned(queue), 7, some(1)[0]) == 0
