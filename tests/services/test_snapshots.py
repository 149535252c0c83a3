"""A take-over that begins at a snapshot, on a real log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ledger.domain.commands import LockJob, RequestJob, SubmitResult
from ledger.domain.digest import folded
from ledger.domain.ids import RuntimeId
from ledger.domain.partition import Bounds
from ledger.domain.snapshot import Taken
from ledger.log.errors import CheckpointNotBorneOut
from ledger.objects import FolderStore
from processors.owner.service import OwnerService, OwnerSettings
from processors.owner.snapshots import IDLE_SHARE, Snapshots
from tests.services.test_owner import fence_of, job_id_of
from tests.support.ledger import PATIENCE_SECONDS, SNAPSHOT_EVENTS, Client, Ledger, ledger_on

RUNTIME = RuntimeId("r1")
JOBS = SNAPSHOT_EVENTS // IDLE_SHARE


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix, partitions=1) as ledger:
        yield ledger


@pytest.fixture
async def client(ledger: Ledger) -> AsyncIterator[Client]:
    async with ledger.client() as client:
        yield client


def snapshots_of(ledger: Ledger, folder: Path) -> Snapshots:
    return Snapshots(FolderStore(folder), ledger_id="ledger", topic=ledger.topics.events)


async def until_there_is_one(snapshots: Snapshots) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await snapshots.newest(0, Bounds()) is not None:
                return
            await asyncio.sleep(0.05)  # Between two looks, not for luck.


def folded_by(owner: OwnerService) -> int:
    return int(owner.health()["partitions"][0]["folded"])


async def test_the_next_owner_reads_the_tail_only_and_knows_all(
    ledger: Ledger, client: Client, tmp_path: Path
) -> None:
    snapshots = snapshots_of(ledger, tmp_path)
    async with ledger.owner(objects=str(tmp_path)) as owner:
        asks = [client.ask(RequestJob(type="sum"), command_id=f"c{n}") for n in range(JOBS)]
        first, second, *_ = [job_id_of(reply) for reply in await asyncio.gather(*asks)]
        await until_there_is_one(snapshots)
        locked = await client.ask(LockJob(second, RUNTIME))
        assert folded_by(owner) == 0
    async with ledger.owner(objects=str(tmp_path)) as owner:
        done = await client.ask(SubmitResult(second, fence_of(locked)))
        again = await client.ask(RequestJob(type="sum"), command_id="c0")
        assert folded_by(owner) < JOBS
    assert done.outcome == "accepted"
    assert (again.outcome, again.job_id) == ("duplicate", first)


async def test_what_is_read_back_is_what_the_log_folds_to(
    ledger: Ledger, client: Client, tmp_path: Path
) -> None:
    snapshots = snapshots_of(ledger, tmp_path)
    async with ledger.owner(objects=str(tmp_path)):
        await asyncio.gather(*(client.ask(RequestJob(type="sum")) for _ in range(JOBS)))
        await until_there_is_one(snapshots)
    found = await snapshots.newest(0, Bounds())
    assert found is not None
    restored, cursor = found
    entries = [one.entry for one in await ledger.history(0)]
    for entry in entries:
        if entry.number > cursor.entry:
            restored.apply(entry)
    assert {**folded(restored), "floor": 0, "partitions": 1} == {
        **folded(await ledger.fold(0)),
        "floor": 0,
        "partitions": 1,
    }


async def test_a_snapshot_that_the_log_does_not_bear_out_stops_the_owner(
    ledger: Ledger, client: Client, tmp_path: Path
) -> None:
    snapshots = snapshots_of(ledger, tmp_path)
    async with ledger.owner(objects=str(tmp_path)):
        await asyncio.gather(*(client.ask(RequestJob(type="sum")) for _ in range(JOBS)))
        await until_there_is_one(snapshots)
    found = await snapshots.newest(0, Bounds())
    assert found is not None
    restored, cursor = found
    elsewhere = replace(cursor, hash=bytes(32), offset=cursor.offset + 1)
    await snapshots.save(0, Taken(restored), elsewhere)
    settings = OwnerSettings(
        connection=ledger.connection,
        topics=ledger.topics,
        partitions=ledger.partitions,
        objects=str(tmp_path),
    )
    with pytest.raises(CheckpointNotBorneOut):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await OwnerService(settings).run(asyncio.Event())
