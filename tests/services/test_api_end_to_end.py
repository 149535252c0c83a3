"""The HTTP side over a real broker, a real owner and real views."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from api.app import create_app
from api.settings import Settings
from cli.local import answers
from ledger.domain.ids import SECOND, Micros
from ledger.embedded.processes import Child, free_ports
from ledger.log.offsets import Offsets
from ledger.log.partitions import partition_of
from processors.owner.credit import LISTED_US
from processors.owner.seams import wall_clock
from processors.owner.service import OwnerService, OwnerSettings
from projections.feed import ProjectorFeed
from projections.log_source import log_source
from projections.projector import Projector
from projections.schema import migrate
from tests.support.ledger import Ledger, ledger_on

PATIENCE_SECONDS = 30
UNKNOWN = "default.01890000-0000-7000-8000-000000000000"
TWO_QUEUES = next(
    [a, b]
    for a in ("q0", "q1")
    for b in (f"p{n}" for n in range(100))
    if partition_of(a, 2) == 0 and partition_of(b, 2) == 1
)
"""In two partitions."""


@asynccontextmanager
async def worker(ledger: Ledger, dsn: str) -> AsyncIterator[None]:
    """An owner and a projector, as one process runs them."""
    feed = ProjectorFeed(
        Projector(dsn, topic=ledger.topics.events),
        log_source(ledger.connection, ledger.topics),
        now=lambda: Micros(wall_clock()),
    )
    settings = OwnerSettings(
        connection=ledger.connection, topics=ledger.topics, partitions=ledger.partitions
    )
    owner = OwnerService(settings, feed)
    stop_owner, stop_feed = asyncio.Event(), asyncio.Event()
    owning = asyncio.create_task(owner.run(stop_owner))
    feeding = asyncio.create_task(feed.run(stop_feed))
    try:
        yield
    finally:
        stop_owner.set()
        await owning
        stop_feed.set()
        await feeding


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@pytest.fixture
async def app(ledger: Ledger, dsn: str) -> AsyncIterator[Starlette]:
    migrate(dsn)
    settings = Settings(
        connection=ledger.connection,
        dsn=dsn,
        topics=ledger.topics,
        partitions=ledger.partitions,
        decision_seconds=PATIENCE_SECONDS,
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://api", timeout=PATIENCE_SECONDS
    ) as client:
        yield client


@pytest.fixture
async def doomed(
    ledger: Ledger, dsn: str, server_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """Where an api answers that dies of its second reply: of that which says what a claim that
    waited was granted."""
    environment = {
        "LEDGER_KAFKA": ledger.connection.bootstrap,
        "LEDGER_POSTGRES": dsn,
        "LEDGER_PREFIX": ledger.topics.prefix,
        "LEDGER_PARTITIONS": str(ledger.partitions),
        "LEDGER_CRASH_AT": "gateway.after_reply:2",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    [port] = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "cli.main", "api", "--port", str(port)]
    child = Child(words, log=server_directory / "api.log", directory=Path.cwd())
    try:
        await asyncio.to_thread(
            lambda: child.wait_until(
                lambda _: answers(f"{address}/healthz"), name="the api", seconds=PATIENCE_SECONDS
            )
        )
        yield address
    finally:
        child.kill()


@pytest.fixture
async def running(ledger: Ledger, dsn: str, app: Starlette) -> AsyncIterator[None]:
    async with worker(ledger, dsn):
        yield


async def until(ask: Callable[[], Any], holds: Callable[[httpx.Response], bool]) -> httpx.Response:
    """Asks until the answer is as wanted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer: httpx.Response = await ask()
            if holds(answer):
                return answer
            await asyncio.sleep(0.05)  # Between two looks, not for luck.


async def beaten(ledger: Ledger, client: httpx.AsyncClient) -> None:
    """Until the owner has read a gateway's first beat: it lies behind its claim."""
    partition = partition_of("default", ledger.partitions)
    async with Offsets(ledger.connection) as offsets, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await offsets.end(ledger.topics.commands, partition) >= 2:
                break
            await asyncio.sleep(0.05)  # Between two looks, not for luck.
    answer = await client.post(f"/v1/jobs/{UNKNOWN}/lock", json={"runtime_id": "r"})
    assert answer.status_code == 404, "what lies behind the beat is decided"


async def new_job(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/jobs", json={"type": "sum", **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.mark.rule("S2.1")
@pytest.mark.usefixtures("running")
async def test_a_payload_that_does_not_fit_is_refused_without_the_log(
    ledger: Ledger, client: httpx.AsyncClient
) -> None:
    """Once the api has seen the template; the owner says the same before that."""
    path = "/v1/queues/default/templates/sum"
    schema = {"properties": {"a": {"type": "array"}}, "required": ["a"]}
    await client.put(path, json={"payload_schema": schema})
    partition = partition_of("default", ledger.partitions)
    answers: list[object] = []
    async with Offsets(ledger.connection) as offsets, asyncio.timeout(PATIENCE_SECONDS):
        end = -1
        while end != (before := await offsets.end(ledger.topics.requests, partition)):
            end = before
            answer = await client.post("/v1/jobs", json={"type": "sum", "payload": {"a": 1}})
            answers.append((answer.status_code, answer.json()))
            if end != await offsets.end(ledger.topics.requests, partition):
                await asyncio.sleep(0.05)  # Between two looks, not for luck.
    assert end >= 1, "the first came to the owner"
    assert answers[0] == answers[-1]
    await client.put(path, json={"payload_schema": {"required": ["b"]}})
    assert (await new_job(client, payload={"b": 1}))["template_version"] == 2


@pytest.mark.usefixtures("running")
async def test_a_job_from_its_request_to_its_output(client: httpx.AsyncClient) -> None:
    job = await new_job(client, payload={"a": [1, 2]}, labels={"user": "ada"})
    path = f"/v1/jobs/{job['id']}"
    claimed = await client.post(
        "/v1/runtimes/r1/claim", json={"queues": ["default"], "types": ["sum"]}
    )
    [lease] = claimed.json()["items"]
    assert (lease["job_id"], lease["job"]["payload"]) == (job["id"], {"a": [1, 2]})
    fence = lease["fence"]
    assert (await client.post(f"{path}/start", json={"fence": fence})).status_code == 200
    beat = await client.post(
        f"{path}/heartbeat", json={"fence": fence, "progress": {"percent": 50}}
    )
    assert beat.json()["cancel_requested"] is False
    done = await client.post(f"{path}/result", json={"fence": fence, "output": {"sum": 3}})
    assert done.json()["status"] == "succeeded"

    headers = {"Ledger-Min-Position": done.headers["ledger-position"]}
    read = await client.get(path, headers=headers)
    assert read.json() == done.json()
    assert read.headers["etag"] == done.headers["etag"]
    assert (await client.get(f"{path}/output")).json() == {"sum": 3}
    events = (await client.get(f"{path}/events")).json()["items"]
    assert [one["seq"] for one in events] == list(range(1, read.json()["version"] + 1))
    assert events[-1]["type"] == "ledger.job.succeeded.v1"
    [attempt] = (await client.get(f"{path}/attempts")).json()["items"]
    assert (attempt["runtime_id"], attempt["how"]) == ("r1", "succeeded")
    was = await client.get(path, params={"as_of": "1"})
    assert was.json()["status"] == "pending"
    listed = await client.get("/v1/jobs", params={"label.user": "ada", "status": "succeeded"})
    assert [one["id"] for one in listed.json()["items"]] == [job["id"]]
    queue = (await client.get("/v1/queues/default")).json()
    assert queue["counts"]["succeeded"] == 1


@pytest.mark.usefixtures("running")
async def test_reads_follow_writes_by_position(client: httpx.AsyncClient) -> None:
    for number in range(10):
        created = await client.post("/v1/jobs", json={"type": "sum", "payload": number})
        headers = {"Ledger-Min-Position": created.headers["ledger-position"]}
        listed = await client.get("/v1/jobs", params={"limit": 1}, headers=headers)
        assert listed.json()["items"][0]["id"] == created.json()["id"]


@pytest.mark.usefixtures("running")
async def test_what_is_read_right_after_a_write_is_found(client: httpx.AsyncClient) -> None:
    job = await new_job(client)
    assert (await client.get(f"/v1/jobs/{job['id']}")).status_code == 200
    assert (await client.get(f"/v1/jobs/{UNKNOWN}")).status_code == 404


@pytest.mark.usefixtures("running")
async def test_keys(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "k"}
    answers = await asyncio.gather(
        *(client.post("/v1/jobs", json={"type": "sum"}, headers=key) for _ in range(10))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = await client.post("/v1/jobs", json={"type": "sum", "payload": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    path = f"/v1/jobs/{answers[0].json()['id']}"
    locks = [
        await client.post(f"{path}/lock", json={"runtime_id": "r1"}, headers=key) for _ in range(2)
    ]
    assert [lock.json()["fence"] for lock in locks] == [1, 1]
    assert locks[1].headers["idempotency-replayed"] == "true"
    cancels = [await client.post(f"{path}/cancel", headers=key) for _ in range(2)]
    assert [cancel.status_code for cancel in cancels] == [200, 200]
    assert cancels[0].json()["status"] == "cancelling"


@pytest.mark.usefixtures("running")
async def test_a_version_that_was_is_refused_at_once_whatever_the_views_show(
    client: httpx.AsyncClient,
) -> None:
    for _ in range(10):
        job = await new_job(client)
        path = f"/v1/jobs/{job['id']}"
        await client.post(f"{path}/lock", json={"runtime_id": "r1"})
        stale = await client.post(f"{path}/start", json={"fence": 1}, headers={"If-Match": '"1"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "PRECONDITION_FAILED")
        now = await client.post(f"{path}/start", json={"fence": 1}, headers={"If-Match": '"2"'})
        assert now.status_code == 200


@pytest.mark.usefixtures("running")
async def test_keyed_words_that_change_nothing_are_remembered(client: httpx.AsyncClient) -> None:
    path = f"/v1/jobs/{(await new_job(client))['id']}"
    await client.post(f"{path}/lock", json={"runtime_id": "r1"})
    await client.post(f"{path}/progress", json={"fence": 1, "percent": 1})
    key = {"Idempotency-Key": "k"}
    for word in ("progress", "heartbeat", "start"):
        body = {"fence": 1} | ({"percent": 2} if word == "progress" else {})
        first, again = [
            await client.post(f"{path}/{word}", json=body, headers=key) for _ in range(2)
        ]
        assert (first.status_code, again.status_code) == (200, 200)
        assert first.json() == again.json()
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        other = await client.post(f"{path}/{word}", json={"fence": 9}, headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.usefixtures("running")
async def test_one_of_many_wins_a_lock(client: httpx.AsyncClient) -> None:
    job = await new_job(client)
    answers = await asyncio.gather(
        *(
            client.post(f"/v1/jobs/{job['id']}/lock", json={"runtime_id": f"r{number}"})
            for number in range(10)
        )
    )
    codes = [answer.json().get("code") for answer in answers]
    assert sorted(map(str, codes)) == ["JOB_ALREADY_LOCKED"] * 9 + ["None"]


@pytest.mark.usefixtures("running")
async def test_a_claim_waits_over_two_partitions(client: httpx.AsyncClient) -> None:
    body = {"queues": TWO_QUEUES, "types": ["sum"], "wait_seconds": 20, "limit": 2}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await until(lambda: client.get("/metrics"), lambda answer: "awaited 2.0" in answer.text)
    job = await new_job(client, queue=TWO_QUEUES[1])
    [lease] = (await claiming).json()["items"]
    assert lease["job_id"] == job["id"]
    # The other partition's owner still has the claim parked: what it grants is given back.
    surplus = await new_job(client, queue=TWO_QUEUES[0])
    answer = await until(
        lambda: client.get(f"/v1/jobs/{surplus['id']}/attempts"),
        lambda answer: [one["how"] for one in answer.json()["items"]] == ["released"],
    )
    assert answer.status_code == 200
    assert (await client.get(f"/v1/jobs/{surplus['id']}")).json()["attempt"] == 0


@pytest.mark.usefixtures("running")
async def test_a_job_that_was_granted_to_an_api_as_it_died_goes_to_another_runtime(
    ledger: Ledger, client: httpx.AsyncClient, doomed: str
) -> None:
    body = {"queues": ["default"], "types": ["sum"], "wait_seconds": 25}
    async with httpx.AsyncClient(base_url=doomed, timeout=PATIENCE_SECONDS) as dying:
        claiming = asyncio.create_task(dying.post("/v1/runtimes/r1/claim", json=body))
        await beaten(ledger, client)
        job = await new_job(client, lease_seconds=120)
        with pytest.raises(httpx.TransportError):
            await claiming
    answer = await client.post("/v1/runtimes/r2/claim", json=body)
    [lease] = answer.json()["items"]
    assert (lease["job_id"], lease["attempt"], lease["fence"]) == (job["id"], 1, 2)
    headers = {"Ledger-Min-Position": answer.headers["ledger-position"]}
    history = await client.get(f"/v1/jobs/{job['id']}/events", headers=headers)
    assert [one["type"] for one in history.json()["items"]] == [
        "ledger.job.requested.v1",
        "ledger.job.lease_granted.v1",
        "ledger.job.lease_released.v1",
        "ledger.job.lease_granted.v1",
    ]


@pytest.mark.usefixtures("running")
async def test_a_claim_that_was_handed_over_is_its_callers_for_the_whole_lease(
    ledger: Ledger, client: httpx.AsyncClient
) -> None:
    body = {"queues": ["default"], "types": ["sum"], "wait_seconds": 20}
    waiting = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await beaten(ledger, client)
    job = await new_job(client)
    [lease] = (await waiting).json()["items"]
    other = await client.post(
        "/v1/runtimes/r2/claim", json={**body, "wait_seconds": LISTED_US / SECOND + 1}
    )
    assert other.json() == {"items": []}
    path, fence = f"/v1/jobs/{job['id']}", lease["fence"]
    done = await client.post(f"{path}/result", json={"fence": fence, "output": 1})
    assert done.json()["status"] == "succeeded"


async def test_an_empty_keyed_claim_is_empty_again_elsewhere_and_after_a_take_over(
    ledger: Ledger, dsn: str, app: Starlette, client: httpx.AsyncClient
) -> None:
    async def claimed(client: httpx.AsyncClient) -> httpx.Response:
        body = {"queues": ["default"], "types": ["sum"], "wait_seconds": 0.2}
        return await client.post(
            "/v1/runtimes/r/claim", json=body, headers={"Idempotency-Key": "k"}
        )

    async with worker(ledger, dsn):
        assert (await claimed(client)).json() == {"items": []}
    another = create_app(app.state.services.settings)
    transport = httpx.ASGITransport(app=another)
    async with (
        worker(ledger, dsn),
        another.router.lifespan_context(another),
        httpx.AsyncClient(transport=transport, base_url="http://b", timeout=30) as elsewhere,
    ):
        await new_job(elsewhere)
        again = await claimed(elsewhere)
    assert again.json() == {"items": []}
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.usefixtures("running")
async def test_an_empty_claim_ends_with_its_wait(client: httpx.AsyncClient) -> None:
    body = {"queues": ["default"], "types": ["sum"], "wait_seconds": 0.2}
    answer = await client.post("/v1/runtimes/r1/claim", json=body)
    assert (answer.status_code, answer.json()) == (200, {"items": []})


async def test_a_parked_claim_outlives_its_owner(
    ledger: Ledger, dsn: str, client: httpx.AsyncClient
) -> None:
    body = {"queues": ["default"], "types": ["sum"], "wait_seconds": 30}
    async with worker(ledger, dsn):
        await new_job(client, type="other")
        claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
        await until(lambda: client.get("/metrics"), lambda answer: "awaited 1.0" in answer.text)
        await new_job(client, type="other")  # Decided behind the claim: that is parked by now.
    async with worker(ledger, dsn):
        job = await new_job(client)
        [lease] = (await claiming).json()["items"]
    assert lease["job_id"] == job["id"]


async def test_without_an_owner_a_write_is_202_and_its_outcome_comes(
    ledger: Ledger, dsn: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/v1/jobs", json={"type": "sum"}, headers={"Prefer": "wait=0"})
    location = answer.headers["location"]
    assert answer.status_code == 202
    assert answer.json()["topic"] == ledger.topics.requests
    assert (await client.get(location)).json()["status"] == "pending"
    async with worker(ledger, dsn):
        decided = await until(
            lambda: client.get(location), lambda answer: answer.json()["status"] == "decided"
        )
        assert decided.json()["outcome"] == "accepted"
        job = await client.get(f"/v1/jobs/{decided.json()['job_id']}")
        assert job.json()["status"] == "pending"


@pytest.mark.usefixtures("running")
async def test_a_bulk_cancel_over_all_partitions(client: httpx.AsyncClient) -> None:
    for queue in TWO_QUEUES:
        await new_job(client, queue=queue, scope="s")
    kept = await new_job(client, queue=TWO_QUEUES[0], scope="t")
    await client.get(f"/v1/jobs/{kept['id']}")
    answer = await client.post("/v1/jobs/cancel", json={"where": {"scope": "s"}, "reason": "r"})
    assert answer.status_code == 202, answer.text
    location = answer.headers["location"]
    ended = await until(
        lambda: client.get(location),
        lambda answer: answer.status_code == 200 and answer.json()["status"] == "ended",
    )
    assert (ended.json()["matched"], ended.json()["confirmed"]) == (2, 2)
    listed = await client.get("/v1/jobs", params={"status": "cancelled"})
    assert len(listed.json()["items"]) == 2
    assert (await client.get(f"/v1/jobs/{kept['id']}")).json()["status"] == "pending"


@pytest.mark.usefixtures("running")
async def test_ready(client: httpx.AsyncClient) -> None:
    answer = await client.get("/readyz")
    assert answer.status_code == 200, answer.text
