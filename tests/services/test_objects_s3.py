"""Objects in S3, on a server that speaks it: the suite of every store, and what can go wrong on
the way there and back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TypeVar
from urllib.parse import urlsplit

import boto3
import botocore.session
import httpx
import pytest
from botocore.config import Config
from botocore.loaders import create_loader
from moto.server import ThreadedMotoServer
from mypy_boto3_s3 import S3Client

from ledger.domain.ids import Micros
from ledger.embedded.processes import free_ports
from ledger.objects import (
    ContentMismatch,
    ObjectConflict,
    ObjectDamaged,
    ObjectNotFound,
    ObjectStore,
    StoreUnavailable,
    delete_prefix,
    open_store,
)
from ledger.objects.s3 import PART_BYTES, S3Store
from ledger.objects.s3_calls import S3Bounds
from tests.support.faulty_http import Fault, Faults, faulty
from tests.support.object_store_suite import (
    CONTENT,
    KEY,
    ObjectStoreSuite,
    chunks,
    collect,
    keys_below,
    put,
    ref_of,
)

pytestmark = pytest.mark.services

PREFIX = "ledger/objects"
PATIENCE_SECONDS = 30.0
FAR_FUTURE = Micros(2**52)
TEST_BOUNDS = S3Bounds(read_seconds=5.0, attempts=3)
Store = TypeVar("Store", bound=ObjectStore)
BIG = Random(7).randbytes(2 * PART_BYTES + 12_345)


@pytest.fixture(scope="module", autouse=True)
def _one_reading_of_the_models() -> Iterator[None]:
    """boto3 reads what S3 is anew for each session: 0.1 s a store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(create_loader))
        yield


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-tests")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def raw(s3_url: str) -> Iterator[S3Client]:
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=s3_url,
        region_name="us-east-1",
        aws_access_key_id="of-the-tests",
        aws_secret_access_key="of-the-tests",
        config=Config(retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()


@pytest.fixture
def bucket(raw: S3Client) -> str:
    name = f"test-{secrets.token_hex(6)}"
    raw.create_bucket(Bucket=name)
    return name


class Bucket:
    """Reached straight, below the store's prefix."""

    def __init__(self, raw: S3Client, name: str, prefix: str) -> None:
        self.raw = raw
        self.name = name
        self.prefix = prefix

    def replace(self, key: str, content: bytes) -> None:
        self.raw.put_object(Bucket=self.name, Key=f"{self.prefix}{key}", Body=content)

    def unfinished(self) -> int:
        uploads = self.raw.list_multipart_uploads(Bucket=self.name)
        return len(uploads.get("Uploads", ()))

    def keys(self) -> list[str]:
        return [
            one["Key"] for one in self.raw.list_objects_v2(Bucket=self.name).get("Contents", ())
        ]


def store_at(url: str, bucket: str, bounds: S3Bounds = TEST_BOUNDS) -> S3Store:
    return S3Store(bucket, PREFIX, endpoint_url=url, region="us-east-1", bounds=bounds)


@asynccontextmanager
async def closing(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def behind_its_back(raw: S3Client, bucket: str) -> Bucket:
    return Bucket(raw, bucket, f"{PREFIX}/")


@pytest.fixture
async def store(s3_url: str, bucket: str) -> AsyncIterator[S3Store]:
    async with closing(store_at(s3_url, bucket)) as store:
        yield store


@pytest.fixture
def proxy(s3_url: str) -> Iterator[tuple[str, Faults]]:
    parts = urlsplit(s3_url)
    with faulty(parts.hostname or "", parts.port or 0) as proxy:
        yield proxy


@pytest.fixture
def faults(proxy: tuple[str, Faults]) -> Faults:
    return proxy[1]


@pytest.fixture
async def far_store(proxy: tuple[str, Faults], bucket: str) -> AsyncIterator[S3Store]:
    """Behind the proxy, ready."""
    async with closing(store_at(proxy[0], bucket)) as store:
        await store.check()
        yield store


class TestS3Store(ObjectStoreSuite):
    """All that every store does."""


class TestS3StoreWithoutConditions(ObjectStoreSuite):
    """On a server that overlooks `If-None-Match`: what lies there is looked for first."""

    @pytest.fixture
    async def store(
        self, proxy: tuple[str, Faults], faults: Faults, bucket: str
    ) -> AsyncIterator[S3Store]:
        faults.without_headers.add("if-none-match")
        async with closing(store_at(proxy[0], bucket)) as store:
            yield store

    async def test_of_rivals_for_one_key_one_wins_and_the_others_know(
        self, store: ObjectStore
    ) -> None:
        """The winner is whole; that the others know is more than such a server can promise."""
        contents = [bytes([number]) * 100_000 for number in range(6)]
        await asyncio.gather(*(put(store, content) for content in contents), return_exceptions=True)
        [found] = (await store.listing("")).objects
        assert found.size == 100_000
        with pytest.raises(ObjectConflict):
            await put(store, b"late")


async def test_a_server_that_refuses_conditions_is_written_to_all_the_same(
    proxy: tuple[str, Faults], bucket: str
) -> None:
    url, faults = proxy
    faults.refused_headers.add("if-none-match")
    async with closing(store_at(url, bucket)) as store:
        await store.check()
        await put(store)
        await put(store)
        with pytest.raises(ObjectConflict):
            await put(store, b"other")


# --- Places ---------------------------------------------------------------------------------------
async def test_a_prefix_is_all_that_a_store_sees_and_touches(
    store: S3Store, behind_its_back: Bucket
) -> None:
    other = f"{PREFIX}x/1"
    behind_its_back.raw.put_object(Bucket=behind_its_back.name, Key=other, Body=b"")
    await put(store, key="x/2")
    assert behind_its_back.keys() == [f"{PREFIX}/x/2", other]
    assert await delete_prefix(store, "x/") == 1
    assert behind_its_back.keys() == [other]


async def test_an_address_reaches_the_whole_bucket(
    s3_url: str, bucket: str, behind_its_back: Bucket
) -> None:
    async with closing(open_store(f"s3://{bucket}?endpoint={s3_url}&region=us-east-1")) as store:
        await store.check()
        ref = await put(store)
        assert await store.get(ref) == CONTENT
        assert await keys_below(store, "") == [KEY]
    assert behind_its_back.keys() == [KEY]


# --- Large objects --------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, len(BIG)])
async def test_a_large_object_comes_back(store: S3Store, size: int) -> None:
    content = BIG[:size]
    ref = ref_of(content)
    data = chunks(content, 1_000_003)
    await store.put(ref.key, data, sha256=ref.sha256, size=size)
    digest = sha256()
    async for piece in store.stream(ref):
        digest.update(piece)
    assert digest.hexdigest() == ref.sha256
    assert await put(store, content) == ref


@pytest.mark.parametrize(
    "given", [BIG[:-1], BIG + b"!", BIG[:-1] + b"!"], ids=["short", "long", "other"]
)
async def test_a_large_object_that_is_not_as_announced_is_undone(
    store: S3Store, behind_its_back: Bucket, given: bytes
) -> None:
    ref = ref_of(BIG)
    with pytest.raises(ContentMismatch):
        await store.put(ref.key, chunks(given, PART_BYTES), sha256=ref.sha256, size=ref.size)
    assert behind_its_back.unfinished() == 0
    assert behind_its_back.keys() == []


async def test_other_large_content_under_a_key_in_use_is_refused_and_undone(
    store: S3Store, behind_its_back: Bucket
) -> None:
    ref = await put(store)
    with pytest.raises(ObjectConflict):
        await put(store, BIG)
    assert await store.get(ref) == CONTENT
    assert behind_its_back.unfinished() == 0


async def test_a_large_object_whose_writer_leaves_is_undone(
    store: S3Store, behind_its_back: Bucket
) -> None:
    asked_for_more = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield BIG
        asked_for_more.set()
        await asyncio.Event().wait()

    writer = asyncio.create_task(
        store.put(KEY, endless(), sha256=ref_of(BIG).sha256, size=2 * len(BIG))
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asked_for_more.wait()
    assert behind_its_back.unfinished() == 1
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer
    assert behind_its_back.unfinished() == 0


async def test_what_dead_writers_left_is_swept_and_writers_at_work_go_on(
    store: S3Store, behind_its_back: Bucket
) -> None:
    raw, bucket = behind_its_back.raw, behind_its_back.name
    for key in (f"{PREFIX}/a", f"{PREFIX}/b", f"{PREFIX}x/not-ours"):
        raw.create_multipart_upload(Bucket=bucket, Key=key)
    assert await store.sweep_unfinished(before=Micros(0)) == 0
    assert behind_its_back.unfinished() == 3
    assert await store.sweep_unfinished(before=FAR_FUTURE) == 2
    assert behind_its_back.unfinished() == 1


# --- Links ----------------------------------------------------------------------------------------
async def test_a_link_gives_the_bytes_and_their_name(s3_url: str, bucket: str) -> None:
    async with closing(
        open_store(f"s3://{bucket}/p?endpoint={s3_url}&region=us-east-1&public={s3_url}")
    ) as store:
        ref = await put(store)
        link = await store.link(ref, 60, filename='Lernstand ä".json')
        assert link is not None
        assert "X-Amz-Expires=60" in link
        async with httpx.AsyncClient() as anybody:
            answer = await anybody.get(link)
        assert answer.content == CONTENT
        said = answer.headers["content-disposition"]
        assert said == "attachment; filename*=UTF-8''Lernstand%20%C3%A4%22.json"
        plain = await store.link(ref, 1)
        assert plain is not None
        assert "disposition" not in plain
        for seconds in (0, 7 * 86_400 + 1):
            with pytest.raises(ValueError, match=str(seconds)):
                await store.link(ref, seconds)


async def test_no_link_leads_to_a_server_that_clients_may_not_reach(store: S3Store) -> None:
    assert await store.link(await put(store), 60) is None


async def test_a_bucket_at_amazon_has_links() -> None:
    async with closing(open_store("s3://bucket?region=eu-central-1")) as store:
        link = await store.link(ref_of(CONTENT), 60)
    assert link is not None
    assert link.startswith("https://bucket.s3.")


# --- What goes wrong on the way -------------------------------------------------------------------
@pytest.mark.parametrize("status", [500, 503])
async def test_a_server_that_fails_twice_is_asked_again(
    far_store: S3Store, faults: Faults, status: int
) -> None:
    faults.once += [Fault(method="PUT", kind="refuse", status=status)] * 2
    ref = await put(far_store)
    faults.once += [Fault(method="GET", kind="refuse", status=status)] * 2
    assert await far_store.get(ref) == CONTENT
    assert faults.once == []


async def test_a_server_that_goes_on_failing_is_unavailable_and_said_so(
    far_store: S3Store, faults: Faults, bucket: str
) -> None:
    faults.once += [Fault(method="PUT", kind="refuse", status=503)] * TEST_BOUNDS.attempts
    with pytest.raises(StoreUnavailable, match=f"{bucket}.*503.*try again later"):
        await put(far_store)
    assert faults.once == []
    await put(far_store)


async def test_a_put_whose_answer_is_lost_is_found_done(far_store: S3Store, faults: Faults) -> None:
    faults.once.append(Fault(method="PUT", of=KEY, kind="lose the answer"))
    ref = await put(far_store)
    assert faults.count("PUT", KEY) == 2
    assert await far_store.get(ref) == CONTENT


async def test_a_put_whose_every_answer_is_lost_may_be_repeated(
    proxy: tuple[str, Faults], faults: Faults, bucket: str
) -> None:
    once = S3Bounds(attempts=1)
    async with closing(store_at(proxy[0], bucket, once)) as store:
        await store.check()
        faults.once.append(Fault(method="PUT", of=KEY, kind="lose the answer"))
        with pytest.raises(StoreUnavailable, match="no answer"):
            await put(store)
        ref = await put(store)
        assert await store.get(ref) == CONTENT


@pytest.mark.parametrize(
    "echo",
    [[], [(404, "NoSuchUpload")], [(412, "PreconditionFailed")]],
    ids=["200", "404", "412"],
)
async def test_a_large_put_whose_answers_are_lost_is_found_done(
    far_store: S3Store,
    faults: Faults,
    behind_its_back: Bucket,
    echo: list[tuple[int, str]],
) -> None:
    """Servers differ in what they say to who completes twice."""
    faults.once += [
        Fault(method="PUT", of="partNumber=2", kind="lose the answer"),
        Fault(method="POST", of="uploadId", kind="lose the answer"),
    ]
    faults.once += [
        Fault(method="POST", of="uploadId", kind="refuse", status=status, code=code)
        for status, code in echo
    ]
    ref = await put(far_store, BIG)
    assert faults.once == []
    assert faults.count("PUT", "partNumber=2") == 2
    assert await far_store.get(ref) == BIG
    assert behind_its_back.unfinished() == 0


@pytest.mark.parametrize(
    ("size", "method", "of"), [(1000, "PUT", KEY), (len(BIG), "POST", "uploadId")]
)
async def test_a_put_that_collides_with_a_removal_may_be_repeated(
    far_store: S3Store, faults: Faults, size: int, method: str, of: str
) -> None:
    content = BIG[:size]
    faults.once.append(
        Fault(method=method, of=of, kind="refuse", status=409, code="ConditionalRequestConflict")
    )
    with pytest.raises(StoreUnavailable, match="put it again"):
        await put(far_store, content)
    ref = await put(far_store, content)
    assert await far_store.get(ref) == content


async def test_a_large_put_that_fails_half_way_is_undone(
    proxy: tuple[str, Faults], faults: Faults, bucket: str, behind_its_back: Bucket
) -> None:
    async with closing(store_at(proxy[0], bucket, S3Bounds(attempts=1))) as store:
        await store.check()
        faults.once.append(Fault(method="PUT", of="partNumber=2", kind="refuse"))
        with pytest.raises(StoreUnavailable, match="503"):
            await put(store, BIG)
        assert behind_its_back.unfinished() == 0
        assert behind_its_back.keys() == []


async def test_a_delete_whose_answer_is_lost_is_done(far_store: S3Store, faults: Faults) -> None:
    ref = await put(far_store)
    faults.once.append(Fault(method="DELETE", of=KEY, kind="lose the answer"))
    await far_store.delete(KEY)
    with pytest.raises(ObjectNotFound):
        await far_store.get(ref)


@pytest.mark.parametrize("body_bytes", [0, 1, 700_000])
async def test_a_download_that_is_cut_goes_on_where_it_was(
    far_store: S3Store, faults: Faults, body_bytes: int
) -> None:
    content = BIG[:1_000_000]
    ref = await put(far_store, content)
    cut = Fault(method="GET", of=KEY, kind="cut the body", body_bytes=body_bytes)
    faults.once += [cut, cut]
    assert await far_store.get(ref) == content
    assert faults.once == []


async def test_a_download_that_is_cut_again_and_again_is_given_up(
    far_store: S3Store, faults: Faults
) -> None:
    ref = await put(far_store)
    cut = Fault(method="GET", of=KEY, kind="cut the body", body_bytes=0)
    faults.once += [cut] * 3
    with pytest.raises(StoreUnavailable, match="no answer"):
        await far_store.get(ref)
    assert await far_store.get(ref) == CONTENT


async def test_damage_on_the_way_is_seen_in_what_a_download_goes_on_with(
    far_store: S3Store, faults: Faults, behind_its_back: Bucket
) -> None:
    content = BIG[:1_000_000]
    ref = await put(far_store, content)
    cut = Fault(method="GET", of=KEY, kind="cut the body", body_bytes=600_000)
    faults.once.append(cut)
    stream = far_store.stream(ref)
    got = [await anext(stream)]
    behind_its_back.replace(KEY, bytes(1_000_000))
    with pytest.raises(ObjectDamaged):
        await collect(stream, got)
    assert len(b"".join(got)) < ref.size


@pytest.mark.parametrize(
    "bounds",
    [S3Bounds(read_seconds=0.3, attempts=2), S3Bounds(call_seconds=0.3)],
    ids=["socket", "call"],
)
async def test_a_server_that_does_not_answer_is_given_up_in_time(
    proxy: tuple[str, Faults], faults: Faults, bucket: str, bounds: S3Bounds
) -> None:
    url, _ = proxy
    async with closing(store_at(url, bucket)) as patient:
        ref = await put(patient)
    async with closing(store_at(url, bucket, bounds)) as store:
        faults.once += [Fault(method="GET", of=KEY, kind="hold")] * bounds.attempts
        started = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailable, match="no answer"):
            await store.get(ref)
        assert asyncio.get_running_loop().time() - started < 5.0
        faults.released.set()
        faults.once.clear()
        assert await store.get(ref) == CONTENT


async def test_a_slow_call_holds_up_no_other(far_store: S3Store, faults: Faults) -> None:
    slow, other = await put(far_store), await put(far_store, key="another")
    faults.once.append(Fault(method="GET", of=KEY, kind="hold"))
    waiting = asyncio.create_task(far_store.get(slow))
    async with asyncio.timeout(TEST_BOUNDS.read_seconds):
        while faults.once:
            assert await far_store.get(other) == CONTENT
    assert not waiting.done()
    faults.released.set()
    # The proxy then hangs up on what it held, and the store asks again.
    assert await waiting == CONTENT


# --- What is set wrong ----------------------------------------------------------------------------
async def test_a_bucket_that_is_not_there_is_said(s3_url: str) -> None:
    async with closing(store_at(s3_url, "no-such-bucket")) as store:
        for ask in (store.check, lambda: put(store), lambda: store.get(ref_of(CONTENT))):
            with pytest.raises(StoreUnavailable, match="make the bucket"):
                await ask()


async def test_a_server_that_is_not_there_is_said(bucket: str) -> None:
    [port] = free_ports(1)
    bounds = S3Bounds(attempts=1)
    async with closing(store_at(f"http://127.0.0.1:{port}", bucket, bounds)) as store:
        with pytest.raises(StoreUnavailable, match=f"{port}.*can be reached"):
            await store.check()


async def test_rights_that_lack_are_said(far_store: S3Store, faults: Faults) -> None:
    faults.once.append(Fault(method="PUT", of=KEY, kind="refuse", status=403))
    with pytest.raises(StoreUnavailable, match="credentials"):
        await put(far_store)


async def test_credentials_that_lack_are_said(
    s3_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    async with closing(store_at(s3_url, bucket)) as store:
        with pytest.raises(StoreUnavailable, match="AWS_ACCESS_KEY_ID"):
            await store.check()
