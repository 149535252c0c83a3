"""Templates over HTTP: put, read by version, listed, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client

PATH = "/v1/queues/ai/templates/quiz"
SCHEMA = {
    "type": "object",
    "properties": {"topic": {"type": "string"}, "many": {"type": "integer"}},
    "required": ["topic"],
    "additionalProperties": False,
}
META = ("queue", "type", "version", "put_at", "put_by")


async def test_each_other_content_makes_the_next_version(client: Client) -> None:
    first = await client.put(PATH, json={"title": "one"})
    second = await client.put(PATH, json={"title": "two"})
    again = await client.put(PATH, json={"title": "two", "priority": 5})
    assert [a.status_code for a in (first, second, again)] == [201, 200, 200]
    assert [a.json()["version"] for a in (first, second, again)] == [1, 2, 2]
    assert first.headers["location"] == PATH
    assert "location" not in second.headers
    assert again.json() == second.json()


async def test_the_answer_needs_no_view(client: Client) -> None:
    client.world.is_lagging = True
    put = await client.put(PATH, json={"title": "one", "payload_schema": SCHEMA})
    assert put.status_code == 201
    assert put.json()["put_by"] == "api"
    assert put.json()["put_at"].startswith("2027-01-15T08:00:00.")
    client.world.catch_up()
    assert (await client.get(PATH)).json() == put.json()


async def test_a_template_is_read_as_put_with_its_defaults(client: Client) -> None:
    body: dict[str, Any] = {
        "retry": {"max_attempts": 2},
        "limits": [{"key": ["/labels/user"], "max": 1}],
        "steps": [{"name": "a"}, {"name": "b", "on_fail": {"goto": "a"}, "progress": [10, 90]}],
        "exhausted_as": "expired",
    }
    read = (await client.put(PATH, json=body)).json()
    assert read["cancel"] == {"supported": True, "grace_seconds": 30.0}
    assert read["retry"]["max_attempts"] == 2
    assert read["retry"]["backoff_seconds"] == [1.0, 5.0, 30.0]
    assert (read["concurrency_policy"], read["dedupe_keys"]) == ("allow_parallel", ["/scope"])
    assert (read["payload_schema"], read["success_when"]) == (None, "all_steps_succeeded")
    assert [step["needs"] for step in read["steps"]] == [[], ["a"]]
    assert read["steps"][1]["on_fail"] == {"goto": "a", "max": 3, "then": "fail", "codes": None}
    assert read["steps"][1]["retry"]["max_attempts"] == 1


async def test_what_was_read_put_again_makes_no_version(client: Client) -> None:
    body = {"steps": [{"name": "a"}, {"name": "b"}], "output_schema": SCHEMA, "retry": {}}
    read = (await client.put(PATH, json=body)).json()
    back = {name: value for name, value in read.items() if name not in META}
    again = await client.put(PATH, json=back)
    assert (again.status_code, again.json()) == (200, read)


async def test_versions_are_kept(client: Client) -> None:
    for title in ("one", "two"):
        await client.put(PATH, json={"title": title})
    assert (await client.get(PATH)).json()["title"] == "two"
    one = await client.get(f"{PATH}/versions/1")
    assert (one.json()["title"], one.json()["version"]) == ("one", 1)
    assert one.headers["ledger-position"]
    for version in ("3", "0", "x", "-1", "1.0", "9" * 30):
        answer = await client.get(f"{PATH}/versions/{version}")
        assert code_of(answer) == (404, "TEMPLATE_NOT_FOUND")


async def test_a_template_that_nobody_put(client: Client) -> None:
    for path in (PATH, "/v1/queues/ai/templates/-", "/v1/queues/ai/templates/a%0A"):
        assert code_of(await client.get(path)) == (404, "TEMPLATE_NOT_FOUND")
    put = await client.put("/v1/queues/ai/templates/-", json={})
    assert (code_of(put)[1], pointers(put)) == ("VALIDATION_FAILED", ["/type"])
    assert code_of(await client.put("/v1/queues/A/templates/t", json={}))[0] == 404


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"titel": "x"}, "/titel"),
        ({"queue": "ai"}, "/queue"),
        ({"priority": 10}, "/priority"),
        ({"payload_schema": {"type": "strin"}}, "/payload_schema/type"),
        ({"concurrency_policy": "sometimes"}, "/concurrency_policy"),
        (
            {"concurrency_policy": "replace_existing", "cancel": {"supported": False}},
            "/concurrency_policy",
        ),
        ({"dedupe_keys": ["labels/user"]}, "/dedupe_keys/0"),
        ({"limits": [{"key": ["x"], "max": 1}]}, "/limits/0/key/0"),
        ({"limits": [{"key": ["/type"], "max": -1}]}, "/limits/0/max"),
        ({"steps": [{"name": "a", "needs": ["b"]}]}, "/steps/0/needs/0"),
        ({"steps": [{"name": "a", "when": "[1].all(x, x > 0)"}]}, "/steps/0/when"),
        ({"overridable": ["colour"]}, "/overridable/0"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_place(
    client: Client, body: dict[str, Any], pointer: str
) -> None:
    answer = await client.put(PATH, json=body)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [pointer]
    assert code_of(await client.get(PATH)) == (404, "TEMPLATE_NOT_FOUND")


async def test_a_payload_is_refused_with_everything_that_is_wrong(client: Client) -> None:
    await client.put(PATH, json={"payload_schema": SCHEMA})
    body = {"type": "quiz", "queue": "ai", "payload": {"many": "x", "colour": 1}}
    answer = await client.post("/v1/jobs", json=body)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert sorted(pointers(answer)) == ["/payload/colour", "/payload/many", "/payload/topic"]
    fine = await client.post("/v1/jobs", json={**body, "payload": {"topic": "tides"}})
    assert (fine.status_code, fine.json()["template_version"]) == (201, 1)


async def test_an_output_is_refused_with_everything_that_is_wrong(client: Client) -> None:
    await client.put("/v1/queues/default/templates/t", json={"output_schema": SCHEMA})
    job_id, fence = await client.leased()
    body = {"fence": fence, "output": {"many": 1.5}}
    answer = await client.post(f"/v1/jobs/{job_id}/result", json=body)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert sorted(pointers(answer)) == ["/output/many", "/output/topic"]


async def test_a_null_schema_is_none(client: Client) -> None:
    answer = await client.put(PATH, json={"payload_schema": None, "output_schema": None})
    assert answer.status_code == 201
    assert (await client.put(PATH, json={})).json()["version"] == 1


async def test_the_same_key_gives_the_same_answer(client: Client) -> None:
    key = {"Idempotency-Key": "k"}
    first = await client.put(PATH, json={"title": "one"}, headers=key)
    again = await client.put(PATH, json={"title": "one"}, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert (again.status_code, again.json()) == (201, first.json())
    other = await client.put(PATH, json={"title": "two"}, headers=key)
    assert code_of(other) == (422, "IDEMPOTENCY_KEY_REUSED")
    await client.put(PATH, json={"title": "one"}, headers={"Idempotency-Key": "equal"})
    equal = await client.put(PATH, json={"title": "one"}, headers={"Idempotency-Key": "equal"})
    assert (equal.status_code, equal.json()["version"]) == (200, 1)


async def test_templates_by_queue_and_type(client: Client) -> None:
    for queue, job_type in (("b", "x"), ("a", "y"), ("a", "x")):
        await client.put(f"/v1/queues/{queue}/templates/{job_type}", json={})
    await client.put("/v1/queues/a/templates/x", json={"title": "newer"})
    first = (await client.get("/v1/templates", params={"limit": 2})).json()
    assert [(t["queue"], t["type"], t["version"]) for t in first["items"]] == [
        ("a", "x", 2),
        ("a", "y", 1),
    ]
    rest = await client.get("/v1/templates", params={"cursor": first["next_cursor"]})
    assert [t["queue"] for t in rest.json()["items"]] == ["b"]
    assert rest.json()["next_cursor"] is None
    of_x = await client.get("/v1/templates", params={"type": "x", "queue": ["a", "b"], "page": 1})
    assert [(t["queue"], t["type"]) for t in of_x.json()["items"]] == [("a", "x"), ("b", "x")]
    assert of_x.json()["total"] == 2
    unknown = await client.get("/v1/templates", params={"typ": "x"})
    assert pointers(unknown) == ["/typ"]


async def test_an_undecided_put(client: Client) -> None:
    client.world.silent = True
    answer = await client.put(PATH, json={})
    assert answer.status_code == 202
    assert answer.headers["location"].startswith("/v1/commands/")


async def test_a_disabled_template_takes_no_jobs(client: Client) -> None:
    await client.put("/v1/queues/default/templates/t", json={"enabled": False})
    answer = await client.post("/v1/jobs", json={"type": "t"})
    assert code_of(answer) == (409, "TEMPLATE_DISABLED")


async def test_what_a_template_does_not_let_be_overridden(client: Client) -> None:
    await client.put("/v1/queues/default/templates/t", json={"overridable": ["priority"]})
    answer = await client.post("/v1/jobs", json={"type": "t", "labels": {"a": "b"}})
    assert (code_of(answer)[1], pointers(answer)) == ("VALIDATION_FAILED", ["/labels"])
    assert (await client.post("/v1/jobs", json={"type": "t", "priority": 1})).status_code == 201


# --- What of its equals a job may stand beside ---------------------------------------------------
async def policy(client: Client, name: str, **fields: Any) -> None:
    body = {"concurrency_policy": name, **fields}
    put = await client.put("/v1/queues/default/templates/t", json=body)
    assert put.status_code == 201, put.text


async def test_an_active_equal_refuses_and_is_named(client: Client) -> None:
    await policy(client, "reject_same_scope")
    first = await client.job(scope="project:1")
    answer = await client.post("/v1/jobs", json={"type": "t", "scope": "project:1"})
    assert code_of(answer) == (409, "DUPLICATE_ACTIVE")
    assert answer.json()["job_id"] == first["id"]
    assert (await client.post("/v1/jobs", json={"type": "t", "scope": "project:2"})).is_success


async def test_equals_share_one_in_flight(client: Client) -> None:
    await policy(client, "share_in_flight", dedupe_keys=["/payload/n"])
    first = await client.job(payload={"n": 1})
    answer = await client.post("/v1/jobs", json={"type": "t", "payload": {"n": 1}})
    assert (answer.status_code, answer.json()["id"]) == (200, first["id"])
    assert answer.json()["deduplicated"] is True
    assert answer.headers["location"] == f"/v1/jobs/{first['id']}"
    assert "idempotency-replayed" not in answer.headers


async def test_what_succeeded_is_not_repeated(client: Client) -> None:
    await policy(client, "allow_parallel", repeatable=False)
    done = await client.succeeded(scope="s")
    answer = await client.post("/v1/jobs", json={"type": "t", "scope": "s"})
    assert code_of(answer) == (409, "NOT_REPEATABLE")
    assert answer.json()["job_id"] == done


async def test_a_newer_one_replaces_those_that_wait(client: Client) -> None:
    await policy(client, "replace_existing")
    first = await client.job(scope="s")
    second = await client.job(scope="s")
    before = (await client.get(f"/v1/jobs/{first['id']}")).json()
    assert (before["status"], before["replaced_by"]) == ("cancelled", second["id"])
