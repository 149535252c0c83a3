"""What operators do over HTTP, over a real broker, a real owner and real views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.settings import Settings
from ledger.sealing.keyring import generate_key, keyring_from
from projections.schema import migrate
from tests.services.test_api_end_to_end import PATIENCE_SECONDS, until, worker
from tests.support.ledger import ledger_on

Json = dict[str, Any]


@pytest.fixture
async def client(bootstrap: str, topic_prefix: str, dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    migrate(dsn)
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        settings = Settings(
            connection=ledger.connection,
            dsn=dsn,
            topics=ledger.topics,
            partitions=ledger.partitions,
            decision_seconds=PATIENCE_SECONDS,
            view_seconds=PATIENCE_SECONDS,
            keyring=keyring_from(f"test:{generate_key()}"),
        )
        app = create_app(settings)
        async with (
            worker(ledger, dsn),
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app),
                base_url="http://api",
                timeout=PATIENCE_SECONDS,
            ) as client,
        ):
            yield client


def ok(answer: httpx.Response) -> Json:
    assert answer.is_success, answer.text
    return dict(answer.json())


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def job(client: httpx.AsyncClient, **fields: Any) -> Json:
    return ok(await client.post("/v1/jobs", json={"type": "t", **fields}))


async def lock(client: httpx.AsyncClient, job_id: str) -> httpx.Response:
    return await client.post(f"/v1/jobs/{job_id}/lock", json={"runtime_id": "r"})


async def succeeded(client: httpx.AsyncClient, output: object, **fields: Any) -> str:
    job_id: str = (await job(client, **fields))["id"]
    fence = ok(await lock(client, job_id))["fence"]
    body = {"fence": fence, "output": output}
    ok(await client.post(f"/v1/jobs/{job_id}/result", json=body))
    return job_id


async def test_a_template_with_a_schema_and_a_flow(client: httpx.AsyncClient) -> None:
    path = "/v1/queues/ai/templates/quiz"
    template = {
        "payload_schema": {
            "type": "object",
            "properties": {"topic": {"type": "string"}},
            "required": ["topic"],
            "additionalProperties": False,
        },
        "steps": [{"name": "write"}, {"name": "check", "worker_type": "checker"}],
    }
    put = await client.put(path, json=template)
    assert (put.status_code, put.json()["version"]) == (201, 1)
    assert ok(await client.get(path)) == put.json()
    assert ok(await client.put(path, json=template)) == put.json()
    second = ok(await client.put(path, json={**template, "title": "two"}))
    assert second["version"] == 2
    assert ok(await client.get(f"{path}/versions/1")) == put.json()
    assert [t["version"] for t in ok(await client.get("/v1/templates"))["items"]] == [2]

    body: Json = {"type": "quiz", "queue": "ai", "payload": {"colour": 1}}
    refused = await client.post("/v1/jobs", json=body)
    assert code_of(refused) == (422, "VALIDATION_FAILED")
    assert sorted(one["pointer"] for one in refused.json()["errors"]) == [
        "/payload/colour",
        "/payload/topic",
    ]
    made = ok(await client.post("/v1/jobs", json={**body, "payload": {"topic": "tides"}}))
    assert [step["name"] for step in made["steps"]] == ["write", "check"]
    claim = {"queues": ["ai"], "types": ["quiz"], "wait_seconds": 5}
    [first] = ok(await client.post("/v1/runtimes/w/claim", json=claim))["items"]
    assert (first["job_id"], first["step"]) == (made["id"], "write")
    ok(
        await client.post(
            f"/v1/jobs/{made['id']}/result", json={"fence": first["fence"], "output": {"q": 1}}
        )
    )
    claim["types"] = ["checker"]
    [second_step] = ok(await client.post("/v1/runtimes/c/claim", json=claim))["items"]
    assert (second_step["step"], second_step["inputs"]) == ("check", {"write": {"q": 1}})


async def test_a_paused_queue_leases_nothing(client: httpx.AsyncClient) -> None:
    waits = await job(client)
    paused = ok(await client.post("/v1/queues/default/pause", json={"reason": "deploy"}))
    assert paused["paused"]["reason"] == "deploy"
    claim = {"queues": ["default"], "types": ["t"], "wait_seconds": 5}
    assert code_of(await client.post("/v1/runtimes/r/claim", json=claim)) == (409, "QUEUE_PAUSED")
    assert code_of(await lock(client, waits["id"])) == (409, "QUEUE_PAUSED")
    assert ok(await client.get("/v1/queues/default"))["paused"] == paused["paused"]
    assert ok(await client.post("/v1/queues/default/resume"))["paused"] is None
    [item] = ok(await client.post("/v1/runtimes/r/claim", json=claim))["items"]
    assert item["job_id"] == waits["id"]


async def test_schedules_run_by_hand_and_by_themselves(client: httpx.AsyncClient) -> None:
    path = "/v1/queues/default/schedules/often"
    body = {"cron": "0 3 1 1 *", "type": "t", "payload": {"n": 1}, "enabled": False}
    put = await client.put(path, json=body)
    assert put.status_code == 201
    run = await client.post(f"{path}/run")
    assert (run.status_code, run.json()["schedule"]) == (201, "often")
    read = ok(await client.get(path))
    assert (read["last_job_id"], read["last_run_at"]) == (
        run.json()["id"],
        run.json()["created_at"],
    )
    enabled = ok(await client.post(f"{path}/enable"))
    assert len(enabled["next_runs"]) == 5
    listed = ok(await client.get("/v1/schedules", params={"queue": "default", "enabled": "true"}))
    assert [one["name"] for one in listed["items"]] == ["often"]
    assert listed["items"][0] == ok(await client.get(path))
    assert ok(await client.delete(path)) == {"deleted": True}
    assert code_of(await client.get(path)) == (404, "SCHEDULE_NOT_FOUND")


async def test_collected_twice_is_the_same_answer(client: httpx.AsyncClient) -> None:
    done = await succeeded(client, {"n": 1}, result_ttl_seconds=0.5)
    waits = (await job(client, type="other"))["id"]
    body = {"ids": [waits, done, "nobody.01890000-0000-7000-8000-000000000000"]}
    first = ok(await client.post("/v1/jobs/collect", json=body))
    assert [item["status"] for item in first["items"]] == ["pending", "succeeded", None]
    assert first["items"][1]["output"] == {"n": 1}
    expires = first["items"][1]["result_expires_at"]
    assert expires > first["items"][1]["collected_at"]

    over = await until(
        lambda: client.post("/v1/jobs/collect", json=body),
        lambda answer: answer.json()["items"][1]["output"] is None,
    )
    first["items"][1]["output"] = None
    assert over.json() == first


async def test_a_full_queue_says_when_to_ask_again(client: httpx.AsyncClient) -> None:
    ok(await client.put("/v1/queues/default", json={"depth_max": 1}))
    await job(client)
    full = await client.post("/v1/jobs", json={"type": "t"})
    assert code_of(full) == (429, "QUEUE_FULL")
    assert int(full.headers["retry-after"]) > 0
    assert ok(await client.get("/v1/queues/default"))["depth_max"] == 1


async def test_equal_jobs_are_refused_shared_or_done_once(client: httpx.AsyncClient) -> None:
    for job_type, fields in (
        ("alone", {"concurrency_policy": "reject_same_scope"}),
        ("shared", {"concurrency_policy": "share_in_flight"}),
        ("once", {"repeatable": False}),
    ):
        ok(await client.put(f"/v1/queues/default/templates/{job_type}", json=fields))
    alone = await job(client, type="alone", scope="s")
    refused = await client.post("/v1/jobs", json={"type": "alone", "scope": "s"})
    assert code_of(refused) == (409, "DUPLICATE_ACTIVE")
    assert refused.json()["job_id"] == alone["id"]

    shared = await job(client, type="shared", scope="s")
    again = await client.post("/v1/jobs", json={"type": "shared", "scope": "s"})
    assert (again.status_code, again.json()["id"]) == (200, shared["id"])
    assert again.json()["deduplicated"] is True

    done = await succeeded(client, 1, type="once", scope="s")
    once = await client.post("/v1/jobs", json={"type": "once", "scope": "s"})
    assert code_of(once) == (409, "NOT_REPEATABLE")
    assert once.json()["job_id"] == done


async def test_a_limit_is_reached_and_shows_who_holds_it(client: httpx.AsyncClient) -> None:
    limits = [{"key": ["/labels/user"], "max": 1}]
    ok(await client.put("/v1/queues/default/templates/t", json={"limits": limits}))
    one, other = [await job(client, labels={"user": "ada"}) for _ in range(2)]
    fence = ok(await lock(client, one["id"]))["fence"]
    assert code_of(await lock(client, other["id"])) == (409, "LIMIT_REACHED")
    [held] = ok(await client.get("/v1/queues/default"))["held_limits"]
    assert (held["type"], held["value"], held["held"]) == ("t", ["ada"], 1)
    assert held["holders"] == [{"job_id": one["id"], "step": "main", "runtime_id": "r"}]
    ok(await client.post(f"/v1/jobs/{one['id']}/release", json={"fence": fence}))
    assert (await lock(client, other["id"])).status_code == 200


async def test_a_model_is_called_by_a_job(client: httpx.AsyncClient) -> None:
    body = {"base_url": "http://model.example", "api_key": "sk-hunter2", "max_concurrency": 1}
    put = await client.put("/v1/models/gpt", json=body)
    assert (put.status_code, put.json()["has_api_key"]) == (201, True)
    assert ok(await client.get("/v1/models/gpt")) == put.json()
    call = await client.post(
        "/v1/models/gpt/calls",
        json={"payload": {"q": 1}, "forward_headers": {"Authorization": "Bearer hunter2"}},
    )
    assert call.status_code == 201
    made = call.json()
    assert (made["queue"], made["type"]) == ("models", "gpt")
    assert made["labels"] == {"tenant": "default"}
    history = await client.get(f"/v1/jobs/{made['id']}/events")
    assert "hunter2" not in history.text + (await client.get("/v1/models")).text
    assert ok(await client.delete("/v1/models/gpt")) == {"deleted": True}
    assert code_of(await client.post("/v1/models/gpt/calls")) == (404, "MODEL_NOT_FOUND")
    assert code_of(await client.get("/v1/models/gpt")) == (404, "MODEL_NOT_FOUND")


async def test_objects_of_an_owner_are_removed_by_an_operation(client: httpx.AsyncClient) -> None:
    started = await client.delete("/v1/owners/ada/projects/7")
    assert started.status_code == 202
    operation = await until(
        lambda: client.get(started.headers["location"]), lambda answer: answer.is_success
    )
    assert operation.json()["kind"] == "remove_objects"
    assert operation.json()["where"] == {"user": "ada", "project": "7"}
    assert operation.json()["status"] == "running"


async def test_all_lists_say_how_far_they_are_true(client: httpx.AsyncClient) -> None:
    await asyncio.gather(
        client.put("/v1/queues/a/templates/t", json={}),
        client.put("/v1/queues/b/schedules/s", json={"cron": "* * * * *", "type": "t"}),
        client.put("/v1/models/m", json={"base_url": "http://m"}),
    )
    for path in ("queues", "templates", "schedules", "models", "runtimes"):
        listed = await client.get(f"/v1/{path}", params={"page_size": 10})
        assert listed.headers["ledger-position"].count(":") == 2, path
    assert [q["name"] for q in ok(await client.get("/v1/queues"))["items"]] == ["a", "b", "models"]
