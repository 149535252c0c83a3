"""The auditor on a real log: whole histories, what was true when, and what was tampered with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw

from ledger.client import Auditor, Producer, sync
from ledger.domain.commands import LockJob, SubmitResult
from ledger.domain.ids import Fence, QueueName, RuntimeId
from ledger.log.effective import TakenOver
from ledger.log.headers import cloud_event
from ledger.log.outbox import Outbox
from ledger.log.partitions import partition_of
from tests.support.builders import unknown_like
from tests.support.ledger import PATIENCE_SECONDS as PATIENCE_SECONDS
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

QUEUE = QueueName("q")
RUNTIME = RuntimeId("r1")


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@asynccontextmanager
async def auditor_of(ledger: Ledger) -> AsyncIterator[Auditor]:
    async with Auditor(ledger.connection, prefix=ledger.topics.prefix) as auditor:
        yield auditor


@pytest.fixture
async def jobs(ledger: Ledger) -> list[str]:
    """One that succeeded, one that waits."""
    async with (
        ledger.owner(),
        ledger.client() as client,
        Producer(ledger.connection, prefix=ledger.topics.prefix, wait_seconds=20) as producer,
    ):
        done = await producer.submit("echo", {"n": 1}, queue=QUEUE)
        waits = await producer.submit("echo", queue=QUEUE)
        await client.ask(LockJob(done.job_id, RUNTIME))
        await client.ask(SubmitResult(done.job_id, Fence(1), output=Raw(b"2")))
    return [done.job_id, waits.job_id]


async def test_a_history_is_every_fact_with_its_place_and_hash(
    ledger: Ledger, jobs: list[str]
) -> None:
    async with auditor_of(ledger) as auditor:
        history = await auditor.history(jobs[0])
        nothing = await auditor.history(unknown_like(jobs[0]))
    assert [event.type.split(".")[2] for event in history] == [
        "requested",
        "lease_granted",
        "attempt_started",
        "succeeded",
    ]
    assert [event.seq for event in history] == [1, 2, 3, 4]
    offsets = [int(event.position.partition(":")[2]) for event in history]
    assert offsets == sorted(offsets)
    assert history[2].hash == history[3].hash != history[1].hash
    assert history[0].data["payload"] == {"n": 1}
    assert nothing == []


async def test_a_job_is_shown_as_it_was(ledger: Ledger, jobs: list[str]) -> None:
    async with auditor_of(ledger) as auditor:
        history = await auditor.history(jobs[0])
        now = await auditor.job(jobs[0])
        leased = await auditor.job(jobs[0], as_of=2)
        then = await auditor.job(jobs[0], as_of=history[1].at)
        before = await auditor.job(jobs[0], as_of="2020-01-01T00:00:00Z")
    assert now is not None
    assert leased is not None
    assert (now["status"], now["version"]) == ("succeeded", 4)
    assert (leased["status"], leased["version"]) == ("leased", 2)
    assert then == leased
    assert before is None


async def test_a_partition_is_folded_up_to_an_offset(ledger: Ledger, jobs: list[str]) -> None:
    partition = partition_of(QUEUE, ledger.partitions)
    async with auditor_of(ledger) as auditor:
        all_of_them = await auditor.jobs(partition)
        first = await auditor.history(jobs[0])
        until = int(first[0].position.partition(":")[2]) + 1
        early = await auditor.jobs(partition, until=until)
    assert list(all_of_them) == jobs
    assert list(early) == jobs[:1]


async def test_a_sound_log_is_said_to_be_sound(ledger: Ledger, jobs: list[str]) -> None:
    told: list[tuple[int, int, int]] = []
    async with auditor_of(ledger) as auditor:
        verdicts = await auditor.verify_chain(progress=lambda *at: told.append(at))
        history = await auditor.history(jobs[0])
    assert [verdict.partition for verdict in verdicts] == [0, 1]
    assert all(verdict.is_sound and not verdict.ignored for verdict in verdicts)
    mine = verdicts[partition_of(QUEUE, ledger.partitions)]
    assert mine.events == 5
    assert mine.entries == 4
    assert mine.take_overs == 1
    assert mine.hash == history[-1].hash
    assert told[-1][1] == told[-1][2]


async def test_what_counts_for_nobody_is_counted(ledger: Ledger, jobs: list[str]) -> None:
    partition = partition_of(QUEUE, ledger.partitions)
    await append(ledger, partition, cloud_event(record_id="x", source="y", record_type="z"))
    async with auditor_of(ledger) as auditor:
        (verdict,) = await auditor.verify_chain([partition])
    assert verdict.is_sound
    assert verdict.ignored == {"unreadable": 1}


async def test_a_forged_entry_breaks_the_chain_and_is_located(
    ledger: Ledger, jobs: list[str]
) -> None:
    partition = partition_of(QUEUE, ledger.partitions)
    async with auditor_of(ledger) as auditor:
        (sound,) = await auditor.verify_chain([partition])
        take_over = await anext(auditor.replay(partition))
        assert isinstance(take_over, TakenOver)
        nonce = take_over.take_over.nonce
        packed = f"{sound.entries + 1};1/1;{nonce};9;9;me;c:x;;;{'0' * 64}"
        headers = cloud_event(record_id="f", source="me", record_type="ledger.job.cancelled.v1")
        headers += [("ce_time", b"2026-01-01T00:00:00.000000Z"), ("ce_ledger", packed.encode())]
        await append(ledger, partition, headers)
        (verdict,) = await auditor.verify_chain([partition])
    assert not verdict.is_sound
    assert f"[{partition}] at offset {sound.end}" in verdict.broken
    assert (verdict.entries, verdict.hash) == (sound.entries, sound.hash)


async def append(ledger: Ledger, partition: int, headers: list[tuple[str, bytes]]) -> None:
    outbox = Outbox(ledger.connection)
    await outbox.start()
    await outbox.send_one(ledger.topics.events, partition, (b"key", b"{}", headers))
    await outbox.close()


async def test_a_script_audits_without_a_loop(ledger: Ledger, jobs: list[str]) -> None:
    def audit() -> tuple[int, int, int]:
        with sync.Auditor(ledger.connection, prefix=ledger.topics.prefix) as auditor:
            partition = partition_of(QUEUE, ledger.partitions)
            items = list(auditor.replay(partition))
            assert auditor.job(jobs[0], as_of=1) is not None
            return (
                len(items),
                len(auditor.history(jobs[0])),
                sum(verdict.events for verdict in auditor.verify_chain()),
            )

    assert await asyncio.to_thread(audit) == (5, 4, 5)
