"""Snapshots as files in a store: read back whole, or passed over; old ones go."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from msgspec import Raw

from ledger.domain.digest import folded
from ledger.domain.entries import Entry
from ledger.domain.events import JobRequested
from ledger.domain.ids import SECOND, JobId, Micros, QueueName
from ledger.domain.partition import Bounds, Partition
from ledger.domain.snapshot import Taken
from ledger.log.effective import Cursor
from ledger.objects import FolderStore
from processors.owner import snapshots as module
from processors.owner.snapshots import Snapshots

BOUNDS = Bounds()
NOON = Micros(1_800_000_000 * SECOND)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


@pytest.fixture
def snapshots(store: FolderStore) -> Snapshots:
    return Snapshots(store, ledger_id="l", topic="events")


def asked(number: int) -> JobRequested:
    job_id = JobId(f"default.{number:026}")
    return JobRequested(job_id, QueueName("default"), "noop", Raw(b"{}"), NOON, number)


def partition_with(jobs: int) -> Partition:
    partition = Partition(3)
    for number in range(1, jobs + 1):
        partition.apply(Entry(number, NOON, number, 0, (asked(number),), cause=f"c:{number}"))
    return partition


def cursor_at(offset: int) -> Cursor:
    return Cursor(offset, offset - 1, b"h" * 32, "nonce", ("nonce",), "l", 4, offset - 1)


async def keys(store: FolderStore) -> list[str]:
    return [found.key for found in (await store.listing("")).objects]


async def test_what_was_saved_is_read_back_with_its_place(snapshots: Snapshots) -> None:
    partition = partition_with(jobs=2_500)
    await snapshots.save(3, Taken(partition), cursor_at(7))
    found = await snapshots.newest(3, BOUNDS)
    assert found is not None
    restored, cursor = found
    assert len(restored.jobs) == 2_500
    assert folded(restored) == folded(partition)
    assert cursor == cursor_at(7)


async def test_it_holds_what_was_when_it_was_taken(snapshots: Snapshots) -> None:
    partition = partition_with(jobs=3)
    before = folded(partition)
    taken = Taken(partition)
    partition.apply(Entry(4, NOON, 4, 0, (asked(4),), cause="c:4"))
    await snapshots.save(3, taken, cursor_at(4))
    found = await snapshots.newest(3, BOUNDS)
    assert found is not None
    assert folded(found[0]) == before


async def test_each_partition_has_its_own(snapshots: Snapshots) -> None:
    await snapshots.save(3, Taken(partition_with(jobs=1)), cursor_at(2))
    assert await snapshots.newest(4, BOUNDS) is None


async def test_the_newest_is_read_and_the_oldest_go(
    snapshots: Snapshots, store: FolderStore
) -> None:
    for offset in (9, 90, 100, 900):
        await snapshots.save(3, Taken(partition_with(jobs=offset % 7 + 1)), cursor_at(offset))
    found = await snapshots.newest(3, BOUNDS)
    assert found is not None
    assert found[1].offset == 900
    assert [int(key.rpartition("/")[2].partition("-")[0]) for key in await keys(store)] == [
        100,
        900,
    ]


def damaged(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "spoil",
    [damaged, lambda data: data[:-1], lambda data: data + b"\0\0", lambda data: b""],
    ids=["one bit", "cut", "longer", "empty"],
)
async def test_a_damaged_one_is_passed_over_for_the_one_before(
    snapshots: Snapshots, store: FolderStore, tmp_path: Path, spoil: object
) -> None:
    await snapshots.save(3, Taken(partition_with(jobs=1)), cursor_at(5))
    await snapshots.save(3, Taken(partition_with(jobs=2)), cursor_at(6))
    newest = tmp_path / (await keys(store))[-1]
    newest.chmod(0o600)
    newest.write_bytes(spoil(newest.read_bytes()))  # type: ignore[operator]
    found = await snapshots.newest(3, BOUNDS)
    assert found is not None
    assert found[1].offset == 5


async def test_what_is_no_snapshot_though_intact_is_passed_over(
    snapshots: Snapshots, store: FolderStore
) -> None:
    for data in (b"", b"x", b"\0\0\0\1x", b"\xff" * 100):
        digest = sha256(data).hexdigest()
        key = f"_ledger/snapshots/l/3/{len(data):020}-{digest}.zst"
        await store.put(key, data, sha256=digest, size=len(data))
    assert await snapshots.newest(3, BOUNDS) is None


async def test_one_of_another_version_is_passed_over(
    snapshots: Snapshots, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await snapshots.save(3, Taken(partition_with(jobs=1)), cursor_at(5))
    monkeypatch.setattr("ledger.domain.snapshot.FOLD", 1_000)
    later = Snapshots(store, ledger_id="l", topic="events")
    assert await later.newest(3, BOUNDS) is None
    assert await snapshots.newest(3, BOUNDS) is not None


async def test_one_of_another_log_is_passed_over(snapshots: Snapshots, store: FolderStore) -> None:
    await snapshots.save(3, Taken(partition_with(jobs=1)), cursor_at(5))
    assert await Snapshots(store, ledger_id="l", topic="others").newest(3, BOUNDS) is None
    assert await Snapshots(store, ledger_id="k", topic="events").newest(3, BOUNDS) is None
