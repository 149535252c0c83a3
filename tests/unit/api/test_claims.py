"""Claim and poll; and that no grant is left with a caller who has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Message

from api import claims
from ledger.domain.commands import Claim, ReleaseLease
from ledger.domain.ids import QueueName
from ledger.log.partitions import partition_of
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import PARTITIONS, Client, World, app_over, client_over

ONE_QUEUE = {"queues": ["default"], "types": ["t"]}
KEY = {"Idempotency-Key": "k"}


def queues_of_partitions() -> list[str]:
    """One queue in each partition."""
    names = (f"q{number}" for number in range(1000))
    by_partition: dict[int, str] = {}
    for name in names:
        by_partition.setdefault(partition_of(name, PARTITIONS), name)
    return [by_partition[number] for number in range(PARTITIONS)]


QUEUES = queues_of_partitions()
ALL_QUEUES = {"queues": QUEUES, "types": ["t"]}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (of plain state)
            await asyncio.sleep(0.001)


def released(world: World) -> list[tuple[str, int]]:
    commands = (sent.command for sent in world.sent)
    return [(c.job_id, c.fence) for c in commands if isinstance(c, ReleaseLease)]


# --- One partition -------------------------------------------------------------------------------
async def test_a_claim_leases_by_priority(client: Client) -> None:
    await client.job(priority=9)
    first = await client.job(priority=0)
    answer = await client.post("/v1/runtimes/r1/claim", json=ONE_QUEUE)
    [item] = answer.json()["items"]
    assert item["job_id"] == first["id"]
    assert item["job"]["lease"]["runtime_id"] == "r1"
    assert item.keys() >= {"job_id", "step", "attempt", "fence", "lease_expires_at", "job"}
    assert client.world.sent[-1].actor == "api:r1"


async def test_nothing_to_claim(client: Client) -> None:
    answer = await client.post("/v1/runtimes/r1/claim", json=ONE_QUEUE)
    assert (answer.status_code, answer.json()) == (200, {"items": []})


async def test_a_claim_takes_no_more_than_its_limit(client: Client) -> None:
    for _ in range(3):
        await client.job()
    answer = await client.post("/v1/runtimes/r1/claim", json={**ONE_QUEUE, "limit": 2})
    assert len(answer.json()["items"]) == 2


async def test_a_claim_waits_for_a_job(client: Client) -> None:
    body = {**ONE_QUEUE, "wait_seconds": 5}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await until(lambda: bool(client.world.parked))
    job = await client.job()
    [item] = (await claiming).json()["items"]
    assert item["job_id"] == job["id"]
    assert released(client.world) == []


async def test_a_claim_is_empty_after_its_wait(client: Client) -> None:
    body = {**ONE_QUEUE, "wait_seconds": 5}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await until(lambda: bool(client.world.parked))
    client.world.end_waits()
    assert (await claiming).json() == {"items": []}


async def test_a_parked_claim_is_sent_again_to_a_new_owner(client: Client) -> None:
    body = {**ONE_QUEUE, "wait_seconds": 5}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await until(lambda: bool(client.world.parked))
    client.world.change_owner(partition_of("default", PARTITIONS))
    assert not client.world.parked
    await until(lambda: bool(client.world.parked))
    ids = {s.command_id for s in client.world.sent if isinstance(s.command, Claim)}
    assert len(ids) == 1
    job = await client.job()
    assert (await claiming).json()["items"][0]["job_id"] == job["id"]


async def test_an_undecided_claim_is_202_and_gives_back_what_comes_late(client: Client) -> None:
    job = await client.job()
    client.world.silent = True
    answer = await client.post("/v1/runtimes/r1/claim", json=ONE_QUEUE)
    assert answer.status_code == 202
    client.world.silent = False
    late = client.world.read_again(answer.json()["command_id"])
    client.world.decide(client.world.log_of(job["id"]), late)
    await until(lambda: bool(released(client.world)))
    assert released(client.world) == [(job["id"], 1)]
    assert (await client.get(f"/v1/jobs/{job['id']}")).json()["status"] == "pending"


# --- Several partitions --------------------------------------------------------------------------
async def test_partitions_are_asked_in_turn_for_what_is_left(client: Client) -> None:
    for queue in QUEUES[:3]:
        await client.job(queue=queue)
    answer = await client.post("/v1/runtimes/r1/claim", json={**ALL_QUEUES, "limit": 2})
    assert [item["job"]["queue"] for item in answer.json()["items"]] == QUEUES[:2]
    claims = [s.command for s in client.world.sent if isinstance(s.command, Claim)]
    assert [claim.limit for claim in claims] == [2, 1]
    assert released(client.world) == []


async def test_a_wait_over_several_partitions_gives_any_surplus_back(client: Client) -> None:
    body = {**ALL_QUEUES, "wait_seconds": 5}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await until(lambda: len(client.world.parked) == PARTITIONS)
    jobs = {(await client.job(queue=queue))["id"] for queue in QUEUES[1:3]}
    [item] = (await claiming).json()["items"]
    await until(lambda: bool(released(client.world)))
    [(surplus, _)] = released(client.world)
    assert {item["job_id"], surplus} == jobs
    for queue in (QUEUES[0], QUEUES[3]):  # Granted after the answer: given back, too.
        await client.job(queue=queue)
    await until(lambda: len(released(client.world)) == 3)
    assert item["job_id"] not in {job_id for job_id, _ in released(client.world)}
    assert (await client.get(f"/v1/jobs/{surplus}")).json()["attempt"] == 0


async def test_a_wait_over_several_partitions_ends_empty(client: Client) -> None:
    body = {**ALL_QUEUES, "wait_seconds": 5}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await until(lambda: len(client.world.parked) == PARTITIONS)
    client.world.end_waits()
    assert (await claiming).json() == {"items": []}


async def test_a_silent_owner_does_not_hide_the_others_jobs(client: Client) -> None:
    job = await client.job(queue=QUEUES[1])
    decide, silent = client.world.decide, client.world.logs[0]
    client.world.decide = (  # type: ignore[method-assign]
        lambda log, asked: None if log is silent else decide(log, asked)
    )
    answer = await client.post("/v1/runtimes/r1/claim", json=ALL_QUEUES)
    assert [item["job_id"] for item in answer.json()["items"]] == [job["id"]]


# --- Keyed ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("queues", [["default"], QUEUES])
async def test_a_replayed_claim_gives_the_same_answer(client: Client, queues: list[str]) -> None:
    await client.job(queue=queues[-1])
    body = {"queues": queues, "types": ["t"], "limit": 5}
    first = await client.post("/v1/runtimes/r1/claim", json=body, headers=KEY)
    await client.job(queue=queues[-1])
    again = await client.post("/v1/runtimes/r1/claim", json=body, headers=KEY)
    assert len(first.json()["items"]) == 1
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    [lease] = first.json()["items"]
    await client.post(f"/v1/jobs/{lease['job_id']}/result", json={"fence": lease["fence"]})
    async with client_over(client.world) as other:
        elsewhere = await other.post("/v1/runtimes/r1/claim", json=body, headers=KEY)
    assert elsewhere.json() == first.json()


@pytest.mark.parametrize("queues", [["default"], QUEUES])
@pytest.mark.parametrize("wait_seconds", [0, 5])
async def test_an_empty_claim_is_replayed_empty_by_any_gateway(
    client: Client, queues: list[str], wait_seconds: float
) -> None:
    body = {"queues": queues, "types": ["t"], "wait_seconds": wait_seconds}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body, headers=KEY))
    if wait_seconds:
        await until(lambda: len(client.world.parked) == len(queues))
        client.world.end_waits()
    assert (await claiming).json() == {"items": []}
    await client.job(queue=queues[-1])
    async with client_over(client.world) as other:
        elsewhere = await other.post("/v1/runtimes/r1/claim", json=body, headers=KEY)
    assert elsewhere.json() == {"items": []}
    assert elsewhere.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("queues", [["default"], QUEUES])
@pytest.mark.parametrize(("headers", "status"), [({}, 200), (KEY, 202)])
async def test_without_its_owners_last_word_only_a_claim_without_a_key_is_empty(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    queues: list[str],
    headers: dict[str, str],
    status: int,
) -> None:
    monkeypatch.setattr(claims, "GRACE_SECONDS", 0.0)
    body = {"queues": queues, "types": ["t"], "wait_seconds": 0.3}
    answer = await client.post("/v1/runtimes/r1/claim", json=body, headers=headers)
    assert answer.status_code == status


async def test_a_claim_under_the_key_of_another(client: Client) -> None:
    await client.post("/v1/runtimes/r1/claim", json=ONE_QUEUE, headers=KEY)
    other = await client.post("/v1/runtimes/r1/claim", json=ALL_QUEUES, headers=KEY)
    assert code_of(other) == (422, "IDEMPOTENCY_KEY_REUSED")


# --- Callers who leave ---------------------------------------------------------------------------
class Leaver:
    """Calls the app as a server does, and can hang up."""

    def __init__(self, world: World, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.world = world
        self.hung_up = asyncio.Event()
        self.sent: list[Message] = []
        self._messages: list[Message] = [{"type": "http.request", "body": body}]
        self._scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        }

    async def call(self, app: Any) -> None:
        await app(self._scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.fixture
async def app(world: World) -> AsyncIterator[Any]:
    app = app_over(world)
    async with app.router.lifespan_context(app):
        yield app


async def test_who_hangs_up_while_waiting_is_granted_nothing(world: World, app: Any) -> None:
    body = b'{"queues": ["default"], "types": ["t"], "wait_seconds": 5}'
    leaver = Leaver(world, "/v1/runtimes/r1/claim", body, {})
    calling = asyncio.create_task(leaver.call(app))
    await until(lambda: bool(world.parked))
    leaver.hung_up.set()
    await calling
    assert leaver.sent == []
    async with client_over(world) as client:
        job = await client.job()
        # Its claim is still parked at the owner, which knows nothing of clients.
        await until(lambda: bool(released(world)))
        assert released(world) == [(job["id"], 1)]


async def test_who_hangs_up_during_a_lock_does_not_hold_it(world: World, app: Any) -> None:
    async with client_over(world) as client:
        job = await client.job()
    world.silent = True
    leaver = Leaver(world, f"/v1/jobs/{job['id']}/lock", b'{"runtime_id": "r1"}', {})
    world.has_sent.clear()
    calling = asyncio.create_task(leaver.call(app))
    await world.has_sent.wait()
    leaver.hung_up.set()
    await calling
    world.silent = False
    world.decide(world.log_of(job["id"]), world.read_again(world.sent[-1].command_id))
    await until(lambda: bool(released(world)))
    assert released(world) == [(job["id"], 1)]


async def test_who_asked_under_a_key_gets_it_by_asking_again(world: World, app: Any) -> None:
    body = b'{"queues": ["default"], "types": ["t"], "wait_seconds": 5}'
    leaver = Leaver(world, "/v1/runtimes/r1/claim", body, KEY)
    calling = asyncio.create_task(leaver.call(app))
    await until(lambda: bool(world.parked))
    leaver.hung_up.set()
    await calling
    async with client_over(world) as client:
        job = await client.job()
    repeat = Leaver(world, "/v1/runtimes/r1/claim", body, KEY)
    await repeat.call(app)
    assert repeat.sent[0]["status"] == 200
    assert job["id"].encode() in repeat.sent[1]["body"]
    assert released(world) == []


async def test_a_real_server_tells_of_a_client_that_gave_up(world: World) -> None:
    server = uvicorn.Server(uvicorn.Config(app_over(world), port=0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    body = {**ONE_QUEUE, "wait_seconds": 30}
    async with Client(base_url=f"http://127.0.0.1:{port}") as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/runtimes/r1/claim", json=body, timeout=0.2)
        job = await client.job()
        await until(lambda: bool(released(world)))
        assert released(world) == [(job["id"], 1)]
    server.should_exit = True
    await serving


# --- Poll ----------------------------------------------------------------------------------------
async def test_poll_shows_and_takes_nothing(client: Client) -> None:
    late = await client.job(priority=9)
    soon = await client.job(priority=0)
    await client.job(type="other")
    answer = await client.post("/v1/runtimes/r1/poll", json=ONE_QUEUE)
    assert [job["id"] for job in answer.json()["items"]] == [soon["id"], late["id"]]
    assert all(job["status"] == "pending" for job in answer.json()["items"])


async def test_a_runtime_id_may_hold_any_text(client: Client) -> None:
    await client.job()
    answer = await client.post("/v1/runtimes/a%2Fb%20c/claim", json=ONE_QUEUE)
    assert answer.json()["items"][0]["job"]["lease"]["runtime_id"] == "a/b c"


@pytest.mark.parametrize(
    ("path", "change", "pointer"),
    [
        ("claim", {"limit": 0}, "/limit"),
        ("claim", {"limit": 51}, "/limit"),
        ("poll", {"limit": 51}, "/limit"),
        ("claim", {"wait_seconds": 30.5}, "/wait_seconds"),
        ("claim", {"queues": []}, "/queues"),
        ("claim", {"queues": ["A"]}, "/queues/0"),
        ("poll", {"types": ["ok", "-"]}, "/types/1"),
        ("claim", {"runtime_id": "x"}, "/runtime_id"),
    ],
)
async def test_a_wrong_field(
    client: Client, path: str, change: dict[str, Any], pointer: str
) -> None:
    answer = await client.post(f"/v1/runtimes/r1/{path}", json={**ONE_QUEUE, **change})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [pointer]


async def test_a_runtime_id_has_a_bound(client: Client) -> None:
    answer = await client.post(f"/v1/runtimes/{'r' * 257}/claim", json=ONE_QUEUE)
    assert code_of(answer) == (422, "VALIDATION_FAILED")


def test_queues_of_partitions() -> None:
    assert [partition_of(QueueName(queue), PARTITIONS) for queue in QUEUES] == [0, 1, 2, 3]
