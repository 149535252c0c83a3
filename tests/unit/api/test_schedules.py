"""Schedules over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client

PATH = "/v1/queues/ai/schedules/nightly"
BODY: dict[str, Any] = {"cron": "0 3 * * *", "type": "report", "timezone": "Europe/Berlin"}


async def put(client: Client, path: str = PATH, **fields: Any) -> dict[str, Any]:
    answer = await client.put(path, json={**BODY, **fields})
    assert answer.status_code in (200, 201), answer.text
    return dict(answer.json())


async def test_a_schedule_says_when_it_comes_next(client: Client) -> None:
    answer = await client.put(PATH, json={**BODY, "payload": {"n": 1}, "labels": {"a": "b"}})
    assert (answer.status_code, answer.headers["location"]) == (201, PATH)
    schedule = answer.json()
    assert (schedule["queue"], schedule["name"]) == ("ai", "nightly")
    assert schedule["next_run_at"] == "2027-01-16T02:00:00.000Z"
    assert schedule["next_runs"][0] == schedule["next_run_at"]
    assert len(schedule["next_runs"]) == 5
    assert (schedule["catch_up"], schedule["enabled"]) == ("last", True)
    assert (schedule["last_run_at"], schedule["last_job_id"]) == (None, None)
    assert (await client.get(PATH)).json() == schedule


async def test_what_was_read_put_again_changes_nothing(client: Client) -> None:
    schedule = await put(client)
    entries = len(client.world.said)
    names = ("cron", "timezone", "enabled", "type", "payload", "labels", "scope", "catch_up")
    again = await client.put(PATH, json={name: schedule[name] for name in names})
    assert (again.status_code, again.json()) == (200, schedule)
    assert len(client.world.said) == entries
    changed = await client.put(PATH, json={**BODY, "catch_up": "none"})
    assert (changed.status_code, changed.json()["catch_up"]) == (200, "none")


@pytest.mark.parametrize(
    ("fields", "pointer"), [({"cron": "61 * * * *"}, "/cron"), ({"timezone": "Mars"}, "/timezone")]
)
async def test_what_is_no_schedule(client: Client, fields: dict[str, str], pointer: str) -> None:
    answer = await client.put(PATH, json={**BODY, **fields})
    assert code_of(answer) == (422, "INVALID_SCHEDULE")
    assert pointers(answer) == [pointer]


async def test_fields_are_checked(client: Client) -> None:
    answer = await client.put(PATH, json={**BODY, "crom": "x"})
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), ["/crom"])
    assert pointers(await client.put(PATH, json={"cron": "* * * * *"})) == ["/type"]
    assert pointers(await client.put(PATH, json={**BODY, "catch_up": "some"})) == ["/catch_up"]
    assert pointers(await client.put("/v1/queues/ai/schedules/-x", json=BODY)) == ["/name"]
    assert code_of(await client.put(PATH)) == (400, "MALFORMED_JSON")


async def test_a_type_may_allow_no_schedule(client: Client) -> None:
    await client.put("/v1/queues/ai/templates/report", json={"schedulable": False})
    assert code_of(await client.put(PATH, json=BODY)) == (409, "NOT_SCHEDULABLE")


async def test_it_rests_and_comes_again(client: Client) -> None:
    await put(client)
    rests = await client.post(f"{PATH}/disable")
    assert (rests.status_code, rests.json()["enabled"]) == (200, False)
    assert (rests.json()["next_run_at"], rests.json()["next_runs"]) == (None, [])
    comes = await client.post(f"{PATH}/enable")
    assert comes.json()["next_run_at"] == "2027-01-16T02:00:00.000Z"
    assert (await client.post(f"{PATH}/enable")).json() == comes.json()


async def test_a_run_makes_a_job_also_of_a_disabled_one(client: Client) -> None:
    await put(client, enabled=False, payload={"n": 1}, labels={"a": "b"}, scope="s")
    run = await client.post(f"{PATH}/run")
    assert run.status_code == 201
    job = run.json()
    assert (job["type"], job["queue"], job["schedule"]) == ("report", "ai", "nightly")
    assert (job["payload"], job["labels"], job["scope"]) == ({"n": 1}, {"a": "b"}, "s")
    assert run.headers["location"] == f"/v1/jobs/{job['id']}"
    schedule = (await client.get(PATH)).json()
    assert schedule["last_job_id"] == job["id"]
    assert schedule["last_run_at"] == job["created_at"]


async def test_a_run_that_the_rules_refuse(client: Client) -> None:
    await put(client)
    await client.put("/v1/queues/ai", json={"depth_max": 0})
    answer = await client.post(f"{PATH}/run")
    assert code_of(answer) == (429, "QUEUE_FULL")
    assert answer.headers["retry-after"]


async def test_a_run_under_a_key_is_one(client: Client) -> None:
    await put(client)
    key = {"Idempotency-Key": "k"}
    first = await client.post(f"{PATH}/run", headers=key)
    again = await client.post(f"{PATH}/run", headers=key)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"


async def test_deleted_is_gone(client: Client) -> None:
    await put(client)
    gone = await client.delete(PATH)
    assert (gone.status_code, gone.json()) == (200, {"deleted": True})
    for method, path in (
        ("GET", PATH),
        ("DELETE", PATH),
        ("POST", f"{PATH}/run"),
        ("POST", f"{PATH}/enable"),
        ("POST", f"{PATH}/disable"),
        ("GET", "/v1/queues/ai/schedules/-x"),
        ("POST", "/v1/queues/ai/schedules/-x/run"),
    ):
        assert code_of(await client.request(method, path)) == (404, "SCHEDULE_NOT_FOUND"), path
    assert (await client.put(PATH, json=BODY)).status_code == 201


async def test_schedules_by_what_is_asked_for(client: Client) -> None:
    await put(client, "/v1/queues/b/schedules/x")
    await put(client, "/v1/queues/a/schedules/y", type="other")
    await put(client, "/v1/queues/a/schedules/x", enabled=False)

    async def names(**params: Any) -> list[str]:
        items = (await client.get("/v1/schedules", params=params)).json()["items"]
        return [f"{one['queue']}/{one['name']}" for one in items]

    assert await names() == ["a/x", "a/y", "b/x"]
    assert await names(queue="a") == ["a/x", "a/y"]
    assert await names(type="report") == ["a/x", "b/x"]
    assert await names(enabled="false") == ["a/x"]
    assert await names(enabled="true", queue="b") == ["b/x"]
    page = (await client.get("/v1/schedules", params={"page_size": 2, "page": 2})).json()
    assert ([one["name"] for one in page["items"]], page["total_pages"]) == (["x"], 2)
    assert pointers(await client.get("/v1/schedules", params={"enabled": "maybe"})) == ["/enabled"]


async def test_jobs_of_a_schedule_are_its_occurrences(client: Client) -> None:
    await put(client)
    await client.post(f"{PATH}/run")
    jobs = await client.get("/v1/jobs", params={"schedule": "nightly"})
    assert [job["schedule"] for job in jobs.json()["items"]] == ["nightly"]
