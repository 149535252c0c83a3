"""A hot queue cut into several by whoever asks for jobs: what holds already, without the ledger's
knowing that they belong together. See docs/scaling.md."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from ledger.client import Context, Producer, Refused, Runtime
from ledger.domain.events import JobRequested, JobSucceeded, LeaseGranted
from ledger.log.partitions import partition_of
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

PARTITIONS = 4
PATIENCE_SECONDS = 30.0
TENANTS = [f"tenant-{number}" for number in range(12)]


def spread(queue: str, partitions: int) -> list[str]:
    """Shards of the queue, one in each partition: names hash where they hash, so those that fall
    together are passed over."""
    names: dict[int, str] = {}
    for number in count():
        names.setdefault(partition_of(f"{queue}-{number}", partitions), f"{queue}-{number}")
        if len(names) == partitions:
            return sorted(names.values())
    raise AssertionError


SHARDS = spread("hot", PARTITIONS)


def shard_of(key: str) -> str:
    """What must be decided together goes by this key, and so to one shard."""
    return SHARDS[partition_of(key, len(SHARDS))]


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix, partitions=PARTITIONS) as ledger:
        yield ledger


@pytest.fixture
async def producer(ledger: Ledger) -> AsyncIterator[Producer]:
    prefix = ledger.topics.prefix
    async with Producer(
        ledger.connection, prefix=prefix, wait_seconds=PATIENCE_SECONDS
    ) as producer:
        yield producer


@asynccontextmanager
async def serving(runtime: Runtime) -> AsyncIterator[None]:
    running = asyncio.create_task(runtime.serve())
    await asyncio.sleep(0)
    try:
        await runtime.ready(PATIENCE_SECONDS)
        yield
    finally:
        runtime.stop()
        await running


def runtime_of(ledger: Ledger, name: str, *, slots: int = 4) -> Runtime:
    return Runtime(
        name,
        ledger.connection,
        queue=SHARDS,
        slots=slots,
        prefix=ledger.topics.prefix,
        beat_seconds=0.5,
    )


async def test_runtimes_that_serve_every_shard_do_the_jobs_of_all_partitions(
    ledger: Ledger, producer: Producer
) -> None:
    done: Counter[str] = Counter()
    runtimes = [runtime_of(ledger, name) for name in ("r1", "r2")]
    for runtime in runtimes:

        @runtime.job("echo")
        async def echo(ctx: Context) -> None:
            done[ctx.job_id] += 1

    async with ledger.owner(), serving(runtimes[0]), serving(runtimes[1]):
        await producer.submit_many(
            [
                {"type": "echo", "queue": shard_of(tenant), "labels": {"tenant": tenant}}
                for tenant in TENANTS
                for _ in range(5)
            ]
        )
        events = await ledger.until(
            lambda events: sum(isinstance(e, JobSucceeded) for e in events) == len(TENANTS) * 5
        )
    asked = {event.job_id for event in events if isinstance(event, JobRequested)}
    assert done == Counter(asked)
    used = {job_id.rpartition(".")[0] for job_id in asked}
    assert {partition_of(queue, PARTITIONS) for queue in used} == set(range(PARTITIONS))


async def test_jobs_of_one_key_start_in_their_order(ledger: Ledger, producer: Producer) -> None:
    runtime = runtime_of(ledger, "r1")

    @runtime.job("echo")
    async def echo(ctx: Context) -> None:
        pass

    asked: dict[str, list[str]] = defaultdict(list)
    async with ledger.owner():
        for tenant in TENANTS * 3:
            queue = shard_of(tenant)
            job = await producer.submit("echo", queue=queue, labels={"tenant": tenant})
            asked[tenant].append(job.job_id)
        async with serving(runtime):
            events = await ledger.until(
                lambda events: sum(isinstance(e, JobSucceeded) for e in events) == len(TENANTS) * 3
            )
    leased = [event.job_id for event in events if isinstance(event, LeaseGranted)]
    for jobs in asked.values():
        assert [job for job in leased if job in jobs] == jobs


async def test_an_idempotency_key_stands_for_one_job_in_its_shard_only(
    ledger: Ledger, producer: Producer
) -> None:
    async with ledger.owner():
        here, again, elsewhere = [
            await producer.submit("echo", queue=queue, idempotency_key="k")
            for queue in (SHARDS[0], SHARDS[0], SHARDS[1])
        ]
    assert again.job_id == here.job_id
    assert again.deduplicated
    assert not elsewhere.deduplicated
    assert elsewhere.job_id != here.job_id


async def test_a_limit_counts_in_its_shard_only(ledger: Ledger, producer: Producer) -> None:
    started: Counter[str] = Counter()
    both = asyncio.Event()
    end = asyncio.Event()
    runtime = runtime_of(ledger, "r1", slots=8)

    @runtime.job("slow")
    async def slow(ctx: Context) -> None:
        started[ctx.job_id.rpartition(".")[0]] += 1
        if len(started) == 2:
            both.set()
        await end.wait()

    async with ledger.owner(), serving(runtime):
        for queue in SHARDS[:2]:
            limits = {"limits": [{"key": ["/labels/tenant"], "max": 1}]}
            await producer.put_template(queue, "slow", limits)
            for _ in range(2):
                await producer.submit("slow", queue=queue, labels={"tenant": "a"})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await both.wait()
        assert started == dict.fromkeys(SHARDS[:2], 1)  # Two of one tenant, under a limit of one.
        end.set()
        await ledger.until(lambda events: sum(isinstance(e, JobSucceeded) for e in events) == 4)


@pytest.mark.parametrize("name", ["hot#0", "hot.0"])
async def test_a_shard_is_named_like_any_queue(producer: Producer, name: str) -> None:
    """`#` is no letter of a topic's name, and a `.` ends the queue in a job's id."""
    with pytest.raises(Refused, match="queue"):
        await producer.submit("echo", queue=name)
