"""Objects on a real broker, database and store: in and out, and gone when their time is over."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import boto3
import httpx
import pytest
from moto.server import ThreadedMotoServer

from api.app import create_app
from api.settings import Settings
from ledger.domain.events import (
    JobRequested,
    JobSucceeded,
    ObjectsDeleted,
    Ref,
    ResultWithdrawn,
    StepCarried,
    StepSucceeded,
)
from ledger.domain.ids import SECOND, Micros
from ledger.objects import ObjectStore, open_store
from processors.clean.cleaner import Cleaner, CleanerSettings
from processors.clean.orphans import MARKER
from processors.clean.owners import UPLOAD_US
from processors.owner.seams import wall_clock
from processors.owner.service import OwnerService, OwnerSettings
from projections.feed import ProjectorFeed
from projections.log_source import log_source
from projections.projector import Projector
from projections.rebuild import verify
from projections.schema import migrate
from tests.support.ledger import Ledger, ledger_on

pytestmark = [pytest.mark.services, pytest.mark.rule("S3.7", "S4.7")]

T = TypeVar("T")

PATIENCE_SECONDS = 30
ROUND_SECONDS = 0.1
NEVER = 1e9
LARGE = {"text": "é" * 100_000, "n": 1.5}
ADA = {"user": "ada", "project": "p"}


@dataclass
class System:
    """One ledger: whoever decides, projects and cleans runs in this process, as a worker has it."""

    ledger: Ledger
    dsn: str
    address: str
    store: ObjectStore
    client: httpx.AsyncClient

    @asynccontextmanager
    async def cleaner(self, *, orphan_seconds: float = NEVER) -> AsyncIterator[Cleaner]:
        settings = CleanerSettings(
            connection=self.ledger.connection,
            dsn=self.dsn,
            topics=self.ledger.topics,
            partitions=self.ledger.partitions,
            objects=self.address,
            round_seconds=ROUND_SECONDS,
            orphan_seconds=orphan_seconds,
        )
        everything = frozenset(range(self.ledger.partitions))
        cleaner = Cleaner(settings, owned=lambda: everything, now=lambda: Micros(wall_clock()))
        stop = asyncio.Event()
        running = asyncio.create_task(cleaner.run(stop))
        try:
            yield cleaner
        finally:
            stop.set()
            await running

    async def keys(self) -> set[str]:
        found = (await self.store.listing("")).objects
        return {one.key for one in found if one.key != MARKER}

    async def job(self, **asked: Any) -> dict[str, Any]:
        answer = await self.client.post("/v1/jobs", json={"type": "t", **asked})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def said(self, job_id: str, word: str, **body: Any) -> dict[str, Any]:
        answer = await self.client.post(f"/v1/jobs/{job_id}/{word}", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def done(self, output: object = LARGE, **asked: Any) -> dict[str, Any]:
        job = await self.job(**asked)
        lease = await self.said(job["id"], "lock", runtime_id="r")
        return await self.said(job["id"], "result", fence=lease["fence"], output=output)

    async def failed(self, **asked: Any) -> dict[str, Any]:
        job = await self.job(**asked)
        lease = await self.said(job["id"], "lock", runtime_id="r")
        fence = lease["fence"]
        return await self.said(job["id"], "fail", fence=fence, code="X", retryable=False)

    async def collect(self, job_id: str) -> dict[str, Any]:
        answer = await self.client.post("/v1/jobs/collect", json={"ids": [job_id]})
        return dict(answer.json()["items"][0])

    async def types(self, job_id: str) -> list[str]:
        answer = await self.client.get(f"/v1/jobs/{job_id}/events")
        return [event["type"].split(".")[2] for event in answer.json()["items"]]

    async def until_told(self, job_id: str, event: str) -> list[str]:
        return await until(lambda: self.types(job_id), lambda types: event in types)


async def until(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = await ask()
            if holds(answer):
                return answer
            await asyncio.sleep(0.05)  # Between two looks, not for luck.


class ReadsItsWrites:
    """What every client can do: a read waits for what was last written."""

    def __init__(self) -> None:
        self._position = ""

    async def before(self, request: httpx.Request) -> None:
        if request.method == "GET" and self._position:
            request.headers["Ledger-Min-Position"] = self._position

    async def after(self, response: httpx.Response) -> None:
        position = response.headers.get("ledger-position", "")
        if response.request.method != "GET" and "," not in position:
            self._position = position


@asynccontextmanager
async def system_on(bootstrap: str, prefix: str, dsn: str, address: str) -> AsyncIterator[System]:
    migrate(dsn)
    store = open_store(address)
    async with ledger_on(bootstrap, prefix) as ledger:
        app = create_app(
            Settings(
                connection=ledger.connection,
                dsn=dsn,
                topics=ledger.topics,
                partitions=ledger.partitions,
                objects=address,
                decision_seconds=PATIENCE_SECONDS,
                view_seconds=PATIENCE_SECONDS,
            )
        )
        feed = ProjectorFeed(
            Projector(dsn, topic=ledger.topics.events),
            log_source(ledger.connection, ledger.topics),
            now=lambda: Micros(wall_clock()),
        )
        owner = OwnerService(
            OwnerSettings(
                connection=ledger.connection, topics=ledger.topics, partitions=ledger.partitions
            ),
            feed,
        )
        stop_owner, stop_feed = asyncio.Event(), asyncio.Event()
        owning = asyncio.create_task(owner.run(stop_owner))
        feeding = asyncio.create_task(feed.run(stop_feed))
        transport = httpx.ASGITransport(app=app)
        reader = ReadsItsWrites()
        hooks: dict[str, list[Callable[..., Any]]] = {
            "request": [reader.before],
            "response": [reader.after],
        }
        try:
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(
                    transport=transport,
                    base_url="http://api",
                    timeout=PATIENCE_SECONDS,
                    event_hooks=hooks,
                ) as client,
            ):
                yield System(ledger, dsn, address, store, client)
        finally:
            stop_owner.set()
            await owning
            stop_feed.set()
            await feeding
            await store.close()


@pytest.fixture
async def system(
    bootstrap: str, topic_prefix: str, dsn: str, tmp_path: Path
) -> AsyncIterator[System]:
    async with system_on(bootstrap, topic_prefix, dsn, str(tmp_path / "objects")) as system:
        yield system


@pytest.fixture
def s3_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-tests")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    bucket = f"test-{secrets.token_hex(6)}"
    client = boto3.session.Session().client("s3", endpoint_url=url, region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    client.close()
    yield f"s3://{bucket}/ledger?endpoint={url}&region=us-east-1"
    server.stop()


# --- A whole life ---------------------------------------------------------------------------------
async def a_whole_life(system: System) -> None:
    """In, out, collected, withdrawn, deleted, recorded; the job itself stays."""
    job = await system.job(payload=LARGE, labels=ADA, result_ttl_seconds=1.0)
    job_id = job["id"]
    lease = await system.said(job_id, "lock", runtime_id="r")
    given = await system.client.get(f"/v1/jobs/{job_id}/payload", follow_redirects=True)
    assert given.json() == LARGE
    done = await system.said(job_id, "result", fence=lease["fence"], output=LARGE)
    output = await system.client.get(f"/v1/jobs/{job_id}/output")
    assert output.json() == LARGE
    both = {done["payload_ref"]["key"], done["result"]["output_ref"]["key"]}
    assert await system.keys() == both
    async with system.cleaner() as cleaner:
        await asyncio.sleep(3 * ROUND_SECONDS)  # It looks, and finds nothing due.
        item = await system.collect(job_id)
        assert item["output_ref"] == done["result"]["output_ref"]
        types = await system.until_told(job_id, "objects_deleted")
        assert types[-3:] == ["collected", "result_withdrawn", "objects_deleted"]
        assert await system.keys() == {done["payload_ref"]["key"]}
        gone = await system.client.get(f"/v1/jobs/{job_id}/output")
        assert gone.json()["code"] == "RESULT_NOT_FOUND"
        after = (await system.client.get(f"/v1/jobs/{job_id}")).json()
        assert (after["status"], after["result"]) == ("succeeded", None)
        assert (await system.collect(job_id))["output_ref"] is None
        assert (cleaner.health()["deleted"], cleaner.health()["failing"]) == (1, 0)
    await nothing_dangles(system)


async def nothing_dangles(system: System) -> None:
    """Whatever the log refers to and has not withdrawn lies in the store (I19), and rows are the
    fold of the log (I20)."""
    referred: set[str] = set()
    outputs: dict[str, str] = {}
    for event in await system.ledger.events():
        match event:
            case (
                JobRequested(payload_ref=Ref(key=key))
                | StepSucceeded(output_ref=Ref(key=key))
                | StepCarried(output_ref=Ref(key=key))
            ):
                referred.add(key)
            case JobSucceeded(job_id=job_id, output_ref=Ref(key=key)):
                outputs[job_id] = key
                referred.add(key)
            case ResultWithdrawn(job_id=job_id):
                referred.discard(outputs.get(job_id, ""))
            case ObjectsDeleted(keys=keys):
                referred -= set(keys)
            case _:
                pass
    assert referred <= await system.keys()
    source = log_source(system.ledger.connection, system.ledger.topics)
    topic = system.ledger.topics.events
    assert await verify(system.dsn, topic=topic, source=source) == []


@pytest.mark.rule("S4.5")
async def test_a_result_lives_until_its_time_is_over_in_a_folder(system: System) -> None:
    await a_whole_life(system)


async def test_a_result_lives_until_its_time_is_over_in_s3(
    bootstrap: str, topic_prefix: str, dsn: str, s3_address: str
) -> None:
    async with system_on(bootstrap, topic_prefix, dsn, s3_address) as system:
        await a_whole_life(system)


async def test_a_link_leads_to_the_bytes(
    bootstrap: str, topic_prefix: str, dsn: str, s3_address: str
) -> None:
    public = s3_address.partition("endpoint=")[2].partition("&")[0]
    address = f"{s3_address}&public={public}"
    async with system_on(bootstrap, topic_prefix, dsn, address) as system:
        job = await system.done()
        answer = await system.client.get(f"/v1/jobs/{job['id']}/output")
        assert answer.status_code == 307
        async with httpx.AsyncClient() as anybody:
            followed = await anybody.get(answer.headers["location"])
        assert followed.json() == LARGE


# --- Nothing early --------------------------------------------------------------------------------
async def test_nothing_goes_before_its_time(system: System) -> None:
    uncollected = await system.done(result_ttl_seconds=0)
    kept = await system.done(result_ttl_seconds=3600)
    forever = await system.done()
    failed = await system.failed(payload=LARGE, failed_ttl_seconds=3600)
    await system.job(payload=LARGE)
    for job in (kept, forever):
        await system.collect(job["id"])
    before = await system.keys()
    due = await system.done(result_ttl_seconds=0)
    await system.collect(due["id"])
    async with system.cleaner(orphan_seconds=0.001):
        await system.until_told(due["id"], "objects_deleted")
        for job in (uncollected, kept, forever, failed):
            assert "withdrawn" not in " ".join(await system.types(job["id"]))
    assert await system.keys() == before
    await nothing_dangles(system)


async def test_a_job_that_failed_for_good_goes_with_its_payload(system: System) -> None:
    job = await system.failed(payload=LARGE, failed_ttl_seconds=0.5)
    job_id = job["id"]
    async with system.cleaner():
        types = await system.until_told(job_id, "objects_deleted")
        assert types[-2:] == ["erased", "objects_deleted"]
        assert (await system.client.get(f"/v1/jobs/{job_id}")).status_code == 404
        listed = (await system.client.get("/v1/jobs")).json()["items"]
        assert (listed, await system.keys()) == ([], set())
    await nothing_dangles(system)


@pytest.mark.rule("S1.9", "S2.5")
async def test_a_rerun_from_where_it_failed_outlives_the_job_it_took_over_from(
    system: System,
) -> None:
    """Over HTTP, with what each step needs fetched by its name."""
    template = {
        "steps": [{"name": "one"}, {"name": "two"}],
        "retry": {"max_attempts": 1},
        "failed_ttl_seconds": 1.0,
    }
    await system.client.put("/v1/queues/default/templates/t", json=template)
    job = await system.done(LARGE, payload=LARGE)
    lease = await system.said(job["id"], "lock", runtime_id="r")
    path = f"/v1/jobs/{job['id']}/steps/{next(iter(lease['input_refs']))}/output"
    assert (await system.client.get(path)).json() == LARGE
    await system.said(job["id"], "fail", fence=lease["fence"], code="X", retryable=False)
    body = {"from_failed": True}
    answer = await system.client.post(f"/v1/jobs/{job['id']}/rerun", json=body)
    again = answer.json()
    assert [step["status"] for step in again["steps"]] == ["succeeded", "pending"]
    lost = "queues/default/commands/c-1/input/c-1-payload.json"
    await system.store.put(lost, b"lost", sha256=sha256(b"lost").hexdigest(), size=4)
    async with system.cleaner(orphan_seconds=0.001) as cleaner:
        await system.until_told(job["id"], "objects_deleted")
        await until(lambda: _value(cleaner.health()["orphans"]), lambda n: n == 1)
    lease = await system.said(again["id"], "lock", runtime_id="r")
    copy = lease["input_refs"]["one"]["key"]
    assert await system.keys() == {again["payload_ref"]["key"], copy}
    given = await system.client.get(f"/v1/jobs/{again['id']}/steps/one/output")
    assert given.json() == LARGE
    done = await system.said(again["id"], "result", fence=lease["fence"], output="end")
    assert done["status"] == "succeeded"
    await nothing_dangles(system)


async def test_inline_results_expire_without_a_store(system: System) -> None:
    system.address = ""
    job = await system.done({"small": 1}, result_ttl_seconds=0.2)
    await system.collect(job["id"])
    async with system.cleaner():
        await system.until_told(job["id"], "result_withdrawn")
        after = (await system.client.get(f"/v1/jobs/{job['id']}")).json()
        assert (after["status"], after["result"]) == ("succeeded", None)


# --- What belongs to nobody -----------------------------------------------------------------------
async def test_orphans_are_swept_and_nothing_else(system: System) -> None:
    job = await system.done(payload=LARGE)
    refused = await system.client.post(f"/v1/jobs/{job['id']}/result", json={"fence": 1})
    assert refused.status_code == 409
    lost = "queues/default/commands/c-1/input/c-1-payload.json"
    await system.store.put(lost, b"lost", sha256=sha256(b"lost").hexdigest(), size=4)
    before = await system.keys()
    async with system.cleaner() as cleaner:
        await asyncio.sleep(3 * ROUND_SECONDS)  # It looks, and finds none that is old enough.
        assert await system.keys() == before
        assert cleaner.health()["orphans"] == 0
    async with system.cleaner(orphan_seconds=0.001) as cleaner:
        await until(lambda: _value(cleaner.health()["orphans"]), lambda n: n == 1)
    assert await system.keys() == before - {lost}
    await nothing_dangles(system)


async def _value(value: Any) -> Any:
    return value


async def test_another_ledgers_objects_are_not_taken_for_orphans(system: System) -> None:
    whose = b"another\n"
    await system.store.put(MARKER, whose, sha256=sha256(whose).hexdigest(), size=len(whose))
    lost = "queues/default/commands/c-1/input/c-1-payload.json"
    await system.store.put(lost, b"lost", sha256=sha256(b"lost").hexdigest(), size=4)
    async with system.cleaner(orphan_seconds=0.001) as cleaner:
        error = await until(lambda: _value(cleaner.health()["last_error"]), lambda e: e is not None)
    assert "another ledger" in error
    assert await system.keys() == {lost}


# --- An owner goes --------------------------------------------------------------------------------
async def operation(system: System, location: str) -> dict[str, Any]:
    return dict((await system.client.get(location)).json())


async def test_an_owners_objects_go_and_nobody_elses(system: System, tmp_path: Path) -> None:
    done = await system.done(payload=LARGE, labels=ADA)
    elsewhere = await system.done(labels={"user": "ada"}, queue="other")
    stranger = await system.done(payload=LARGE, labels={"user": "adam"})
    still_open = await system.job(payload=LARGE, labels=ADA)
    lost = "users/ada/tasks/x/input/c-1-payload.json"
    await system.store.put(lost, b"lost", sha256=sha256(b"lost").hexdigest(), size=4)
    long_ago = (wall_clock() - 2 * UPLOAD_US) / SECOND
    for file in (tmp_path / "objects" / "users").rglob("c-1-*"):
        os.utime(file, (long_ago, long_ago))  # Nobody will send its command any more.
    answer = await system.client.delete("/v1/owners/ada")
    assert answer.status_code == 202
    location = answer.headers["location"]
    async with system.cleaner():
        for job in (done, elsewhere):
            types = await system.until_told(job["id"], "objects_deleted")
            assert types[-2:] == ["result_withdrawn", "objects_deleted"]
        assert (await operation(system, location))["status"] == "running"
        newer = await system.done(payload=LARGE, labels=ADA)
        await system.client.post(f"/v1/jobs/{still_open['id']}/cancel")
        ended = await until(
            lambda: operation(system, location), lambda told: told["status"] == "ended"
        )
        assert ended["matched"] == 5  # Payloads and outputs of three jobs, and what was lost.
    assert {key for key in await system.keys() if key.startswith("users/ada/")} == {
        newer["payload_ref"]["key"],
        newer["result"]["output_ref"]["key"],
    }
    assert stranger["payload_ref"]["key"] in await system.keys()
    after = (await system.client.get(f"/v1/jobs/{done['id']}")).json()
    assert (after["payload_ref"], after["result"]) == (None, None)
    again = await system.client.post(f"/v1/jobs/{done['id']}/rerun")
    assert again.json()["code"] == "VALIDATION_FAILED"
    await nothing_dangles(system)


async def test_a_project_goes_alone_and_another_cleaner_ends_it(system: System) -> None:
    of_project = await system.done(labels=ADA)
    other = await system.done(labels={"user": "ada", "project": "q"})
    still_open = await system.job(payload=LARGE, labels=ADA)
    answer = await system.client.delete("/v1/owners/ada/projects/p")
    location = answer.headers["location"]
    async with system.cleaner():
        await system.until_told(of_project["id"], "objects_deleted")
    await system.client.post(f"/v1/jobs/{still_open['id']}/cancel")
    async with system.cleaner():
        await until(lambda: operation(system, location), lambda told: told["status"] == "ended")
    assert await system.keys() == {other["result"]["output_ref"]["key"]}
    await nothing_dangles(system)


# --- The store is away ----------------------------------------------------------------------------
async def test_while_the_store_is_away_nothing_is_lost(system: System, tmp_path: Path) -> None:
    folder, hidden = tmp_path / "objects", tmp_path / "hidden"
    job = await system.done(result_ttl_seconds=0.2)
    await system.collect(job["id"])
    folder.rename(hidden)
    folder.write_text("no folder")
    refused = await system.client.post("/v1/jobs", json={"type": "t", "payload": LARGE})
    assert (refused.status_code, refused.json()["code"]) == (503, "STORE_UNAVAILABLE")
    ready = await system.client.get("/readyz")
    assert (ready.status_code, "objects" in ready.json()["checks"]) == (503, True)
    async with system.cleaner() as cleaner:
        await system.until_told(job["id"], "result_withdrawn")
        await until(lambda: _value(cleaner.health()["failing"]), lambda n: n > 0)
        assert "objects_deleted" not in await system.types(job["id"])
        folder.unlink()
        hidden.rename(folder)
    async with system.cleaner() as cleaner:
        await system.until_told(job["id"], "objects_deleted")
    assert await system.keys() == set()
    await nothing_dangles(system)
