"""The simulated broker does as a real one does: the same scripts leave the same traces on both. If
they did not, what the simulation shows would say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.commands import (
    CancelJob,
    FailAttempt,
    LockJob,
    ReleaseLease,
    RequestJob,
    RerunJob,
    RetryAsk,
    StartAttempt,
    SubmitResult,
)
from ledger.domain.entries import Entry
from ledger.domain.events import CommandsConsumed, JobCancelled
from ledger.domain.ids import Fence, JobId, Micros, QueueName, RuntimeId
from ledger.log.admin import Admin
from ledger.log.connection import Bounds, Connection
from ledger.log.effective import TakenOver
from ledger.log.entries_reader import EntriesReader
from ledger.log.errors import LogError
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.producer import Producer
from ledger.log.sharing import PartitionsAssigned, Sharing
from ledger.log.term import Term
from ledger.log.topics import Topics
from processors.owner.seams import wall_clock
from projections.batches import Batch
from projections.checkpoints import Superseded
from projections.projector import Projector
from projections.schema import migrate
from tests.simulation import views as memory
from tests.simulation.broker import Broker
from tests.simulation.clients import clients_of
from tests.simulation.faults import Weather
from tests.simulation.loop import Loop, Process
from tests.simulation.nature import simulated
from tests.support.ledger import Client, Ledger
from tests.unit.projections.histories import random_history

pytestmark = pytest.mark.services

Trace = list[str]
Script = Callable[[Connection, Topics], Awaitable[Trace]]
PARTITIONS = 2
QUEUE = QueueName("q")
RUNTIME = RuntimeId("r")
JOB = JobId("q.0190a7b2-7b1c-7def-8a12-0123456789ab")
BOUNDS = Bounds(session_seconds=6.0)
SECONDS_MAX = 60.0


# --- What is done on both -------------------------------------------------------------------------
async def the_life_of_jobs(connection: Connection, topics: Topics) -> Trace:
    """Requests, leases, results, failures, cancels; a second owner goes on with what is there."""
    ledger = Ledger(connection, topics, PARTITIONS)
    trace: Trace = []
    async with ledger.client() as client:
        async with ledger.owner():
            first = await _requested(client, trace, "c1")
            again = await _requested(client, trace, "c1")
            assert first == again
            await _told(client, trace, LockJob(first, RUNTIME))
            await _told(client, trace, LockJob(first, RUNTIME))
            await _told(client, trace, StartAttempt(first, Fence(1)))
            await _told(client, trace, SubmitResult(first, Fence(7), Raw(b"1")))
            await _told(client, trace, FailAttempt(first, Fence(1), "PASSING", retryable=True))
            await _told(client, trace, LockJob(first, RUNTIME))
            second = await _requested(client, trace, "c2")
            await _told(client, trace, LockJob(second, RUNTIME))
            await _told(client, trace, CancelJob(second, "enough"))
        async with ledger.owner():
            await _told(client, trace, SubmitResult(first, Fence(2), Raw(b'{"n":1}')))
            await _told(client, trace, SubmitResult(first, Fence(2), Raw(b'{"n":1}')))
            await _told(client, trace, ReleaseLease(second, Fence(1)))
            await _told(client, trace, CancelJob(first))
            await _told(client, trace, RerunJob(first), command_id="c3")
    for partition in range(PARTITIONS):
        for proven in await ledger.history(partition):
            for event in proven.entry.events:
                if not isinstance(event, CommandsConsumed):
                    fence = getattr(event, "fence", "")
                    code = getattr(event, "code", "")
                    trace.append(f"{partition} {type(event).__name__} {fence} {code}")
    return trace


async def _requested(client: Client, trace: Trace, command_id: str) -> JobId:
    retry = RetryAsk(3, (0.0,), 0.0)
    reply = await client.ask(RequestJob("t", QUEUE, retry=retry), command_id=command_id)
    trace.append(f"request {reply.outcome} {reply.replayed}")
    assert reply.job_id is not None
    return reply.job_id


async def _told(client: Client, trace: Trace, command: object, *, command_id: str = "") -> None:
    reply = await client.ask(command, command_id=command_id)  # type: ignore[arg-type]
    trace.append(f"{type(command).__name__} {reply.outcome} {reply.code}")


async def two_owners_that_both_believe(connection: Connection, topics: Topics) -> Trace:
    """Take-overs, appends by turns, an old batch that lands once more."""
    trace: Trace = []
    a = await _take_over(connection, topics, "a")
    await _append(trace, "a", a, 2)
    b = await _take_over(connection, topics, "b")
    await _append(trace, "b", b, 1)
    await _append(trace, "a", a, 1)
    await _append(trace, "a", a, 1)
    await _append(trace, "b", b, 3)
    a = await _take_over(connection, topics, "a")
    await _append(trace, "b", b, 1)
    await _append(trace, "a", a, 1)
    await _doubled(connection, topics)
    await _append(trace, "a", a, 2)
    for term in (a, b):
        await term.close()
    async with EntriesReader(connection, topics, 0) as reader:
        async for items in reader.batches(await reader.end()):
            trace += [
                f"{item.take_over.nonce.partition('-')[0]} took over at {item.offset}"
                if isinstance(item, TakenOver)
                else f"entry {item.entry.number} at {item.first_offset}..{item.last_offset}"
                for item in items
            ]
        trace.append(str(reader.effective.ignored))
        trace.append(f"end {await reader.end()}")
    return trace


async def _take_over(connection: Connection, topics: Topics, name: str) -> Term:
    return await Term.take_over(
        connection,
        topics,
        0,
        ledger_id="l",
        partitions=PARTITIONS,
        at=lambda: Micros(wall_clock()),
        apply=lambda items: None,
        owner=name,
    )


async def _append(trace: Trace, name: str, term: Term, many: int) -> None:
    entries = [
        Entry(term.next_entry + n, Micros(wall_clock()), 0, 0, (JobCancelled(JOB, "at_once"),))
        for n in range(many)
    ]
    try:
        proven = await term.append(entries)
        trace.append(f"{name} appended at {[one.first_offset for one in proven]}")
    except LogError as error:
        trace.append(f"{name}: {type(error).__name__}")


async def _doubled(connection: Connection, topics: Topics) -> None:
    """All that lies there, once more, as a batch that nobody remembers."""
    intake = Intake(connection, topics.events, isolation="read_uncommitted")
    await intake.start()
    intake.follow(0, 0)
    async with Offsets(connection) as offsets:
        end = await offsets.end(topics.events, 0)
    while intake.position(0) + intake.buffered(0) < end:
        await _arrived(intake)
    records = intake.take(0, 1_000)
    await intake.close()
    producer = Producer(connection, "again")
    await producer.start()
    again = [
        (record.key, record.value, [(n, v or b"") for n, v in record.headers]) for record in records
    ]
    await producer.acknowledged(
        await producer.send(topics.events, 0, producer.batch(again, timestamp=0))
    )
    await producer.close()


async def _arrived(intake: Intake) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        await intake.arrived(0).wait()
    intake.arrived(0).clear()


async def reading_where_nothing_is(connection: Connection, topics: Topics) -> Trace:
    """Offsets before the first record and behind the last, and what is in between."""
    trace: Trace = []
    topic = topics.commands
    outbox, offsets = Outbox(connection), Offsets(connection)
    await outbox.start()
    await offsets.start()
    for n in range(5):
        trace.append(f"at {await outbox.send_one(topic, 0, (b'k', b'%d' % n, []))}")
    trace.append(f"end {await offsets.end(topic, 0)}, first {await offsets.first(topic, 0)}")
    async with Admin(connection) as admin:
        await admin.delete_records(topic, {0: 2})
    trace.append(f"end {await offsets.end(topic, 0)}, first {await offsets.first(topic, 0)}")
    trace.append(f"since long ago {await offsets.since(topic, 0, 1)}")
    trace.append(f"since the future {await offsets.since(topic, 0, wall_clock())}")
    for offset in (1, 2, 5, 6):
        intake = Intake(connection, topic, isolation="read_uncommitted")
        await intake.start()
        intake.follow(0, offset)
        try:
            if offset in (1, 6):
                await _arrived(intake)
            while offset == 2 and intake.buffered(0) < 3:
                await _arrived(intake)
            found = [record.value for record in intake.take(0, 10)]
            trace.append(f"from {offset}: {found}, then {intake.position(0)}")
        except LogError as error:
            trace.append(f"from {offset}: {type(error).__name__}")
        await intake.close()
    await outbox.close()
    await offsets.close()
    return trace


async def sharing_out(connection: Connection, topics: Topics) -> Trace:
    """One member has all, two have one each, and what one leaves the other gets."""
    trace: Trace = []
    a, b = Sharing(connection, topics), Sharing(connection, topics)
    await a.start()
    await _until_shared(a, PARTITIONS)
    trace.append(f"alone {sorted(a.partitions)}")
    await b.start()
    await _until_shared(a, 1)
    await _until_shared(b, 1)
    trace.append(f"together {sorted(a.partitions | b.partitions)}")
    await a.close()
    await _until_shared(b, PARTITIONS)
    trace.append(f"left {sorted(b.partitions)}")
    await b.close()
    return trace


async def _until_shared(sharing: Sharing, many: int) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            change = await sharing.changes.get()
            if isinstance(change, PartitionsAssigned) and len(change.partitions) == many:
                return


# --- On both --------------------------------------------------------------------------------------
async def _prepared(script: Script, connection: Connection, topics: Topics) -> Trace:
    await topics.apply(connection, partitions=PARTITIONS, mode="development")
    return await script(connection, topics)


def on_the_simulated(script: Script) -> Trace:
    loop = Loop(0)
    broker = Broker(loop, Weather(loop), group_seconds=BOUNDS.session_seconds)
    connection = Connection(bootstrap="simulated", bounds=BOUNDS, clients=clients_of(broker))
    with simulated(loop):
        try:
            running = Process("script", loop).start(_prepared(script, connection, Topics()))
            return loop.run_until_complete(running)
        finally:
            loop.give_up()


@pytest.mark.parametrize(
    "script",
    [
        the_life_of_jobs,
        two_owners_that_both_believe,
        reading_where_nothing_is,
        sharing_out,
    ],
)
def test_a_script_leaves_the_same_trace_on_both(
    script: Script, bootstrap: str, topic_prefix: str
) -> None:
    connection = Connection(bootstrap=bootstrap, bounds=BOUNDS)
    real = asyncio.run(_prepared(script, connection, Topics(topic_prefix)))
    assert on_the_simulated(script) == real
    assert len(real) > 2


# --- The store ------------------------------------------------------------------------------------
def told_by(projector: Projector | memory.Projector, seed: int) -> list[object]:
    """What comes of a history, given in parts, some of them again, some too early, some with
    values that do not fit."""
    script, random = random_history(Random(seed), 80), Random(seed)
    told: list[object] = [projector.cursor(0).offset]
    cuts = sorted(random.randrange(len(script.items)) for _ in range(6))
    batches = list(script.batches(cuts, fed=random.random() < 0.5))
    for place, batch in enumerate(batches):
        if place + 1 < len(batches):
            told.append(_applied(projector, batches[place + 1]))
        if random.random() < 0.3:
            batch = replace(batch, jobs=random.choice((None, {})))
        told.append(_applied(projector, batch))
        if random.random() < 0.5:
            told.append(_applied(projector, batch))
    told.append(projector.cursor(0))
    return told


def _applied(projector: Projector | memory.Projector, batch: Batch) -> object:
    try:
        done = projector.apply(batch)
    except Superseded as error:
        return f"superseded: it stands at {error.stored}"
    return done.offset, done.entries, done.events, done.misfits, done.folded


@pytest.mark.parametrize("seed", range(4))
def test_rows_in_memory_move_as_those_in_postgres_do(seed: int, dsn: str) -> None:
    migrate(dsn)
    views = memory.Views("t", lambda: None, lambda: None)
    with Projector(dsn, topic="t") as projector:
        assert told_by(views.projector(), seed) == told_by(projector, seed)
