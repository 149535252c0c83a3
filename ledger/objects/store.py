"""What every object store does, whatever it is made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from typing import Protocol

from msgspec import Struct

from ledger.domain.events import Ref
from ledger.domain.ids import Micros

PAGE_MAX = 1000
"""Objects of one page, and of one call that deletes."""


class Listed(Struct, frozen=True, gc=False):
    key: str
    size: int
    modified_at: Micros
    """By the store's clock."""


class Page(Struct, frozen=True, gc=False):
    objects: tuple[Listed, ...]
    after: str | None
    """Where the next page goes on; None: this is the last."""


class ObjectStore(Protocol):
    """Objects never change. Every call may raise `StoreUnavailable`, after a bounded time, and may
    then be repeated; one that is given a key may raise `InvalidKey`."""

    async def put(
        self, key: str, data: bytes | AsyncIterable[bytes], *, sha256: str, size: int
    ) -> Ref:
        """The object is there, whole and durable, or not at all. Putting the same again is fine.

        Raises `ObjectConflict` where other bytes lie under the key, `ContentMismatch` where `data`
        is not what was announced.
        """

    async def get(self, ref: Ref) -> bytes:
        """For what fits in memory. Raises `ObjectNotFound`, `ObjectDamaged`."""

    def stream(self, ref: Ref) -> AsyncGenerator[bytes, None]:
        """The bytes in pieces, read as they are asked for. Raises `ObjectNotFound` before the first
        piece (unless the object is removed meanwhile) and `ObjectDamaged` before the last one:
        who has got `ref.size` bytes has got the right ones."""

    async def delete(self, key: str) -> None:
        """An object that is not there is fine."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """At most `PAGE_MAX`."""

    async def listing(
        self, prefix: str, after: str | None = None, *, limit: int = PAGE_MAX
    ) -> Page:
        """Objects whose keys begin with `prefix` (`""`, or ending in `/`) and come after `after`,
        in the order of their keys' UTF-8."""

    async def link(self, ref: Ref, seconds: int, *, filename: str | None = None) -> str | None:
        """An address at which anybody may read the object for so long, saved as `filename`; None
        where there is no such thing. It is not looked whether the object is there or intact."""

    async def check(self) -> None:
        """Raises `StoreUnavailable` unless objects can be written and read now."""

    async def sweep_unfinished(self, before: Micros) -> int:
        """Removes what writers left behind that died half-way before then; how many."""

    async def close(self) -> None: ...


async def copied(store: ObjectStore, ref: Ref, key: str) -> Ref:
    """The same bytes under another key, verified on the way. Raises as `stream` and `put` do."""
    async with aclosing(store.stream(ref)) as pieces:
        return await store.put(key, pieces, sha256=ref.sha256, size=ref.size)


async def require_there(store: ObjectStore, ref: Ref) -> None:
    """Raises `ObjectNotFound` where nothing lies there, and `ObjectDamaged` for what is seen at
    once not to be the bytes meant."""
    async with aclosing(store.stream(ref)) as pieces:
        await anext(pieces, b"")


async def delete_prefix(store: ObjectStore, prefix: str) -> int:
    """Deletes every object below `prefix`, which ends in `/`; how many. Repeating it after a
    failure goes on where that stopped. Objects put meanwhile may stay."""
    if not checked_prefix(prefix):
        raise ValueError("an empty prefix names every object of the store")
    deleted = 0
    after: str | None = None
    while True:
        page = await store.listing(prefix, after)
        if page.objects:
            await store.delete_many([found.key for found in page.objects])
        deleted += len(page.objects)
        if page.after is None:
            return deleted
        after = page.after


def checked_prefix(prefix: str) -> str:
    """Raises ValueError for one that could end within a name: `users/a` begins `users/ab/…`."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"a prefix of keys ends in /: {prefix!r}")
    return prefix


def checked_limit(count: int) -> None:
    """Raises ValueError for what is no page."""
    if not 1 <= count <= PAGE_MAX:
        raise ValueError(f"{count} objects in one call; 1 to {PAGE_MAX} are possible")
