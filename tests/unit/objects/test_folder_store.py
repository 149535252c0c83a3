"""Objects as files: the suite of every store, and what only files can do wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.ids import Micros
from ledger.objects import (
    FolderStore,
    InvalidKey,
    ObjectNotFound,
    ObjectStore,
    StoreUnavailable,
    delete_prefix,
)
from tests.support.object_store_suite import (
    CONTENT,
    KEY,
    ObjectStoreSuite,
    keys_below,
    put,
    ref_of,
)

FAR_FUTURE = Micros(2**60)
CHILD_SECONDS = 30


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root

    def replace(self, key: str, content: bytes) -> None:
        self.root.joinpath(key).write_bytes(content)

    def unfinished(self) -> int:
        return len(list(self.root.joinpath(".unfinished").glob("*")))

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[FolderStore]:
    store = FolderStore(root)
    yield store
    await store.close()


@pytest.fixture
def behind_its_back(root: Path) -> Files:
    return Files(root)


@pytest.mark.rule("S3.7")
class TestFolderStore(ObjectStoreSuite):
    pass


# --- Files of their own -----------------------------------------------------------------------
segments = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
keys = st.lists(segments, min_size=1, max_size=4).map("/".join)


@given(keys=st.sets(keys, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_key_is_refused_or_has_a_file_of_its_own_below_the_folder(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str]
) -> None:
    root = tmp_path_factory.mktemp("objects", numbered=True)

    async def put_all() -> list[str]:
        store = FolderStore(root / "store")
        kept = []
        for key in sorted(keys):
            try:
                await put(store, key.encode(), key)
            except InvalidKey:
                continue
            kept.append(key)
        for key in kept:
            assert await store.get(ref_of(key.encode(), key)) == key.encode()
        assert await keys_below(store, "", limit=3) == kept
        await store.close()
        return kept

    kept = asyncio.run(put_all())
    assert {path.name for path in root.iterdir()} <= {"store"}
    files = [path for path in root.rglob("*") if path.is_file()]
    # Also on a disk that does not tell A from a.
    assert len({str(path).lower() for path in files}) == len(kept)
    assert all(path.name.isascii() for path in files)


async def test_a_plain_key_is_its_path(store: FolderStore, root: Path) -> None:
    await put(store)
    assert root.joinpath(KEY).read_bytes() == CONTENT


async def test_a_part_too_long_for_a_file_is_refused(store: FolderStore) -> None:
    await put(store, key="k" * 255)
    with pytest.raises(InvalidKey, match="too long"):
        await put(store, key="k" * 256)


async def test_an_object_is_no_folder_of_others(store: FolderStore) -> None:
    ref = await put(store, key="a/b")
    with pytest.raises(InvalidKey, match="below another object"):
        await put(store, key="a/b/c")
    with pytest.raises(InvalidKey, match="objects lie below"):
        await put(store, key="a")
    for key in ("a", "a/b/c"):
        with pytest.raises(ObjectNotFound):
            await store.get(ref_of(CONTENT, key))
        await store.delete(key)
    assert await store.get(ref) == CONTENT


async def test_files_that_no_key_has_are_overlooked(store: FolderStore, root: Path) -> None:
    await put(store)
    for name in ("README.md", "%zz", "%61", ".hidden", "ä"):
        root.joinpath("users", name).write_bytes(b"put there by hand")
    os.mknod(os.fsencode(root / "users") + b"/\xff")
    assert await keys_below(store, "") == [KEY]


async def test_empty_folders_go_with_their_last_object(store: FolderStore, root: Path) -> None:
    await put(store, key="users/secret-name/projects/p/output/x")
    await put(store, key="users/b/output/x")
    await delete_prefix(store, "users/secret-name/")
    assert [name for name in Files(root).names() if "secret" in name] == []
    assert root.joinpath("users/b/output/x").exists()


async def test_objects_put_while_others_are_removed_from_the_same_folder_are_there(
    store: FolderStore,
) -> None:
    async def coming_and_going(number: int) -> None:
        for _ in range(40):
            await put(store, key=f"users/a/tasks/t/{number}")
            await store.delete(f"users/a/tasks/t/{number}")

    await asyncio.gather(*(coming_and_going(number) for number in range(4)))
    ref = await put(store)
    assert await store.get(ref) == CONTENT


async def test_a_folder_that_goes_while_it_is_looked_at_is_made_anew(
    store: FolderStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, seen = Path.mkdir, list[Path]()

    def gone_meanwhile(path: Path, *how: Any, **more: Any) -> None:
        """What `mkdir` says where another one's folder was there, and is not any more."""
        if path == root / "users" / "a" and not seen:
            seen.append(path)
            raise FileExistsError(path)
        make(path, *how, **more)

    monkeypatch.setattr(Path, "mkdir", gone_meanwhile)
    ref = await put(store, key="users/a/tasks/t/1")
    assert seen
    assert await store.get(ref) == CONTENT


# --- Crashes and disks ----------------------------------------------------------------------------
DIES_HALF_WAY = """
import asyncio, os, sys
from pathlib import Path
from ledger.objects import FolderStore

async def half():
    yield bytes(1_000_000)
    os._exit(9)

asyncio.run(FolderStore(Path(sys.argv[1])).put("a/b", half(), sha256="0" * 64, size=2_000_000))
"""

DISK_ENDS = """
import asyncio, resource, sys
from hashlib import sha256
from pathlib import Path
from ledger.objects import FolderStore, StoreUnavailable

size = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
content = bytes(size)
store = FolderStore(Path(sys.argv[1]))
try:
    digest = sha256(content).hexdigest()
    asyncio.run(store.put("a/b", content, sha256=digest, size=len(content)))
except StoreUnavailable as error:
    print(error)
"""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS,
        check=False,
    )


async def test_a_writer_that_dies_leaves_no_object_and_what_it_leaves_is_swept(
    store: FolderStore, root: Path
) -> None:
    died = await asyncio.to_thread(run, DIES_HALF_WAY, root)
    assert died.returncode == 9, died.stderr
    files = Files(root)
    assert files.unfinished() == 1
    assert await keys_below(store, "") == []
    with pytest.raises(ObjectNotFound):
        await store.get(ref_of(b"", "a/b"))
    assert await store.sweep_unfinished(before=Micros(0)) == 0
    assert await store.sweep_unfinished(before=FAR_FUTURE) == 1
    assert files.unfinished() == 0
    assert await store.sweep_unfinished(before=FAR_FUTURE) == 0


@pytest.mark.parametrize("size", [1000, 1_000_000], ids=["while buffered", "while written"])
async def test_a_disk_that_takes_no_more_is_said_and_nothing_is_left(
    store: FolderStore, root: Path, size: int
) -> None:
    ended = await asyncio.to_thread(run, DISK_ENDS, root, size)
    assert ended.returncode == 0, ended.stderr
    assert "File too large" in ended.stdout
    assert "LEDGER_OBJECTS" in ended.stdout
    assert await keys_below(store, "") == []
    assert Files(root).unfinished() == 0


async def test_a_folder_that_cannot_be_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = FolderStore(tmp_path / "file" / "objects")
    with pytest.raises(StoreUnavailable, match="file/objects"):
        await store.check()
    with pytest.raises(StoreUnavailable, match="LEDGER_OBJECTS"):
        await put(store)
    await store.close()


async def test_nothing_is_made_before_the_first_write(store: FolderStore, root: Path) -> None:
    assert await keys_below(store, "") == []
    await store.delete(KEY)
    assert await store.sweep_unfinished(before=FAR_FUTURE) == 0
    assert Files(root).names() == []


async def test_a_folder_has_no_links(store: ObjectStore) -> None:
    assert await store.link(await put(store), 60) is None
