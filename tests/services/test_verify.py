"""`ledger verify` and `ledger archive` on a real log: they say the same of a broker and a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from typer.testing import CliRunner

from cli.main import app
from ledger.client import Producer
from ledger.domain.commands import LockJob, SubmitResult
from ledger.domain.ids import Fence, QueueName, RuntimeId
from ledger.log.admin import Admin
from ledger.log.effective import START, EffectiveEntries
from ledger.log.outbox import Outbox
from ledger.log.partitions import partition_of
from projections.batches import Batch
from projections.projector import Projector
from projections.schema import migrate
from tests.support.ledger import Ledger, ledger_on
from tests.support.written_log import (
    DAMAGES,
    Records,
    a_few_jobs,
    archived,
    records_of,
    rewritten,
)

pytestmark = pytest.mark.services

QUEUE = QueueName("q")
LOG = records_of(a_few_jobs())


@pytest.fixture
async def ledger(
    bootstrap: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Ledger]:
    """Also what the command line takes for its own."""
    monkeypatch.setenv("LEDGER_KAFKA", bootstrap)
    monkeypatch.setenv("LEDGER_PREFIX", topic_prefix)
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        monkeypatch.setenv("LEDGER_PARTITIONS", str(ledger.partitions))
        yield ledger


async def said(*words: object, ends_with: int = 0) -> Any:
    """In a thread: the command runs a loop of its own."""
    result = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, words), "--json"])
    assert result.exit_code == ends_with, (words, result.output, result.exception)
    return json.loads(result.stdout)


async def write(ledger: Ledger, partition: int, records: Records) -> None:
    outbox = Outbox(ledger.connection)
    await outbox.start()
    outgoing = [(r.key, r.value, [(n, v or b"") for n, v in r.headers]) for r in records]
    await outbox.send(ledger.topics.events, partition, outgoing)
    await outbox.close()


def project(dsn: str, topic: str, records: Records) -> None:
    """The read models of a projector that saw these."""
    migrate(dsn)
    items = EffectiveEntries(topic, 0, START).feed_all(records)
    with Projector(dsn, topic=topic) as projector:
        projector.cursor(0)
        projector.apply(Batch(0, 0, items))


async def test_a_log_and_its_archive_are_said_to_be_the_same(
    ledger: Ledger, tmp_path: Path
) -> None:
    async with (
        ledger.owner(),
        ledger.client() as client,
        Producer(ledger.connection, prefix=ledger.topics.prefix, wait_seconds=20) as producer,
    ):
        done = await producer.submit("echo", {"n": 1}, queue=QUEUE)
        await producer.submit("echo", queue=QUEUE)
        await client.ask(LockJob(done.job_id, RuntimeId("r1")))
        await client.ask(SubmitResult(done.job_id, Fence(1), output=Raw(b"2")))
    of_the_broker = await said("verify", "--no-rows", "--deep")
    archives = (await said("archive", tmp_path))["archives"]
    files = [word for one in archives for word in ("--file", one["file"])]
    of_the_files = await said("verify", *files, "--deep")
    assert of_the_broker["ok"]
    assert of_the_files["partitions"] == of_the_broker["partitions"]
    mine = of_the_broker["partitions"][partition_of(QUEUE, ledger.partitions)]
    assert mine["jobs"] == {**mine["jobs"], "requested": 2, "succeeded": 1, "open": 1}
    assert mine["take_overs"] == 1


async def test_an_archive_in_parts_is_one_log(ledger: Ledger, tmp_path: Path) -> None:
    await write(ledger, 0, LOG)
    first = await said("archive", tmp_path, "--partition", 0, "--to", 9)
    rest = await said("archive", tmp_path, "--partition", 0, "--from", 9)
    files = [one["file"] for report in (rest, first) for one in report["archives"]]
    assert [one["end"] for one in (first["archives"][0], rest["archives"][0])] == [9, len(LOG)]
    (found,) = (await said("verify", "--file", files[0], "--file", files[1]))["partitions"]
    assert (found["end"], found["broken"]) == (len(LOG), "")


async def test_damage_is_located(bootstrap: str, topic_prefix: str, ledger: Ledger) -> None:
    """Each in a partition of its own."""
    many = len(DAMAGES)
    async with ledger_on(bootstrap, f"{topic_prefix}damaged.", partitions=many) as damaged:
        expected = {}
        for partition, damage in enumerate(DAMAGES.values()):
            records, expected[partition] = damage(LOG)
            await write(damaged, partition, records)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LEDGER_PREFIX", damaged.topics.prefix)
            patch.setenv("LEDGER_PARTITIONS", str(many))
            found = await said("verify", "--no-rows", ends_with=1)
    assert {one["partition"]: one["broken_at"] for one in found["partitions"]} == expected


async def test_a_log_whose_beginning_is_gone_is_located(ledger: Ledger) -> None:
    await write(ledger, 0, LOG)
    async with Admin(ledger.connection) as admin:
        await admin.delete_records(ledger.topics.events, {0: 5})
    (found,) = (await said("verify", "--partition", 0, ends_with=1))["partitions"]
    assert (found["broken_at"], found["events"]) == (0, 0)
    assert "the log holds no such record" in found["broken"]


@pytest.mark.parametrize("how", ["cut off", "rolled back, and written on"])
async def test_a_log_that_is_not_the_one_of_its_read_models_is_located(
    how: str, ledger: Ledger, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_POSTGRES", dsn)
    await asyncio.to_thread(project, dsn, ledger.topics.events, LOG)
    await write(ledger, 0, LOG[:-1] if how == "cut off" else rewritten(LOG))
    assert (await said("verify", "--partition", 0))["ok"]  # By itself it is whole.
    found = await said("verify", ends_with=1)
    broken = found["partitions"][0]["broken"]
    assert "the read models' checkpoint saw" in broken
    assert found["partitions"][0]["broken_at"] == (len(LOG) - 1 if how == "cut off" else LAST_AT)
    assert not found["rows_compared"]


LAST_AT = LOG[-1].offset
"""The checkpoint is of the last entry: there another history shows."""


async def test_a_log_that_was_verified_before_is_the_same_log(
    ledger: Ledger, tmp_path: Path
) -> None:
    await write(ledger, 0, LOG[:-1])
    noted = tmp_path / "verified.json"
    noted.write_text(json.dumps(await said("verify", "--no-rows")))
    await write(ledger, 0, LOG[-1:])
    assert (await said("verify", "--no-rows", "--against", noted))["ok"]
    short = archived(LOG[:5], tmp_path)
    assert not (await said("verify", "--file", short, "--against", noted, ends_with=1))["ok"]
