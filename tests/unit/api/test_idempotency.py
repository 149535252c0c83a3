"""Idempotency-Key on every write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledger.log.command_codec import COMMAND_ID_LENGTH_MAX
from tests.unit.api.problems_of import code_of
from tests.unit.api.world import Client

KEY = {"Idempotency-Key": '"k"'}


async def test_the_same_key_gives_the_same_answer(client: Client) -> None:
    job_id = await client.succeeded()
    first = await client.post(f"/v1/jobs/{job_id}/rerun", json={"priority": 1}, headers=KEY)
    again = await client.post(f"/v1/jobs/{job_id}/rerun", json={"priority": 1}, headers=KEY)
    assert again.status_code == first.status_code == 201
    assert again.json() == first.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"


async def test_no_body_and_an_empty_one_are_the_same(client: Client) -> None:
    job_id = await client.succeeded()
    first = await client.post(f"/v1/jobs/{job_id}/rerun", headers=KEY)
    again = await client.post(f"/v1/jobs/{job_id}/rerun", json={}, headers=KEY)
    assert again.json()["id"] == first.json()["id"]


async def test_another_body_is_refused(client: Client) -> None:
    job_id = await client.succeeded()
    await client.post(f"/v1/jobs/{job_id}/rerun", json={"priority": 1}, headers=KEY)
    other = await client.post(f"/v1/jobs/{job_id}/rerun", json={"priority": 2}, headers=KEY)
    assert code_of(other) == (422, "IDEMPOTENCY_KEY_REUSED")


async def test_the_route_belongs_to_the_key(client: Client) -> None:
    first, second = await client.job(), await client.job()
    for job in (first, second):
        answer = await client.post(f"/v1/jobs/{job['id']}/cancel", headers=KEY)
        assert answer.json()["id"] == job["id"]
        assert "idempotency-replayed" not in answer.headers


async def test_a_refusal_is_replayed_too(client: Client) -> None:
    job = await client.job()
    first = await client.post(f"/v1/jobs/{job['id']}/rerun", headers=KEY)
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    again = await client.post(f"/v1/jobs/{job['id']}/rerun", headers=KEY)
    assert code_of(first) == code_of(again) == (409, "JOB_NOT_CLOSED")
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"


async def test_so_is_that_there_is_no_such_job(client: Client) -> None:
    url = "/v1/jobs/default.019ca945-0a00-7efb-9caa-142507730215/cancel"
    first = await client.post(url, headers=KEY)
    again = await client.post(url, headers=KEY)
    assert code_of(first) == code_of(again) == (404, "JOB_NOT_FOUND")
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"


FLOW = {"steps": [{"name": "a"}, {"name": "b"}]}


@pytest.mark.parametrize("template", [{}, FLOW])
async def test_a_replayed_lock_gives_the_same_answer_even_if_the_lease_has_ended(
    client: Client, template: dict[str, Any]
) -> None:
    await client.put("/v1/queues/default/templates/t", json=template)
    path = f"/v1/jobs/{(await client.job())['id']}"
    body = {"runtime_id": "r"}
    if template:
        await client.post(f"{path}/lock", json=body)
        await client.post(f"{path}/result", json={"fence": 1, "output": {"n": 1}})
    lock = (await client.post(f"{path}/lock", json=body, headers=KEY)).json()
    assert lock["inputs"] == ({"a": {"n": 1}} if template else {})
    client.world.is_lagging = True
    await client.post(f"{path}/result", json={"fence": lock["fence"], "output": 2})
    client.world.is_lagging = False
    again = await client.post(f"{path}/lock", json=body, headers=KEY)
    assert again.json() == lock
    assert again.headers["idempotency-replayed"] == "true"


async def test_where_the_views_do_not_show_the_grant_the_fence_tells(client: Client) -> None:
    path = f"/v1/jobs/{(await client.job())['id']}"
    body = {"runtime_id": "r"}
    lock = (await client.post(f"{path}/lock", json=body, headers=KEY)).json()
    client.world.is_cut = True
    again = await client.post(f"{path}/lock", json=body, headers=KEY)
    assert (again.json()["fence"], again.json()["job"]) == (lock["fence"], lock["job"])


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/queues/q/templates/t", {}),
        ("/v1/queues/q/schedules/s", {"cron": "0 3 * * *", "type": "t"}),
        ("/v1/models/m", {"base_url": "https://model.example", "route": "/", "method": "GET"}),
    ],
)
async def test_what_was_new_is_new_to_who_asks_again(
    client: Client, url: str, body: dict[str, Any]
) -> None:
    first = await client.put(url, json=body, headers=KEY)
    again = await client.put(url, json=body, headers=KEY)
    assert first.status_code == again.status_code == 201
    assert first.headers["location"] == again.headers["location"] == url
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    other = await client.put(url, json=body)
    assert other.status_code == 200


async def test_while_the_first_is_in_flight(client: Client) -> None:
    job_id = await client.succeeded()
    path = f"/v1/jobs/{job_id}/rerun"
    answers = await asyncio.gather(*(client.post(path, headers=KEY) for _ in range(5)))
    assert {answer.json()["id"] for answer in answers} == {answers[0].json()["id"]}
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 4


async def test_an_equal_and_another_body_in_flight(client: Client) -> None:
    """hatchet and idempot-js got this wrong: a mismatch must not get the first one's answer."""
    job_id = await client.succeeded()
    path = f"/v1/jobs/{job_id}/rerun"
    first, other = await asyncio.gather(
        client.post(path, json={"priority": 1}, headers=KEY),
        client.post(path, json={"priority": 2}, headers=KEY),
    )
    assert {first.status_code, other.status_code} == {201, 422}


async def test_parallel_requests_under_one_key_are_one_job(client: Client) -> None:
    answers = await asyncio.gather(
        *(client.post("/v1/jobs", json={"type": "t"}, headers=KEY) for _ in range(20))
    )
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]


async def test_a_replayed_lock_gives_the_same_lease(client: Client) -> None:
    job = await client.job()
    path, body = f"/v1/jobs/{job['id']}/lock", {"runtime_id": "r1"}
    first = await client.post(path, json=body, headers=KEY)
    again = await client.post(path, json=body, headers=KEY)
    assert again.status_code == 200
    assert again.json()["fence"] == first.json()["fence"]
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    "value",
    [b"", b'""', b"k" * 257, b'"' + b"k" * 257 + b'"', b"\xff", b'"\xc3"', b"\x00"],
)
async def test_a_key_that_is_none(client: Client, value: bytes) -> None:
    job = await client.job()
    headers = [(b"idempotency-key", value)]
    answer = await client.post(f"/v1/jobs/{job['id']}/cancel", headers=headers)
    assert code_of(answer) == (422, "VALIDATION_FAILED")


async def test_two_keys(client: Client) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = await client.post("/v1/jobs", json={"type": "t"}, headers=headers)
    assert code_of(answer) == (422, "VALIDATION_FAILED")


async def test_any_text_can_be_a_key(client: Client) -> None:
    for key in ("schlüssel \u4f60", 'a"b', "\\", "x" * 256):
        quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        headers = [(b"idempotency-key", quoted.encode())]
        job = (await client.post("/v1/jobs", json={"type": "t"}, headers=headers)).json()
        assert job["idempotency_key"] == key


async def test_ids_are_as_long_as_a_record_may_carry(client: Client) -> None:
    job_id = await client.succeeded()
    client.world.forget(job_id)
    await client.post(f"/v1/jobs/{job_id}/rerun", headers=KEY)
    assert max(len(sent.command_id) for sent in client.world.sent) <= COMMAND_ID_LENGTH_MAX


async def test_a_replayed_heartbeat_on_a_lease_that_has_ended(client: Client) -> None:
    job_id, fence = await client.leased()
    path, body = f"/v1/jobs/{job_id}/heartbeat", {"fence": fence}
    first = await client.post(path, json=body, headers=KEY)
    await client.post(f"/v1/jobs/{job_id}/release", json=body)
    again = await client.post(path, json=body, headers=KEY)
    assert first.status_code == 200
    assert code_of(again) == (409, "LEASE_STALE")
