"""Every call of the object store fails once while a cleaner works, in every way a call can."""

from __future__ import annotations

import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Sequence,
)
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import pytest

from ledger.domain.events import Ref
from ledger.domain.ids import SECOND, Micros
from ledger.objects import FolderStore, ObjectStore, Page, StoreUnavailable
from processors.clean import cleaner as module
from processors.clean.owners import UPLOAD_US
from processors.owner.seams import wall_clock
from tests.services import test_objects_in_use as objects_in_use
from tests.services.test_objects_in_use import (
    LARGE,
    System,
    nothing_dangles,
    operation,
    system_on,
    until,
)

pytestmark = pytest.mark.services
T = TypeVar("T")

ORPHAN_US = 2 * UPLOAD_US

Fault = Literal["refused", "answer lost", "surprise"]
"""The store is away; it did as asked and the answer is lost; something nobody has thought of."""


class FaultyStore:
    """A folder; the n-th call of a name fails."""

    def __init__(self, inner: FolderStore, fault: Fault, name: str, nth: int) -> None:
        self._inner = inner
        self._fault = fault
        self._name = name
        self._left = nth
        self.has_failed = False

    async def _tried(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self._left -= name.startswith(self._name)
        if self._left != 0 or self.has_failed:
            return await call()
        self.has_failed = True
        if self._fault == "surprise":
            raise RuntimeError("nobody has thought of this")
        if self._fault == "answer lost":
            await call()
        raise StoreUnavailable("the store gives no answer")

    async def put(
        self, key: str, data: bytes | AsyncIterable[bytes], *, sha256: str, size: int
    ) -> Ref:
        return await self._tried(
            "put", lambda: self._inner.put(key, data, sha256=sha256, size=size)
        )

    async def get(self, ref: Ref) -> bytes:
        return await self._tried("get", lambda: self._inner.get(ref))

    def stream(self, ref: Ref) -> AsyncGenerator[bytes, None]:
        return self._inner.stream(ref)

    async def delete(self, key: str) -> None:
        await self.delete_many([key])

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._tried("delete_many", lambda: self._inner.delete_many(keys))

    async def listing(self, prefix: str, after: str | None = None, *, limit: int = 1000) -> Page:
        return await self._tried(
            f"listing {prefix}/", lambda: self._inner.listing(prefix, after, limit=limit)
        )

    async def link(self, ref: Ref, seconds: int, *, filename: str | None = None) -> None:
        await self._inner.link(ref, seconds, filename=filename)

    async def check(self) -> None:
        await self._tried("check", lambda: self._inner.check())

    async def sweep_unfinished(self, before: Micros) -> int:
        return await self._tried("sweep", lambda: self._inner.sweep_unfinished(before))

    async def close(self) -> None:
        await self._inner.close()


@pytest.fixture
async def system(
    bootstrap: str, topic_prefix: str, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[System]:
    """With more patience: many rounds are written to the log as errors, at length."""
    monkeypatch.setattr(objects_in_use, "PATIENCE_SECONDS", 120)
    async with system_on(bootstrap, topic_prefix, dsn, str(tmp_path / "objects")) as system:
        yield system


CALLS = (
    *(("put", 1), ("listing /", 1), ("listing users/", 1), ("check", 1), ("sweep", 1)),
    *(("delete_many", nth) for nth in (1, 2, 3)),
)
"""All that a cleaner asks of the store; it deletes a result, orphans, and of an owner both."""


async def old_orphan(system: System, folder: Path, key: str, age_us: int) -> None:
    await system.store.put(key, b"lost", sha256=sha256(b"lost").hexdigest(), size=4)
    long_ago = (wall_clock() - age_us) / SECOND
    os.utime(folder.joinpath(*key.split("/")), (long_ago, long_ago))


def has_ended(told: dict[str, Any]) -> bool:
    return bool(told["status"] == "ended")


def owns_nothing(keys: set[str]) -> bool:
    """No object of anybody named is left."""
    return not any(key.startswith("users/") for key in keys)


@pytest.mark.parametrize("fault", get_args(Fault))
async def test_whichever_call_of_the_store_fails_all_is_cleaned_in_the_end(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """One cleaner after the other, each with a fault in another call: a result that is over, an
    orphan, and an owner who goes."""
    folder = tmp_path / "objects"
    for number, (name, nth) in enumerate(CALLS):
        user = f"u{number}"
        result = await system.done(payload=LARGE, result_ttl_seconds=0.05)
        await system.collect(result["id"])
        anybodys = f"users/nobody/tasks/x/input/c-{number}-payload.json"
        await old_orphan(system, folder, anybodys, 2 * ORPHAN_US)
        theirs = f"users/{user}/tasks/x/input/c-payload.json"
        await old_orphan(system, folder, theirs, UPLOAD_US + ORPHAN_US // 4)
        owned = await system.done(payload=LARGE, labels={"user": user})
        removal = (await system.client.delete(f"/v1/owners/{user}")).headers["location"]

        store = FaultyStore(FolderStore(folder), fault, name, nth)

        def faulty(address: str, store: ObjectStore = store) -> ObjectStore:
            return store

        monkeypatch.setattr(module, "open_store", faulty)
        async with system.cleaner(orphan_seconds=ORPHAN_US / SECOND):
            await system.until_told(result["id"], "objects_deleted")
            await system.until_told(owned["id"], "objects_deleted")
            await until(partial(operation, system, removal), has_ended)
            await until(system.keys, owns_nothing)
        assert store.has_failed, name
    await nothing_dangles(system)
