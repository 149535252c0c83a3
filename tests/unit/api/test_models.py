"""Models over HTTP, their calls, and that no secret leaves unsealed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ledger.domain.commands import PutModel, RequestJob
from ledger.sealing.forward_headers import open_headers
from ledger.sealing.sealed import open_sealed
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import KEYRING, Client, World, client_over

PATH = "/v1/models/gpt"
BODY: dict[str, Any] = {"base_url": "https://models.example/v1", "route": "/chat"}
SECRET = "sk-0123456789abcdef"


async def put(client: Client, **fields: Any) -> dict[str, Any]:
    answer = await client.put(PATH, json={**BODY, **fields})
    assert answer.status_code in (200, 201), answer.text
    return dict(answer.json())


@pytest.fixture
async def keyless() -> AsyncIterator[Client]:
    world = World()
    world.settings = replace(world.settings, keyring=None)
    async with client_over(world) as client:
        yield client


async def test_a_model_is_read_without_its_key(client: Client) -> None:
    answer = await client.put(PATH, json={**BODY, "api_key": SECRET, "max_concurrency": 2})
    assert (answer.status_code, answer.headers["location"]) == (201, PATH)
    model = answer.json()
    assert model["has_api_key"] is True
    assert "api_key" not in model
    assert (model["method"], model["timeout_seconds"]) == ("POST", 120)
    assert (model["retry"]["position"], model["retry"]["max_attempts"]) == ("tail", 4)
    assert (await client.get(PATH)).json() == model
    assert (await client.get("/v1/models")).json()["items"] == [model]
    assert SECRET not in (await client.get("/v1/models")).text


async def test_the_key_is_sealed_before_the_log(client: Client) -> None:
    await put(client, api_key=SECRET)
    command = client.world.sent[-1].command
    assert isinstance(command, PutModel)
    sealed = command.model.api_key
    assert isinstance(sealed, str)
    assert SECRET not in sealed
    assert open_sealed(KEYRING, sealed, context="models/gpt/api_key") == SECRET.encode()
    assert SECRET not in repr(client.world.history) + repr(client.world.said)


async def test_put_without_a_key_keeps_it_and_null_removes_it(client: Client) -> None:
    await put(client, api_key=SECRET)
    changed = await client.put(PATH, json={**BODY, "timeout_seconds": 9})
    assert (changed.status_code, changed.json()["has_api_key"]) == (200, True)
    assert (await put(client, api_key=None))["has_api_key"] is False


async def test_equal_content_is_no_news(client: Client) -> None:
    await put(client)
    said = len(client.world.said)
    assert (await client.put(PATH, json=BODY)).status_code == 200
    assert len(client.world.said) == said


async def test_a_partial_retry_keeps_its_place_at_the_tail(client: Client) -> None:
    model = await put(client, retry={"max_attempts": 2})
    assert (model["retry"]["max_attempts"], model["retry"]["position"]) == (2, "tail")
    called = await client.post(f"{PATH}/calls", json={})
    assert called.json()["retry"]["position"] == "tail"


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"base_url": "ftp://x"}, "/base_url"),
        ({"base_url": "https://user:pass@x"}, "/base_url"),
        ({"base_url": "https://x?a=1"}, "/base_url"),
        ({"base_url": "http://[::1"}, "/base_url"),
        ({"method": "PATCH"}, "/method"),
        ({"max_concurrency": 0}, "/max_concurrency"),
        ({"api_key": ""}, "/api_key"),
        ({"api_key": "a\nb"}, "/api_key"),
        ({"api_key_header": "Content-Length"}, "/api_key_header"),
        ({"api_key_header": "a b"}, "/api_key_header"),
        ({"name": "gpt"}, "/name"),
    ],
)
async def test_what_makes_no_sense(client: Client, fields: dict[str, Any], pointer: str) -> None:
    answer = await client.put(PATH, json={**BODY, **fields})
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), [pointer])
    assert code_of(await client.get(PATH)) == (404, "MODEL_NOT_FOUND")


async def test_a_key_binds_the_secret_without_telling_it(client: Client) -> None:
    key = {"Idempotency-Key": "k"}
    body = {**BODY, "api_key": SECRET}
    assert (await client.put(PATH, json=body, headers=key)).status_code == 201
    again = await client.put(PATH, json=body, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    other = await client.put(PATH, json={**BODY, "api_key": "another"}, headers=key)
    assert code_of(other) == (422, "IDEMPOTENCY_KEY_REUSED")


async def test_a_call_is_a_job_in_the_queue_of_models(client: Client) -> None:
    await put(client, max_concurrency=1)
    body = {"payload": {"q": "tides"}, "labels": {"user": "ada"}, "priority": 1}
    answer = await client.post(f"{PATH}/calls", json=body)
    assert answer.status_code == 201
    job = answer.json()
    assert (job["queue"], job["type"], job["priority"]) == ("models", "gpt", 1)
    assert job["labels"] == {"user": "ada", "tenant": "default"}
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    mine = await client.post(f"{PATH}/calls", json={"labels": {"tenant": "acme"}})
    assert mine.json()["labels"] == {"tenant": "acme"}


async def test_at_most_so_many_calls_of_a_tenant_are_leased(client: Client) -> None:
    await put(client, max_concurrency=1)
    ids = [
        (await client.post(f"{PATH}/calls", json={"labels": labels})).json()["id"]
        for labels in ({}, {}, {"tenant": "acme"})
    ]
    locks = [
        await client.post(f"/v1/jobs/{job_id}/lock", json={"runtime_id": "r"}) for job_id in ids
    ]
    assert [lock.status_code for lock in locks] == [200, 409, 200]
    assert code_of(locks[1])[1] == "LIMIT_REACHED"


async def test_the_key_of_a_call_is_its_jobs(client: Client) -> None:
    await put(client)
    key = {"Idempotency-Key": "k"}
    body = {"payload": {"q": 1}, "forward_headers": {"Authorization": "Bearer one"}}
    first = await client.post(f"{PATH}/calls", json=body, headers=key)
    body["forward_headers"] = {"Authorization": "Bearer fresher"}
    again = await client.post(f"{PATH}/calls", json=body, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert (again.json()["deduplicated"], again.headers["idempotency-replayed"]) == (True, "true")
    other = await client.post(f"{PATH}/calls", json={"payload": {"q": 2}}, headers=key)
    assert code_of(other) == (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.parametrize("path", [f"{PATH}/calls", "/v1/jobs"])
async def test_forwarded_headers_are_sealed_and_never_shown(client: Client, path: str) -> None:
    await put(client)
    body: dict[str, Any] = {"forward_headers": {"Authorization": "Bearer hunter2", "X-A": "1"}}
    if path == "/v1/jobs":
        body |= {"type": "gpt", "queue": "models"}
    answer = await client.post(path, json=body)
    assert answer.status_code == 201
    assert "hunter2" not in answer.text
    assert "forward_headers" not in answer.text
    sent = client.world.sent[-1]
    assert isinstance(sent.command, RequestJob)
    assert sent.command.forward_headers is not None
    assert b"hunter2" not in msgspec.json.encode(sent.command)
    opened = open_headers(KEYRING, sent.command.forward_headers, command_id=sent.command_id)
    assert {name: value.reveal() for name, value in opened.items()} == {
        "authorization": "Bearer hunter2",
        "x-a": "1",
    }


@pytest.mark.parametrize(
    ("headers", "pointer"),
    [
        ({"Host": "x"}, "/forward_headers/Host"),
        ({"a": 1}, "/forward_headers/a"),
        ({"a/b": "1"}, "/forward_headers"),
        ({"a": "x\ny"}, "/forward_headers/a"),
        ("x", "/forward_headers"),
    ],
)
async def test_what_can_be_no_header(client: Client, headers: object, pointer: str) -> None:
    await put(client)
    answer = await client.post(f"{PATH}/calls", json={"forward_headers": headers})
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), [pointer])


async def test_without_keys_a_secret_is_refused(keyless: Client) -> None:
    answer = await keyless.put(PATH, json={**BODY, "api_key": SECRET})
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), ["/api_key"])
    assert "LEDGER_SEALING_KEYS" in answer.json()["detail"]
    assert (await keyless.put(PATH, json=BODY)).status_code == 201
    called = await keyless.post(f"{PATH}/calls", json={"forward_headers": {"a": "b"}})
    assert pointers(called) == ["/forward_headers"]
    assert (await keyless.post(f"{PATH}/calls", json={"forward_headers": {}})).status_code == 201


async def test_a_deleted_model_takes_no_calls(client: Client) -> None:
    await put(client)
    assert (await client.delete(PATH)).json() == {"deleted": True}
    for method, path in (("GET", PATH), ("DELETE", PATH), ("POST", f"{PATH}/calls")):
        assert code_of(await client.request(method, path)) == (404, "MODEL_NOT_FOUND")
    by_hand = await client.post("/v1/jobs", json={"type": "gpt", "queue": "models"})
    assert code_of(by_hand) == (404, "MODEL_NOT_FOUND")
    assert (await client.put(PATH, json=BODY)).status_code == 201
    assert (await client.post(f"{PATH}/calls")).status_code == 201


async def test_what_can_be_no_model(client: Client) -> None:
    assert code_of(await client.get("/v1/models/-")) == (404, "MODEL_NOT_FOUND")
    assert code_of(await client.post("/v1/models/-/calls")) == (404, "MODEL_NOT_FOUND")
    assert pointers(await client.put("/v1/models/-", json=BODY)) == ["/name"]


async def test_calls_are_for_no_runtime_over_http(client: Client) -> None:
    await put(client)
    job_id = (await client.post(f"{PATH}/calls")).json()["id"]
    claim = {"queues": ["default", "models"], "types": ["gpt"]}
    answer = await client.post("/v1/runtimes/r1/claim", json=claim)
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), ["/queues/1"])
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["status"] == "pending"
