"""Queues: how much they hold, who holds their limits, and when they rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client

PER_USER = {"key": ["/labels/user"], "max": 1}


async def test_what_is_said_of_a_queue_is_read(client: Client) -> None:
    answer = await client.put("/v1/queues/ai", json={"depth_max": 2, "limits": [PER_USER]})
    assert answer.status_code == 200
    assert answer.json() == {
        "name": "ai",
        "depth_max": 2,
        "limits": [PER_USER],
        "paused": None,
    }
    queue = (await client.get("/v1/queues/ai")).json()
    assert (queue["depth_max"], queue["limits"]) == (2, [PER_USER])
    assert queue["counts"]["pending"] == 0
    assert (await client.get("/v1/queues")).json()["items"][0]["depth_max"] == 2


async def test_a_full_queue_says_when_to_ask_again(client: Client) -> None:
    await client.put("/v1/queues/ai", json={"depth_max": 1})
    await client.job(queue="ai")
    answer = await client.post("/v1/jobs", json={"type": "t", "queue": "ai"})
    assert code_of(answer) == (429, "QUEUE_FULL")
    assert int(answer.headers["retry-after"]) > 0
    await client.put("/v1/queues/ai", json={})
    assert (await client.post("/v1/jobs", json={"type": "t", "queue": "ai"})).status_code == 201


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"depth_max": -1}, "/depth_max"),
        ({"depth": 1}, "/depth"),
        ({"limits": [{"key": ["user"], "max": 1}]}, "/limits/0/key/0"),
        ({"counts": {}}, "/counts"),
    ],
)
async def test_what_makes_no_sense(client: Client, body: dict[str, Any], pointer: str) -> None:
    answer = await client.put("/v1/queues/ai", json=body)
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), [pointer])


async def test_a_paused_queue_accepts_and_leases_nothing(client: Client) -> None:
    paused = await client.post("/v1/queues/default/pause", json={"reason": "deploy"})
    assert paused.status_code == 200
    assert paused.json()["paused"]["reason"] == "deploy"
    assert paused.json()["paused"]["by"] == "api"
    job = await client.job()
    lock = await client.post(f"/v1/jobs/{job['id']}/lock", json={"runtime_id": "r"})
    assert code_of(lock) == (409, "QUEUE_PAUSED")
    body = {"queues": ["default"], "types": ["t"]}
    assert code_of(await client.post("/v1/runtimes/r/claim", json=body)) == (409, "QUEUE_PAUSED")
    again = await client.post("/v1/queues/default/pause")
    assert again.json() == paused.json()
    assert (await client.get("/v1/queues/default")).json()["paused"] == paused.json()["paused"]

    resumed = await client.post("/v1/queues/default/resume")
    assert (resumed.status_code, resumed.json()["paused"]) == (200, None)
    assert len((await client.post("/v1/runtimes/r/claim", json=body)).json()["items"]) == 1


async def test_a_claim_passes_over_the_paused_of_several(client: Client) -> None:
    await client.post("/v1/queues/p/pause")
    await client.job(queue="p")
    await client.job(queue="q")
    body = {"queues": ["p", "q"], "types": ["t"], "limit": 5}
    claimed = await client.post("/v1/runtimes/r/claim", json=body)
    assert [item["job"]["queue"] for item in claimed.json()["items"]] == ["q"]


async def test_who_holds_which_limit(client: Client) -> None:
    await client.put("/v1/queues/default", json={"limits": [PER_USER]})
    await client.put(
        "/v1/queues/default/templates/t", json={"limits": [{"key": ["/type"], "max": 2}]}
    )
    job_id, fence = await client.leased(labels={"user": "ada"})
    other = await client.job(labels={"user": "ada"})
    refused = await client.post(f"/v1/jobs/{other['id']}/lock", json={"runtime_id": "r"})
    assert code_of(refused) == (409, "LIMIT_REACHED")
    assert refused.headers["retry-after"]
    queue = (await client.get("/v1/queues/default")).json()
    holder = {"job_id": job_id, "step": "main", "runtime_id": "r1"}
    of_queue, of_type = queue["held_limits"]
    assert of_queue == {
        "type": None,
        "key": ["/labels/user"],
        "value": ["ada"],
        "max": 1,
        "held": 1,
        "holders": [holder],
    }
    assert (of_type["type"], of_type["value"], of_type["held"]) == ("t", ["t"], 1)
    assert queue["held_limits_exact"] is True
    await client.post(f"/v1/jobs/{job_id}/release", json={"fence": fence})
    assert (await client.get("/v1/queues/default")).json()["held_limits"] == []


async def test_what_can_be_no_queue(client: Client) -> None:
    assert code_of(await client.put("/v1/queues/Q", json={})) == (404, "QUEUE_NOT_FOUND")
    assert code_of(await client.post("/v1/queues/Q/pause")) == (404, "QUEUE_NOT_FOUND")


async def test_a_template_is_a_use_of_its_queue(client: Client) -> None:
    await client.put("/v1/queues/ai/templates/t", json={})
    assert (await client.get("/v1/queues/ai")).json()["counts"]["pending"] == 0
