"""What every object store must do. A module of tests inherits the suite and brings two fixtures:
`store`, and `behind_its_back`, which reaches the same bytes without the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from random import Random
from typing import Protocol

import pytest

from ledger.domain.events import Ref
from ledger.objects import (
    ContentMismatch,
    InvalidKey,
    ObjectConflict,
    ObjectDamaged,
    ObjectNotFound,
    ObjectStore,
    delete_prefix,
)
from ledger.objects.content import PIECE_BYTES
from ledger.objects.store import PAGE_MAX

KEY = "users/a/tasks/t/output/c1-output.json"
CONTENT = b'{"cards": 12}'


class BehindItsBack(Protocol):
    def replace(self, key: str, content: bytes) -> None: ...

    def unfinished(self) -> int:
        """How many writes were begun and are neither finished nor undone."""


def ref_of(content: bytes, key: str = KEY) -> Ref:
    return Ref(key=key, size=len(content), sha256=sha256(content).hexdigest())


async def put(store: ObjectStore, content: bytes = CONTENT, key: str = KEY) -> Ref:
    ref = ref_of(content, key)
    return await store.put(key, content, sha256=ref.sha256, size=ref.size)


async def chunks(content: bytes, *sizes: int) -> AsyncIterator[bytes]:
    """The content in chunks of these sizes, over and over."""
    start = 0
    while start < len(content):
        for size in sizes:
            yield content[start : start + size]
            start += size


async def collect(stream: AsyncIterator[bytes], got: list[bytes]) -> None:
    """Keeps what came before an error."""
    async for piece in stream:
        got.append(piece)  # noqa: PERF401


async def keys_below(store: ObjectStore, prefix: str, *, limit: int = PAGE_MAX) -> list[str]:
    keys: list[str] = []
    after: str | None = None
    while True:
        page = await store.listing(prefix, after, limit=limit)
        assert len(page.objects) <= limit
        keys += [found.key for found in page.objects]
        if page.after is None:
            return keys
        after = page.after


ODD_KEYS = [
    "a/B/ä/\u00df\U0001f600-x",
    "a/A b+c&d=e?f#g%2fh",
    "a/.hidden",
    "a/..x",
    "a/%",
    "a/%41",
    "a/A",
    "a/a",
    "a/" + "n" * 80,
    "a/\ue000-last-but-one",
    "a/\ufffd-in-utf-16-after-the-next",
    "a/\U00010000",
    "a-b",
    "a.b",
    "a0",
    "b\\c/d:e*'\"<>|",
]

IMPOSSIBLE_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "a/./b",
    "../a",
    "a/../../b",
    "a\0b",
    "a\nb",
    "a\x7f",
    "a\ufffe",
    "a\uffff",
    "\ud800",
    "k" * 1025,
    "ä" * 513,
]


class ObjectStoreSuite:
    # --- What is put comes back -----------------------------------------------------------------
    @pytest.mark.parametrize("size", [0, 1, 5000, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
    async def test_what_is_put_comes_back(self, store: ObjectStore, size: int) -> None:
        content = Random(size).randbytes(size)
        ref = await put(store, content)
        assert ref == ref_of(content)
        assert await store.get(ref) == content
        pieces = [piece async for piece in store.stream(ref)]
        assert b"".join(pieces) == content
        assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)

    async def test_a_stream_that_is_put_comes_back(self, store: ObjectStore) -> None:
        content = Random(1).randbytes(3 * PIECE_BYTES + 17)
        ref = ref_of(content)
        data = chunks(content, 1, PIECE_BYTES - 1, 0, 2 * PIECE_BYTES, 70_001)
        assert await store.put(ref.key, data, sha256=ref.sha256, size=ref.size) == ref
        assert await store.get(ref) == content

    async def test_a_reader_that_leaves_early_leaves_nothing_open(self, store: ObjectStore) -> None:
        ref = await put(store, bytes(4 * PIECE_BYTES))
        stream = store.stream(ref)
        assert await anext(stream)
        await stream.aclose()
        assert [piece async for piece in stream] == []

    # --- An object never changes ----------------------------------------------------------------
    async def test_putting_the_same_again_is_fine(self, store: ObjectStore) -> None:
        assert await put(store) == await put(store)
        assert await store.get(ref_of(CONTENT)) == CONTENT
        assert await keys_below(store, "") == [KEY]

    @pytest.mark.parametrize("other", [b"", CONTENT[:-1] + b"!", CONTENT + b"!"])
    async def test_other_content_under_a_key_in_use_is_refused(
        self, store: ObjectStore, other: bytes
    ) -> None:
        ref = await put(store)
        with pytest.raises(ObjectConflict, match=KEY):
            await put(store, other)
        assert await store.get(ref) == CONTENT

    async def test_of_rivals_for_one_key_one_wins_and_the_others_know(
        self, store: ObjectStore
    ) -> None:
        contents = [bytes([number]) * 100_000 for number in range(6)]
        outcomes = await asyncio.gather(
            *(put(store, content) for content in contents), return_exceptions=True
        )
        [winner] = [outcome for outcome in outcomes if isinstance(outcome, Ref)]
        losers = [outcome for outcome in outcomes if outcome is not winner]
        assert [type(loser) for loser in losers] == [ObjectConflict] * 5
        assert await store.get(winner) == contents[outcomes.index(winner)]

    @pytest.mark.parametrize(
        "given", [b"", CONTENT[:-1], CONTENT + b"!", CONTENT[:-1] + b"!", CONTENT * 100_000]
    )
    async def test_content_that_is_not_as_announced_is_not_put(
        self, store: ObjectStore, behind_its_back: BehindItsBack, given: bytes
    ) -> None:
        ref = ref_of(CONTENT)
        with pytest.raises(ContentMismatch, match=KEY):
            await store.put(ref.key, given, sha256=ref.sha256, size=ref.size)
        assert await keys_below(store, "") == []
        assert behind_its_back.unfinished() == 0

    async def test_a_source_that_breaks_off_leaves_nothing(
        self, store: ObjectStore, behind_its_back: BehindItsBack
    ) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield bytes(2 * PIECE_BYTES)
            raise ConnectionResetError("the model hung up")

        ref = ref_of(bytes(3 * PIECE_BYTES))
        with pytest.raises(ConnectionResetError):
            await store.put(ref.key, broken(), sha256=ref.sha256, size=ref.size)
        assert await keys_below(store, "") == []
        assert behind_its_back.unfinished() == 0

    @pytest.mark.parametrize(
        ("size", "digest"),
        [(-1, sha256(b"").hexdigest()), (0, "e3b0"), (0, sha256(b"").hexdigest().upper())],
    )
    async def test_what_is_no_size_or_no_digest_is_refused(
        self, store: ObjectStore, size: int, digest: str
    ) -> None:
        with pytest.raises(ValueError, match=r"-1|SHA-256"):
            await store.put(KEY, b"", sha256=digest, size=size)

    # --- What was lost or damaged is seen -------------------------------------------------------
    async def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectNotFound, match=KEY):
            await store.get(ref_of(CONTENT))
        with pytest.raises(ObjectNotFound, match=KEY):
            await anext(store.stream(ref_of(CONTENT)))

    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: b"",
            lambda content: content[:-1],
            lambda content: content + b"\0",
            lambda content: content[:-1] + b"\1",
            lambda content: b"\1" + content[1:],
        ],
        ids=["emptied", "cut", "longer", "last byte", "first byte"],
    )
    async def test_damage_is_seen_before_the_last_piece(
        self,
        store: ObjectStore,
        behind_its_back: BehindItsBack,
        damage: Callable[[bytes], bytes],
    ) -> None:
        ref = await put(store, bytes(3 * PIECE_BYTES))
        behind_its_back.replace(KEY, damage(bytes(3 * PIECE_BYTES)))
        with pytest.raises(ObjectDamaged, match=KEY):
            await store.get(ref)
        got: list[bytes] = []
        with pytest.raises(ObjectDamaged, match=KEY):
            await collect(store.stream(ref), got)
        assert len(b"".join(got)) < ref.size

    # --- Removal --------------------------------------------------------------------------------
    async def test_what_is_deleted_is_gone_and_may_be_deleted_again(
        self, store: ObjectStore
    ) -> None:
        ref = await put(store)
        await store.delete(KEY)
        with pytest.raises(ObjectNotFound):
            await store.get(ref)
        await store.delete(KEY)
        await store.delete_many([KEY, "users/nobody"])
        await store.delete_many([])

    async def test_a_deleted_key_may_be_put_again(self, store: ObjectStore) -> None:
        await put(store)
        await store.delete(KEY)
        ref = await put(store, b"other")
        assert await store.get(ref) == b"other"

    async def test_an_owner_goes_with_all_objects_and_no_others(self, store: ObjectStore) -> None:
        theirs = [f"users/a/projects/{number}/output/x" for number in range(3)]
        others = ["users/ab/output/x", "users/A/output/x", "users/b/users/a/x", "usersa/x"]
        for key in theirs + others:
            await put(store, key=key)
        assert await delete_prefix(store, "users/a/") == 3
        assert await keys_below(store, "users/a/") == []
        assert await keys_below(store, "") == sorted(others)
        assert await delete_prefix(store, "users/a/") == 0

    async def test_a_prefix_that_could_cover_others_is_refused(self, store: ObjectStore) -> None:
        await put(store)
        with pytest.raises(ValueError, match="ends in /"):
            await delete_prefix(store, "users/a")
        with pytest.raises(ValueError, match="every object"):
            await delete_prefix(store, "")
        assert await keys_below(store, "") == [KEY]

    # --- Listing --------------------------------------------------------------------------------
    @pytest.mark.parametrize("limit", [1, 2, 3, PAGE_MAX])
    async def test_pages_follow_each_other_in_the_order_of_keys(
        self, store: ObjectStore, limit: int
    ) -> None:
        for key in ODD_KEYS:
            await put(store, key=key)
        assert await keys_below(store, "", limit=limit) == sorted(ODD_KEYS)
        below = sorted(key for key in ODD_KEYS if key.startswith("a/"))
        assert await keys_below(store, "a/", limit=limit) == below

    async def test_a_listing_goes_on_after_any_key_even_one_that_is_gone(
        self, store: ObjectStore
    ) -> None:
        for key in ("a/1", "a/2/x", "a/2/y", "a/3"):
            await put(store, key=key)
        for after, found in [("a/0", 4), ("a/1", 3), ("a/2", 3), ("a/2/xx", 2), ("a/4", 0)]:
            page = await store.listing("a/", after)
            assert len(page.objects) == found, after
            assert page.after is None

    async def test_a_listing_says_sizes_and_times(self, store: ObjectStore) -> None:
        await put(store, b"123", "a/1")
        await put(store, b"", "a/2")
        objects = (await store.listing("a/")).objects
        assert [found.size for found in objects] == [3, 0]
        # Of one clock; S3 says whole seconds.
        assert abs(objects[0].modified_at - objects[1].modified_at) < 60_000_000

    @pytest.mark.parametrize("limit", [0, -1, PAGE_MAX + 1])
    async def test_what_is_no_page_is_refused(self, store: ObjectStore, limit: int) -> None:
        with pytest.raises(ValueError, match=str(limit)):
            await store.listing("", limit=limit)
        with pytest.raises(ValueError, match=str(PAGE_MAX)):
            await store.delete_many(["k"] * (PAGE_MAX + 1))

    # --- Keys -----------------------------------------------------------------------------------
    async def test_odd_keys_are_keys(self, store: ObjectStore) -> None:
        refs = [await put(store, key.encode(), key) for key in ODD_KEYS]
        for ref in refs:
            assert await store.get(ref) == ref.key.encode()
        await store.delete(ODD_KEYS[0])
        await store.delete_many(ODD_KEYS[1:])
        assert await keys_below(store, "") == []

    async def test_impossible_keys_are_refused_everywhere(self, store: ObjectStore) -> None:
        for key in IMPOSSIBLE_KEYS:
            with pytest.raises(InvalidKey):
                await put(store, key=key)
            with pytest.raises(InvalidKey):
                await store.get(ref_of(CONTENT, key))
            with pytest.raises(InvalidKey):
                await store.delete(key)
            with pytest.raises(InvalidKey):
                await store.delete_many(["fine", key])
        assert await keys_below(store, "") == []

    # --- Readiness ------------------------------------------------------------------------------
    async def test_a_store_that_works_says_so_and_leaves_nothing_behind(
        self, store: ObjectStore, behind_its_back: BehindItsBack
    ) -> None:
        await store.check()
        await store.check()
        assert await keys_below(store, "") == []
        assert behind_its_back.unfinished() == 0
