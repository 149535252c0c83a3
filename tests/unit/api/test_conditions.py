"""ETag, If-None-Match, If-Match; Ledger-Position and Ledger-Min-Position."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.api.problems_of import code_of
from tests.unit.api.world import Client, client_over


@pytest.mark.parametrize("tags", ['"1"', 'W/"1"', "*", '"7", "1"'])
async def test_a_version_that_the_caller_has_is_not_sent(client: Client, tags: str) -> None:
    job = await client.job()
    answer = await client.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": tags})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == '"1"'
    assert "ledger-position" in answer.headers


@pytest.mark.parametrize("tags", ['"2"', "1", "nonsense", '"11"'])
async def test_another_version_is_sent(client: Client, tags: str) -> None:
    job = await client.job()
    answer = await client.get(f"/v1/jobs/{job['id']}", headers={"If-None-Match": tags})
    assert answer.status_code == 200


@pytest.mark.parametrize("read", ["events", "events?page=1", "attempts", "output", "payload"])
async def test_so_it_is_with_all_that_is_read_of_a_job(client: Client, read: str) -> None:
    job_id = await client.succeeded()
    url = f"/v1/jobs/{job_id}/{read}"
    tag = (await client.get(url)).headers["etag"]
    again = await client.get(url, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await client.get(url, headers={"If-None-Match": '"1"'})).status_code == 200


WRITES: dict[str, dict[str, Any]] = {
    "lock": {"runtime_id": "another"},
    "start": {"fence": 1},
    "heartbeat": {"fence": 1},
    "progress": {"fence": 1, "percent": 1},
    "result": {"fence": 1, "output": 1},
    "fail": {"fence": 1, "code": "X"},
    "release": {"fence": 1},
    "wait": {"fence": 1, "timeout_seconds": 9},
    "cancelled": {"fence": 1},
    "cancel": {},
    "rerun": {},
}
GOES: tuple[str, ...] = ("start", "heartbeat", "progress", "result", "fail", "release", "wait")


@pytest.mark.parametrize("path", WRITES)
async def test_a_write_on_another_version_is_refused(client: Client, path: str) -> None:
    """By the owner: the view may be behind, and still show the version that is asked for."""
    job = await client.job()
    client.world.is_lagging = True
    await client.post(f"/v1/jobs/{job['id']}/lock", json={"runtime_id": "r"})
    url = f"/v1/jobs/{job['id']}/{path}"
    for tags in ('"1"', 'W/"2"', "nonsense", '"1", "3"', '"99999999999999999999"'):
        answer = await client.post(url, json=WRITES[path], headers={"If-Match": tags})
        assert code_of(answer) == (412, "PRECONDITION_FAILED"), tags


@pytest.mark.parametrize("path", [*GOES, "cancel"])
async def test_a_write_on_the_version_that_is_goes(client: Client, path: str) -> None:
    job_id, _ = await client.leased()
    url = f"/v1/jobs/{job_id}/{path}"
    answer = await client.post(url, json=WRITES[path], headers={"If-Match": '"2"'})
    assert answer.status_code == 200


async def test_an_ended_job_says_so_first(client: Client) -> None:
    job_id = await client.succeeded()
    answer = await client.post(f"/v1/jobs/{job_id}/cancel", headers={"If-Match": '"1"'})
    assert code_of(answer) == (409, "JOB_CLOSED")


async def test_a_repeat_under_a_key_is_answered_whatever_the_version_is_by_now(
    client: Client,
) -> None:
    job_id, fence = await client.leased()
    headers = {"If-Match": '"2", "7"', "Idempotency-Key": "k"}
    url, body = f"/v1/jobs/{job_id}/start", {"fence": fence}
    first = await client.post(url, json=body, headers=headers)
    again = await client.post(url, json=body, headers=headers)
    assert first.status_code == again.status_code == 200
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("tags", ["*", '"1", "2"'])
async def test_any_of_several_versions_will_do(client: Client, tags: str) -> None:
    job_id, _ = await client.leased()
    answer = await client.post(f"/v1/jobs/{job_id}/cancel", headers={"If-Match": tags})
    assert answer.status_code == 200


async def test_the_view_may_be_behind_what_the_caller_has_seen(client: Client) -> None:
    job_id, fence = await client.leased()
    client.world.is_lagging = True
    started = await client.post(f"/v1/jobs/{job_id}/start", json={"fence": fence})
    headers = {"If-Match": started.headers["etag"]}
    done = asyncio.create_task(
        client.post(f"/v1/jobs/{job_id}/result", json={"fence": fence}, headers=headers)
    )
    await asyncio.sleep(0.02)
    client.world.catch_up()
    assert (await done).status_code == 200


async def test_a_new_job_matches_no_etag(client: Client) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t"}, headers={"If-Match": '"1"'})
    assert code_of(answer) == (412, "PRECONDITION_FAILED")
    assert (
        await client.post("/v1/jobs", json={"type": "t"}, headers={"If-Match": "*"})
    ).status_code == 201


# --- Positions -----------------------------------------------------------------------------------
async def test_a_read_waits_for_the_position_it_asks_for(client: Client) -> None:
    client.world.is_lagging = True
    created = await client.post("/v1/jobs", json={"type": "t"})
    headers = {"Ledger-Min-Position": created.headers["ledger-position"]}
    reading = asyncio.create_task(client.get("/v1/jobs", headers=headers))
    await asyncio.sleep(0.02)
    client.world.catch_up()
    answer = await reading
    assert [job["id"] for job in answer.json()["items"]] == [created.json()["id"]]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/queues", "/v1/runtimes", "/v1/queues/default"])
async def test_never_an_older_answer(client: Client, path: str) -> None:
    client.world.is_lagging = True
    created = await client.post("/v1/jobs", json={"type": "t"})
    headers = {"Ledger-Min-Position": created.headers["ledger-position"]}
    answer = await client.get(path, headers=headers)
    assert code_of(answer) == (503, "VIEW_BEHIND")
    assert answer.headers["retry-after"]


async def test_prefer_says_how_long_to_wait(client: Client) -> None:
    client.world.is_lagging = True
    created = await client.post("/v1/jobs", json={"type": "t"})
    headers = {"Ledger-Min-Position": created.headers["ledger-position"], "Prefer": "wait=0"}
    async with asyncio.timeout(0.15):
        assert (await client.get("/v1/jobs", headers=headers)).status_code == 503


@pytest.mark.parametrize("text", ["", "x", "1", "99:1", "1:x", "1:1,", "-1:1", "1:²", "1:-2"])
async def test_what_is_no_position(client: Client, text: str) -> None:
    headers = [(b"ledger-min-position", text.encode())]
    assert code_of(await client.get("/v1/jobs", headers=headers)) == (422, "VALIDATION_FAILED")


async def test_several_positions(client: Client) -> None:
    await client.job()
    headers = {"Ledger-Min-Position": "0:-1, 1:-1,1:-1"}
    assert (await client.get("/v1/jobs", headers=headers)).status_code == 200


async def test_every_answer_says_a_position(client: Client) -> None:
    job_id, fence = await client.leased()
    answers = [
        await client.get(f"/v1/jobs/{job_id}"),
        await client.get("/v1/jobs"),
        await client.get(f"/v1/jobs/{job_id}/events"),
        await client.get(f"/v1/jobs/{job_id}/attempts"),
        await client.get(f"/v1/jobs/{job_id}/output"),
        await client.get("/v1/queues"),
        await client.get("/v1/queues/default"),
        await client.get("/v1/queues/other"),
        await client.get("/v1/runtimes"),
        await client.get("/v1/commands/x"),
        await client.get("/v1/operations/x"),
        await client.get("/v1/nowhere"),
        await client.post("/v1/jobs", content=b"{"),
        await client.post(f"/v1/jobs/{job_id}/start", json={"fence": fence}),
        await client.post(f"/v1/jobs/{job_id}/start", json={"fence": 99}),
        await client.post(f"/v1/jobs/{job_id}/heartbeat", json={"fence": fence}),
        await client.post("/v1/runtimes/r/claim", json={"queues": ["q"], "types": ["t"]}),
        await client.post("/v1/runtimes/r/poll", json={"queues": ["q"], "types": ["t"]}),
        await client.post("/v1/jobs/cancel", json={"where": {"queue": "q"}, "dry_run": True}),
    ]
    for answer in answers:
        assert answer.headers.get("ledger-position"), answer.request.url


async def test_so_does_the_first_answer_of_a_server_be_it_a_refusal(client: Client) -> None:
    job = await client.job()
    async with client_over(client.world) as another:
        answer = await another.post("/v1/jobs", json={"nonsense": 1})
        assert code_of(answer) == (422, "VALIDATION_FAILED")
        listed = await another.get("/v1/jobs")
        assert answer.headers["ledger-position"] in listed.headers["ledger-position"]
        assert [one["id"] for one in listed.json()["items"]] == [job["id"]]


async def test_where_nobody_can_say_a_position_the_answer_comes_without(client: Client) -> None:
    client.world.is_cut = True
    assert code_of(await client.post("/v1/jobs", json={"nonsense": 1}))[0] == 422
    assert (await client.get("/healthz")).status_code == 200
