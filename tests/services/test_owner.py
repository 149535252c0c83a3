"""The owner on a real broker: what a client sees, and what stands in the log afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from ledger.domain.commands import (
    CancelJobs,
    Claim,
    FailAttempt,
    LockJob,
    RequestJob,
    RetryAsk,
    StartAttempt,
    SubmitResult,
    Where,
)
from ledger.domain.entries import command_of
from ledger.domain.events import (
    AttemptExpired,
    BulkEnded,
    CommandRejected,
    InputQuarantined,
    JobCancelled,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    RequestForwarded,
)
from ledger.domain.ids import SECOND, CommandId, Fence, JobId, Micros, QueueName, RuntimeId
from ledger.log.admin import Admin
from ledger.log.command_codec import command_record
from ledger.log.offsets import Offsets
from ledger.log.partitions import partition_of
from ledger.log.replies import Reply
from processors.owner.seams import wall_clock
from processors.owner.trimming import trim
from tests.support.ledger import Client, Ledger, ledger_on

RUNTIME = RuntimeId("r1")
QUEUES = tuple(QueueName(f"q{n}") for n in range(6))


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@pytest.fixture
async def client(ledger: Ledger) -> AsyncIterator[Client]:
    async with ledger.client() as client:
        yield client


def job_id_of(reply: Reply) -> JobId:
    assert reply.job_id is not None, reply
    return reply.job_id


def fence_of(reply: Reply) -> Fence:
    assert reply.data is not None, reply
    fence: int = msgspec.json.decode(reply.data)["fence"]
    return Fence(fence)


async def test_a_job_goes_through(ledger: Ledger, client: Client) -> None:
    async with ledger.owner():
        created = await client.ask(RequestJob(type="sum", payload=msgspec.Raw(b'{"a":1}')))
        job_id = job_id_of(created)
        locked = await client.ask(LockJob(job_id, RUNTIME))
        await client.ask(StartAttempt(job_id, fence_of(locked)))
        done = await client.ask(SubmitResult(job_id, fence_of(locked), output=msgspec.Raw(b"2")))
    assert done.job is not None
    view = msgspec.json.decode(done.job)
    assert (view["status"], view["result"]["output"], view["version"]) == ("succeeded", 2, 4)
    history = [e.TYPE for e in await ledger.events() if getattr(e, "job_id", None) == job_id]  # type: ignore[union-attr]
    assert history == [
        "ledger.job.requested.v1",
        "ledger.job.lease_granted.v1",
        "ledger.job.attempt_started.v1",
        "ledger.job.succeeded.v1",
    ]


async def test_of_twenty_who_lock_one_job_one_wins(ledger: Ledger, client: Client) -> None:
    async with ledger.owner():
        job_id = job_id_of(await client.ask(RequestJob(type="sum")))
        locks = [LockJob(job_id, RuntimeId(f"r{n}")) for n in range(20)]
        replies = await asyncio.gather(*(client.ask(lock) for lock in locks))
    assert Counter(r.code for r in replies) == {None: 1, "JOB_ALREADY_LOCKED": 19}


async def test_a_claim_waits_for_a_job(ledger: Ledger, client: Client) -> None:
    async with ledger.owner():
        claim = Claim(RUNTIME, (QueueName("default"),), ("sum",), wait_seconds=20)
        waiting = asyncio.create_task(client.ask(claim))
        job_id = job_id_of(await client.ask(RequestJob(type="sum")))
        reply = await waiting
    assert reply.data is not None
    assert [item["job_id"] for item in msgspec.json.decode(reply.data)["items"]] == [job_id]


async def test_what_cannot_be_read_is_set_aside_and_the_partition_goes_on(
    ledger: Ledger, client: Client
) -> None:
    good = RequestJob(type="sum")
    partition = partition_of(good.queue, ledger.partitions)
    for topic in (ledger.topics.requests, ledger.topics.commands):
        await client.outbox.send(
            topic, partition, [(b"default", b"\xff\xfe", []), (None, None, [])]
        )
    async with ledger.owner():
        assert (await client.ask(good)).outcome == "accepted"
        events = await ledger.until(
            lambda events: sum(isinstance(e, InputQuarantined) for e in events) == 4
        )
    aside = Counter(e.topic for e in events if isinstance(e, InputQuarantined))
    assert aside == {ledger.topics.requests: 2, ledger.topics.commands: 2}


async def test_a_request_in_the_wrong_partition_is_sent_on(ledger: Ledger, client: Client) -> None:
    request = RequestJob(type="sum", queue=QUEUES[0])
    right = partition_of(QUEUES[0], ledger.partitions)
    wrong = 1 - right
    record = command_record(request, CommandId("astray"), source="tests")
    await client.outbox.send(ledger.topics.requests, wrong, [record, record])
    async with ledger.owner():
        events = await ledger.until(lambda es: any(isinstance(e, JobRequested) for e in es))
        await client.ask(request)
    assert sum(isinstance(e, JobRequested) for e in await ledger.events()) == 2
    assert sum(isinstance(e, RequestForwarded) for e in events) >= 1
    first = (await ledger.history(right))[0].entry.events[0]
    assert isinstance(first, JobRequested)


async def test_a_refusal_says_why_and_is_recorded(ledger: Ledger, client: Client) -> None:
    async with ledger.owner():
        job_id = job_id_of(await client.ask(RequestJob(type="sum")))
        stale = await client.ask(StartAttempt(job_id, Fence(3)))
    assert (stale.code, stale.job_status) == ("LEASE_STALE", "pending")
    assert [e.code for e in await ledger.events() if isinstance(e, CommandRejected)] == [
        "LEASE_STALE"
    ]


async def test_an_attempt_whose_runtime_is_gone_expires_and_another_finishes_it(
    ledger: Ledger, client: Client
) -> None:
    retry = RetryAsk(backoff_seconds=(0.0,))
    async with ledger.owner():
        job_id = job_id_of(await client.ask(RequestJob(type="sum", lease_seconds=1, retry=retry)))
        lost = await client.ask(LockJob(job_id, RUNTIME))
        claim = Claim(RuntimeId("r2"), (QueueName("default"),), ("sum",), wait_seconds=20)
        taken = await client.ask(claim)
        assert taken.data is not None
        fence = Fence(msgspec.json.decode(taken.data)["items"][0]["fence"])
        assert fence > fence_of(lost)
        late = await client.ask(SubmitResult(job_id, fence_of(lost), output=msgspec.Raw(b"1")))
        assert late.code == "LEASE_STALE"
        done = await client.ask(SubmitResult(job_id, fence, output=msgspec.Raw(b"2")))
    assert done.outcome == "accepted"
    events = await ledger.events()
    assert [e.code for e in events if isinstance(e, AttemptExpired)] == ["LEASE_EXPIRED"]
    assert sum(isinstance(e, JobSucceeded) for e in events) == 1


async def test_a_bulk_cancel_reaches_every_queue(ledger: Ledger, client: Client) -> None:
    async with ledger.owner():
        for queue in QUEUES:
            await client.ask(RequestJob(type="sum", queue=queue, labels={"user": "ada"}))
        await client.ask(RequestJob(type="sum", labels={"user": "bob"}))
        reply = await client.ask(CancelJobs(Where(labels={"user": "ada"}), "withdrawn"))
        assert reply.data is not None
        events = await ledger.until(lambda es: any(isinstance(e, BulkEnded) for e in es))
    [ended] = [e for e in events if isinstance(e, BulkEnded)]
    assert ended.operation_id == msgspec.json.decode(reply.data)["operation_id"]
    assert ended.matched == len(QUEUES)
    assert sum(isinstance(e, JobCancelled) for e in events) == len(QUEUES)


async def test_a_new_owner_goes_on_where_the_last_one_was(ledger: Ledger, client: Client) -> None:
    async with ledger.owner():
        job_id = job_id_of(await client.ask(RequestJob(type="sum")))
        locked = await client.ask(LockJob(job_id, RUNTIME), command_id="lock-1")
    await client.send(*(RequestJob(type="sum") for _ in range(50)))
    async with ledger.owner():
        again = await client.ask(LockJob(job_id, RUNTIME), command_id="lock-1")
        assert (again.replayed, fence_of(again)) == (True, fence_of(locked))
        failed = await client.ask(FailAttempt(job_id, fence_of(locked), "BROKEN", retryable=False))
        assert failed.job is not None
        assert msgspec.json.decode(failed.job)["status"] == "failed"
    events = await ledger.events()
    assert sum(isinstance(e, JobRequested) for e in events) == 51
    assert sum(isinstance(e, LeaseGranted) for e in events) == 1


async def test_an_owner_that_stops_answers_all_that_it_has_recorded(
    ledger: Ledger, client: Client
) -> None:
    asks: dict[str, asyncio.Task[Reply]] = {}

    async def ask_on() -> None:
        for n in range(2_000):
            ask = client.ask(RequestJob(type="sum", queue=QUEUES[n % 2]), command_id=f"ask-{n}")
            asks[f"ask-{n}"] = asyncio.create_task(ask)
            await asyncio.sleep(0.001)  # A stream, so that something is always under way.

    async with ledger.owner():
        asking = asyncio.create_task(ask_on())
        await ledger.until(lambda events: len(events) > 100)
    asking.cancel()
    recorded = {
        asks[command_id]
        for partition in range(ledger.partitions)
        for proven in await ledger.history(partition)
        if (command_id := command_of(proven.entry.cause)) in asks
    }
    assert recorded
    for reply in await asyncio.gather(*recorded):  # Each has come, or is on its way.
        assert reply.outcome == "accepted"
    for ask in asks.values():
        ask.cancel()
    await asyncio.wait(asks.values())


async def test_decided_and_old_records_of_an_intake_are_deleted_and_no_others(
    ledger: Ledger, client: Client
) -> None:
    topic, partition = ledger.topics.requests, partition_of(QUEUES[0], ledger.partitions)
    await client.send(*(RequestJob(type="sum", queue=QUEUES[0]) for _ in range(10)))
    later = Micros(wall_clock() + 60 * SECOND)
    async with Admin(ledger.connection) as admin, Offsets(ledger.connection) as offsets:

        async def trimmed(kept_us: int) -> int:
            await trim(admin, offsets, topic, partition, decided=6, now=later, kept_us=kept_us)
            return await offsets.first(topic, partition)

        assert await trimmed(kept_us=3_600 * SECOND) == 0, "they are young"
        assert await trimmed(kept_us=30 * SECOND) == 6, "the others are not decided"
