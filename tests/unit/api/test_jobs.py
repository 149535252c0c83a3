"""Jobs over HTTP: asked for, read, listed, cancelled, run again."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.canonical import sha256_hex
from ledger.domain.ids import Micros
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client

UNKNOWN = "default.01890000-0000-7000-8000-000000000000"


# --- Asked for -----------------------------------------------------------------------------------
async def test_a_new_job_is_201_with_its_place(client: Client) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t", "payload": {"a": 1}})
    job = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["etag"] == '"1"'
    assert answer.headers["ledger-position"] == f"{client.world.log_of(job['id']).number}:0"
    assert job["status"] == "pending"
    assert job["payload"] == {"a": 1}
    assert "deduplicated" not in job


async def test_the_location_answers_the_same_job(client: Client) -> None:
    created = await client.post("/v1/jobs", json={"type": "t"})
    read = await client.get(created.headers["location"])
    assert read.json() == created.json()
    assert read.headers["etag"] == created.headers["etag"]


async def test_a_payload_is_kept_byte_for_byte(client: Client) -> None:
    body = b'{"type": "t", "payload": {"z": 1.0, "a":  [1e2, "\\u00e9"]}}'
    answer = await client.post(
        "/v1/jobs", content=body, headers={"content-type": "application/json"}
    )
    assert b'"payload":{"z": 1.0, "a":  [1e2, "\\u00e9"]}' in answer.content


async def test_a_key_names_one_job(client: Client) -> None:
    first = await client.post("/v1/jobs", json={"type": "t", "idempotency_key": "k"})
    again = await client.post("/v1/jobs", json={"type": "t", "idempotency_key": "k"})
    assert again.status_code == 200
    assert again.json() == {**first.json(), "deduplicated": True}
    assert again.headers["idempotency-replayed"] == "true"


async def test_a_key_answers_with_the_job_as_it_is_now(client: Client) -> None:
    job_id = await client.succeeded({"x": 1}, idempotency_key="k")
    again = await client.post("/v1/jobs", json={"type": "t", "idempotency_key": "k"})
    assert again.json()["id"] == job_id
    assert again.json()["status"] == "succeeded"


@pytest.mark.parametrize("header", ['"k"', "k"])
async def test_the_header_fills_the_key_quoted_or_bare(client: Client, header: str) -> None:
    first = await client.post("/v1/jobs", json={"type": "t", "idempotency_key": "k"})
    again = await client.post("/v1/jobs", json={"type": "t"}, headers={"Idempotency-Key": header})
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["idempotency_key"] == "k"


async def test_a_key_with_other_content_is_refused(client: Client) -> None:
    first = await client.job(idempotency_key="k", payload={"a": 1})
    other = await client.post(
        "/v1/jobs", json={"type": "t", "idempotency_key": "k", "payload": {"a": 2}}
    )
    assert code_of(other) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert other.json()["job_id"] == first["id"]


async def test_content_is_compared_as_canonical_json(client: Client) -> None:
    first = await client.job(idempotency_key="k", payload={"a": 1, "b": 1e2})
    body = b'{"payload":{"b":100,"a":1.0},"idempotency_key":"k","type":"t"}'
    again = await client.post("/v1/jobs", content=body)
    assert again.json()["id"] == first["id"]


async def test_header_and_body_must_agree_on_the_key(client: Client) -> None:
    answer = await client.post(
        "/v1/jobs",
        json={"type": "t", "idempotency_key": "a"},
        headers={"Idempotency-Key": "b"},
    )
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/idempotency_key"]


async def test_the_key_of_a_forgotten_job_answers_from_the_view(client: Client) -> None:
    job_id = await client.succeeded(idempotency_key="k")
    client.world.forget(job_id)
    again = await client.post("/v1/jobs", json={"type": "t", "idempotency_key": "k"})
    assert (again.status_code, again.json()["id"]) == (200, job_id)
    assert again.json()["deduplicated"] is True


async def test_what_the_view_cannot_show_yet_is_accepted(client: Client) -> None:
    client.world.sends_jobs = False
    client.world.is_lagging = True
    answer = await client.post("/v1/jobs", json={"type": "t"})
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/commands/{answer.json()['command_id']}"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "/delay_seconds"),
        ({"run_at": "9999-12-31T23:59:59-05:00"}, "/run_at"),
    ],
)
async def test_a_rule_names_the_field(client: Client, change: dict[str, Any], pointer: str) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t", **change})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [pointer]


async def test_a_version_of_a_template_that_is_not_held(client: Client) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t", "template_version": 3})
    assert code_of(answer) == (404, "TEMPLATE_NOT_FOUND")


async def test_a_full_queue_says_when_to_come_again(client: Client) -> None:
    for log in client.world.logs.values():
        log.owner.open_bytes = log.owner.bounds.open_bytes_max
    answer = await client.post("/v1/jobs", json={"type": "t"})
    assert code_of(answer) == (429, "QUEUE_FULL")
    assert int(answer.headers["retry-after"]) > 0


# --- Read ----------------------------------------------------------------------------------------
async def test_what_is_no_job_id_is_not_found(client: Client) -> None:
    for text in ("x", "default.x", UNKNOWN.upper(), f"{UNKNOWN}0", "%00", "_a." + UNKNOWN[8:]):
        assert (await client.get(f"/v1/jobs/{text}")).status_code in (404, 422)
    assert code_of(await client.get(f"/v1/jobs/{UNKNOWN}")) == (404, "JOB_NOT_FOUND")


async def test_an_unknown_job_waits_for_the_view(client: Client) -> None:
    client.world.is_lagging = True
    job = await client.job()
    client.world.catch_up()
    assert (await client.get(f"/v1/jobs/{job['id']}")).status_code == 200


async def test_not_found_says_how_far_that_is_true(client: Client) -> None:
    client.world.is_lagging = True
    job = await client.job()
    answer = await client.get(f"/v1/jobs/{job['id']}")
    assert code_of(answer) == (404, "JOB_NOT_FOUND")
    assert answer.headers["ledger-position"] == f"{client.world.log_of(job['id']).number}:-1"


async def test_a_job_as_it_was(client: Client) -> None:
    client.world.at = Micros(client.world.at + 567)  # Answers show milliseconds only.
    job_id, _ = await client.leased()
    lately = await client.get(f"/v1/jobs/{job_id}")
    before = await client.get(f"/v1/jobs/{job_id}", params={"as_of": "1"})
    assert (lately.json()["status"], before.json()["status"]) == ("leased", "pending")
    assert before.headers["etag"] == '"1"'
    at = before.json()["created_at"]
    then = await client.get(f"/v1/jobs/{job_id}", params={"as_of": at})
    assert then.json()["version"] == 1


@pytest.mark.parametrize("as_of", ["0", "9", "99999999999999999999", "2000-01-01T00:00:00Z"])
async def test_a_job_as_it_never_was(client: Client, as_of: str) -> None:
    job = await client.job()
    answer = await client.get(f"/v1/jobs/{job['id']}", params={"as_of": as_of})
    assert code_of(answer) == (404, "JOB_NOT_FOUND")


@pytest.mark.parametrize("as_of", ["", "yesterday", "2000-01-01T00:00:00", "-1", "²"])
async def test_as_of_takes_an_instant_or_a_version(client: Client, as_of: str) -> None:
    job = await client.job()
    answer = await client.get(f"/v1/jobs/{job['id']}", params={"as_of": as_of})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/as_of"]


@pytest.mark.rule("S2.9")
async def test_history_by_cursor_and_by_page(client: Client) -> None:
    job_id, fence = await client.leased()
    await client.post(f"/v1/jobs/{job_id}/start", json={"fence": fence})
    whole = (await client.get(f"/v1/jobs/{job_id}/events")).json()
    assert [one["seq"] for one in whole["items"]] == [1, 2, 3]
    assert whole["items"][0]["type"] == "ledger.job.requested.v1"
    assert whole["next_cursor"] is None
    first = (await client.get(f"/v1/jobs/{job_id}/events", params={"limit": 2})).json()
    rest = await client.get(
        f"/v1/jobs/{job_id}/events", params={"limit": 2, "cursor": first["next_cursor"]}
    )
    assert first["items"] + rest.json()["items"] == whole["items"]
    page = await client.get(f"/v1/jobs/{job_id}/events", params={"page": 2, "page_size": 2})
    assert page.json()["items"] == rest.json()["items"]
    assert (page.json()["total"], page.json()["total_pages"]) == (3, 2)


async def test_a_foreign_cursor_is_refused(client: Client) -> None:
    job = await client.job()
    for path in ("/v1/jobs", f"/v1/jobs/{job['id']}/events"):
        answer = await client.get(path, params={"cursor": "nonsense"})
        assert code_of(answer) == (422, "VALIDATION_FAILED")
        assert pointers(answer) == ["/cursor"]


async def test_output_is_what_the_runtime_sent(client: Client) -> None:
    job_id, fence = await client.leased()
    body = b'{"fence": %d, "output": {"b":  1.50}}' % fence
    await client.post(f"/v1/jobs/{job_id}/result", content=body)
    answer = await client.get(f"/v1/jobs/{job_id}/output")
    assert answer.content == b'{"b":  1.50}'
    assert answer.headers["content-type"] == "application/json"


async def test_no_result_has_no_output(client: Client) -> None:
    job = await client.job()
    answer = await client.get(f"/v1/jobs/{job['id']}/output")
    assert code_of(answer) == (404, "RESULT_NOT_FOUND")
    assert answer.json()["job_status"] == "pending"


async def test_attempts_of_a_job(client: Client) -> None:
    job_id, _ = await client.leased()
    answer = await client.get(f"/v1/jobs/{job_id}/attempts")
    assert answer.status_code == 200
    assert "items" in answer.json()


# --- Listed --------------------------------------------------------------------------------------
async def test_lists_go_by_cursor(client: Client) -> None:
    ids = [(await client.job())["id"] for _ in range(5)]
    first = (await client.get("/v1/jobs", params={"limit": 3})).json()
    rest = await client.get("/v1/jobs", params={"limit": 3, "cursor": first["next_cursor"]})
    listed = [job["id"] for job in first["items"] + rest.json()["items"]]
    assert listed == ids[::-1]
    assert rest.json()["next_cursor"] is None


async def test_lists_go_by_page(client: Client) -> None:
    for _ in range(5):
        await client.job()
    answer = await client.get("/v1/jobs", params={"page": 2, "page_size": 2})
    page = answer.json()
    assert len(page.pop("items")) == 2
    assert page == {"page": 2, "page_size": 2, "total": 5, "total_pages": 3, "total_exact": True}


async def test_filters(client: Client) -> None:
    wanted = await client.job(queue="q1", labels={"user": "ada"}, scope="project:1")
    await client.job(queue="q2", labels={"user": "bob"})
    filters: list[dict[str, Any]] = [
        {"queue": "q1"},
        {"label.user": "ada"},
        {"scope": "project:1"},
        {"status": ["pending", "failed"], "queue": "q1"},
        {"created_from": wanted["created_at"], "queue": "q1"},
    ]
    for params in filters:
        items = (await client.get("/v1/jobs", params=params)).json()["items"]
        assert [job["id"] for job in items] == [wanted["id"]], params


async def test_a_list_says_how_far_all_partitions_are(client: Client) -> None:
    await client.job()
    answer = await client.get("/v1/jobs")
    assert answer.headers["ledger-position"].count(":") == len(client.world.logs)


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({"limit": "0"}, "/limit"),
        ({"limit": "201"}, "/limit"),
        ({"limit": "ten"}, "/limit"),
        ({"limit": "null"}, "/limit"),
        ({"limit": ""}, "/limit"),
        ({"limit": "1.5"}, "/limit"),
        ({"page_size": "201"}, "/page_size"),
        ({"page": "0"}, "/page"),
        ({"page": "1", "limit": "5"}, "/limit"),
        ({"page": "1", "cursor": "5"}, "/cursor"),
        ({"status": "done"}, "/status/0"),
        ({"order": "up"}, "/order"),
        ({"queue": "A"}, "/queue/0"),
        ({"nonsense": "1"}, "/nonsense"),
        ({"label": "1"}, "/label"),
        ({"label.": "1"}, "/label."),
        ({"created_from": "yesterday"}, "/created_from"),
        ({"created_to": "5"}, "/created_to"),
        ([("limit", "1"), ("limit", "2")], "/limit"),
    ],
)
async def test_a_wrong_parameter_is_an_error(client: Client, params: Any, pointer: str) -> None:
    answer = await client.get("/v1/jobs", params=params)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [pointer]


async def test_a_typing_error_is_answered_with_a_guess(client: Client) -> None:
    answer = await client.get("/v1/jobs", params={"limits": "1"})
    assert "did you mean limit?" in answer.json()["detail"]


# --- Ended, run again ----------------------------------------------------------------------------
async def test_cancel_of_a_pending_job_needs_no_body(client: Client) -> None:
    job = await client.job()
    answer = await client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")


async def test_cancel_of_a_leased_job_asks_its_runtime(client: Client) -> None:
    job_id, _ = await client.leased()
    answer = await client.post(f"/v1/jobs/{job_id}/cancel", json={"reason": "no more"})
    assert answer.json()["status"] == "cancelling"
    assert answer.json()["cancel"]["reason"] == "no more"
    twice = await client.post(f"/v1/jobs/{job_id}/cancel")
    assert twice.status_code == 200
    assert twice.json()["version"] == answer.json()["version"]


async def test_cancel_of_an_ended_job(client: Client) -> None:
    job_id = await client.succeeded()
    answer = await client.post(f"/v1/jobs/{job_id}/cancel")
    assert code_of(answer) == (409, "JOB_CLOSED")
    assert answer.json()["job_status"] == "succeeded"


async def test_a_rerun_is_a_new_job(client: Client) -> None:
    job_id = await client.succeeded(payload={"a": 1})
    answer = await client.post(f"/v1/jobs/{job_id}/rerun", json={"priority": 1})
    job = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["retried_from"], job["priority"], job["payload"]) == (job_id, 1, {"a": 1})


async def test_a_rerun_of_an_open_job(client: Client) -> None:
    job = await client.job()
    answer = await client.post(f"/v1/jobs/{job['id']}/rerun")
    assert code_of(answer) == (409, "JOB_NOT_CLOSED")


# --- What its owner has forgotten ----------------------------------------------------------------
async def test_an_ended_job_is_answered_with_the_same_codes(client: Client) -> None:
    job_id = await client.succeeded({"x": 1})
    client.world.forget(job_id)
    same = await client.post(f"/v1/jobs/{job_id}/result", json={"fence": 1, "output": {"x": 1.0}})
    other = await client.post(f"/v1/jobs/{job_id}/result", json={"fence": 1, "output": {"x": 2}})
    cancel = await client.post(f"/v1/jobs/{job_id}/cancel")
    start = await client.post(f"/v1/jobs/{job_id}/start", json={"fence": 7})
    assert (same.status_code, same.json()["status"]) == (200, "succeeded")
    assert code_of(other) == (409, "RESULT_ALREADY_EXISTS")
    assert code_of(cancel) == (409, "JOB_CLOSED")
    assert code_of(start) == (409, "JOB_CLOSED")
    assert start.json()["job_status"] == "succeeded"
    assert "ledger-position" in start.headers


async def test_a_result_on_a_forgotten_job_without_one(client: Client) -> None:
    job = await client.job()
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    client.world.forget(job["id"])
    answer = await client.post(f"/v1/jobs/{job['id']}/result", json={"fence": 1, "output": 1})
    assert code_of(answer) == (409, "JOB_CLOSED")


async def test_a_rerun_of_a_forgotten_job_brings_it_along(client: Client) -> None:
    job_id = await client.succeeded(payload={"a": 1}, labels={"u": "1"})
    client.world.forget(job_id)
    headers = {"Idempotency-Key": "again"}
    answer = await client.post(f"/v1/jobs/{job_id}/rerun", headers=headers)
    repeat = await client.post(f"/v1/jobs/{job_id}/rerun", headers=headers)
    job = answer.json()
    assert answer.status_code == 201
    assert (job["retried_from"], job["payload"], job["labels"]) == (job_id, {"a": 1}, {"u": "1"})
    assert repeat.json()["id"] == job["id"]
    assert repeat.headers["idempotency-replayed"] == "true"


async def test_a_job_that_never_was(client: Client) -> None:
    for path, body in (
        ("cancel", {}),
        ("rerun", {}),
        ("lock", {"runtime_id": "r"}),
        ("result", {"fence": 1, "output": 1}),
    ):
        answer = await client.post(f"/v1/jobs/{UNKNOWN}/{path}", json=body)
        assert code_of(answer) == (404, "JOB_NOT_FOUND")


async def test_an_owner_that_knows_less_than_the_view_is_not_believed(client: Client) -> None:
    """The view shows the job open, so nobody can say what became of it."""
    job = await client.job()
    del client.world.log_of(job["id"]).owner.jobs[job["id"]]
    answer = await client.post(f"/v1/jobs/{job['id']}/start", json={"fence": 1})
    assert code_of(answer) == (503, "VIEW_BEHIND")


def test_hashes_are_over_canonical_bytes() -> None:
    assert sha256_hex({"a": 1.0}) == sha256_hex({"a": 1})
