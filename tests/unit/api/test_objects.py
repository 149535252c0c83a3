"""Payloads and outputs too large for the log: moved to the object store, given out from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from api.wire import Sent
from ledger.domain.commands import RequestJob, RerunJob, SubmitResult, WithdrawResult
from ledger.domain.ids import INLINE_BYTES_MAX, CommandId, Fence, JobId
from ledger.domain.object_keys import output_key
from ledger.objects import FolderStore, ObjectStore
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client, World, client_over

pytestmark = pytest.mark.rule("S3.7")

LARGE = {"text": "é" * INLINE_BYTES_MAX, "n": [1.50, 2]}
BYTES_MAX = 400_000


@pytest.fixture
async def store(world: World, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = FolderStore(tmp_path / "objects")
    world.objects = store
    yield store
    await store.close()


@pytest.fixture
async def client(world: World, store: ObjectStore) -> AsyncIterator[Client]:
    world.settings = replace(world.settings, object_bytes_max=BYTES_MAX)
    async with client_over(world) as client:
        yield client


async def keys(store: ObjectStore) -> list[str]:
    return [found.key for found in (await store.listing("")).objects]


async def asked(client: Client, body: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **headers}
    return await client.post("/v1/jobs", content=body, headers=sent)


def sent_of(client: Client, kind: type[Any]) -> Any:
    return [one.command for one in client.world.sent if isinstance(one.command, kind)][-1]


# --- Payloads -------------------------------------------------------------------------------------
async def test_a_large_payload_lies_in_the_store_and_is_given_byte_for_byte(
    client: Client, store: ObjectStore
) -> None:
    payload = b'{ "text":"' + b"x" * 200_000 + b'", "n" : 1.50 }'
    body = b'{"type":"t","labels":{"user":"ada"},"payload":' + payload + b"}"
    answer = await asked(client, body)
    assert answer.status_code == 201
    job = answer.json()
    [key] = await keys(store)
    digest = sha256(payload).hexdigest()
    assert job["payload_ref"] == {"key": key, "size": len(payload), "sha256": digest}
    assert (job["payload"], key[:15]) == ({}, "users/ada/tasks")
    whole = await client.get(f"/v1/jobs/{job['id']}/payload")
    assert (whole.status_code, whole.content) == (200, payload)
    assert whole.headers["content-length"] == str(len(payload))
    head = await client.head(f"/v1/jobs/{job['id']}/payload")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(payload)))


async def test_what_fits_the_log_stays_there(client: Client, store: ObjectStore) -> None:
    most = {"text": "x" * (INLINE_BYTES_MAX - 11)}
    job = await client.job(payload=most)
    assert (job["payload"], job["payload_ref"]) == (most, None)
    whole = await client.get(f"/v1/jobs/{job['id']}/payload")
    assert whole.json() == most
    assert await keys(store) == []


async def test_beyond_the_bound_it_is_refused(client: Client, store: ObjectStore) -> None:
    job = {"type": "t", "payload": "x" * BYTES_MAX}
    answer = await client.post("/v1/jobs", json=job)
    assert code_of(answer) == (413, "PAYLOAD_TOO_LARGE")
    assert pointers(answer) == ["/payload"]
    body = await client.post("/v1/jobs", json={**job, "payload": "x" * 2 * BYTES_MAX})
    assert code_of(body) == (413, "PAYLOAD_TOO_LARGE")
    other = await client.post("/v1/jobs/cancel", content=b" " * BYTES_MAX)
    assert code_of(other) == (413, "PAYLOAD_TOO_LARGE")
    assert (await keys(store), client.world.sent) == ([], [])


async def test_a_large_body_is_held_to_strict_json(client: Client) -> None:
    text = msgspec.json.encode("x" * 300_000)
    answer = await asked(client, b'{"type":"t","payload":{"a":1,"a":' + text + b"}}")
    assert code_of(answer) == (400, "MALFORMED_JSON")
    unsafe = await asked(client, b'{"type":"t","payload":{"a":9007199254740993,"b":' + text + b"}}")
    assert pointers(unsafe) == ["/payload/a"]


async def test_its_schema_is_checked_before_it_is_moved(client: Client, store: ObjectStore) -> None:
    schema = {"type": "object", "properties": {"n": {"items": {"type": "string"}}}}
    await client.put("/v1/queues/default/templates/t", json={"payload_schema": schema})
    answer = await client.post("/v1/jobs", json={"type": "t", "payload": LARGE})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/payload/n/0", "/payload/n/1"]
    assert await keys(store) == []


@pytest.mark.rule("S2.2")
async def test_rules_see_what_the_template_points_to(client: Client) -> None:
    template = {"dedupe_keys": ["/payload/n"], "concurrency_policy": "share_in_flight"}
    await client.put("/v1/queues/default/templates/t", json=template)
    first = await client.job(payload=LARGE)
    again = await client.job(payload={**LARGE, "text": "y" * INLINE_BYTES_MAX})
    small = await client.job(payload={"n": [1.5, 2]})
    assert {again["id"], small["id"]} == {first["id"]}
    assert sent_of(client, RequestJob).extract is None
    assert (await client.job(payload={**LARGE, "n": []}))["id"] != first["id"]


async def test_limits_of_the_queue_see_it_too(client: Client) -> None:
    await client.put("/v1/queues/default", json={"limits": [{"key": ["/payload/n"], "max": 1}]})
    await client.job(payload=LARGE)
    assert sent_of(client, RequestJob).extract == {"/payload/n": [1.5, 2]}


async def test_what_keys_point_to_must_fit(client: Client, store: ObjectStore) -> None:
    await client.put("/v1/queues/default/templates/t", json={"dedupe_keys": ["/payload/text"]})
    answer = await client.post("/v1/jobs", json={"type": "t", "payload": LARGE})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/payload/text"]
    assert await keys(store) == []


async def test_a_template_that_the_view_does_not_show_yet_is_not_passed_over(
    client: Client,
) -> None:
    client.world.is_lagging = True
    await client.put("/v1/queues/default/templates/t", json={"title": "new"})
    answer = await client.post("/v1/jobs", json={"type": "t", "payload": LARGE})
    assert code_of(answer) == (503, "VIEW_BEHIND")
    client.world.catch_up()
    await client.job(payload=LARGE)


@pytest.mark.rule("S1.7")
async def test_the_same_key_and_content_is_the_same_job(client: Client) -> None:
    key = {"Idempotency-Key": "k"}
    first = await client.post("/v1/jobs", json={"type": "t", "payload": LARGE}, headers=key)
    again = await client.post("/v1/jobs", json={"payload": LARGE, "type": "t"}, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    other = {"type": "t", "payload": {**LARGE, "n": []}}
    answer = await client.post("/v1/jobs", json=other, headers=key)
    assert code_of(answer) == (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.parametrize("field", ["payload_ref", "payload_hash", "extract", "checked_against"])
async def test_nobody_else_says_what_lies_in_the_store(client: Client, field: str) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t", field: None})
    assert pointers(answer) == [f"/{field}"]


# --- Outputs --------------------------------------------------------------------------------------
async def done(client: Client, output: object = LARGE, **asked: Any) -> tuple[str, int]:
    job_id, fence = await client.leased(**asked)
    body = {"fence": fence, "output": output}
    answer = await client.post(f"/v1/jobs/{job_id}/result", json=body)
    assert answer.status_code == 200, answer.text
    return job_id, fence


async def test_a_large_output_is_given_byte_for_byte(client: Client, store: ObjectStore) -> None:
    job_id, fence = await client.leased(labels={"user": "ada", "task": "cards"})
    output = b'[ "' + b"x" * 200_000 + b'", 1.50 ]'
    body = b'{"fence":' + str(fence).encode() + b',"output":' + output + b"}"
    headers = {"content-type": "application/json"}
    answer = await client.post(f"/v1/jobs/{job_id}/result", content=body, headers=headers)
    result = answer.json()["result"]
    [key] = await keys(store)
    assert key.startswith("users/ada/tasks/cards/output/")
    assert (result["output"], result["output_ref"]["key"]) == (None, key)
    whole = await client.get(f"/v1/jobs/{job_id}/output")
    assert (whole.content, whole.headers["content-type"]) == (output, "application/json")
    known = await client.get(
        f"/v1/jobs/{job_id}/output", headers={"If-None-Match": whole.headers["etag"]}
    )
    assert known.status_code == 304


@pytest.mark.rule("S1.8")
async def test_the_same_output_again_is_no_news_and_puts_nothing(
    client: Client, store: ObjectStore
) -> None:
    job_id, fence = await done(client)
    path = f"/v1/jobs/{job_id}/result"
    before = await keys(store)
    again = await client.post(path, json={"fence": fence, "output": LARGE})
    other = await client.post(path, json={"fence": fence, "output": {**LARGE, "n": []}})
    assert again.status_code == 200
    assert code_of(other) == (409, "RESULT_ALREADY_EXISTS")
    assert await keys(store) == before


async def test_an_output_is_checked_before_it_is_moved(client: Client, store: ObjectStore) -> None:
    schema = {"properties": {"n": {"type": "string"}}}
    await client.put("/v1/queues/default/templates/t", json={"output_schema": schema})
    job_id, fence = await client.leased()
    body = {"fence": fence, "output": LARGE}
    answer = await client.post(f"/v1/jobs/{job_id}/result", json=body)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/output/n"]
    assert await keys(store) == []


@pytest.mark.rule("S2.5")
async def test_conditions_of_a_flow_see_what_they_name(client: Client) -> None:
    steps = [{"name": "one"}, {"name": "two", "when": "steps.one.output.n[0] > 1.0"}]
    await client.put("/v1/queues/default/templates/t", json={"steps": steps})
    job_id, _ = await done(client)
    said = sent_of(client, SubmitResult)
    assert said.extract == {"/n": [1.5, 2]}
    job = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert [step["status"] for step in job["steps"]] == ["succeeded", "pending"]


async def test_an_output_that_its_runtime_has_put_must_be_there(
    client: Client, store: ObjectStore
) -> None:
    job_id, fence = await client.leased()
    key = output_key(JobId(job_id), {}, Fence(fence), "plan.pdf")
    digest = sha256(b"pdf").hexdigest()
    ref = {"key": key, "size": 3, "sha256": digest}
    path = f"/v1/jobs/{job_id}/result"
    absent = await client.post(path, json={"fence": fence, "output_ref": ref})
    assert (code_of(absent), pointers(absent)) == ((422, "VALIDATION_FAILED"), ["/output_ref"])
    await store.put(key, b"pdf", sha256=digest, size=3)
    there = await client.post(path, json={"fence": fence, "output_ref": ref})
    assert there.json()["result"]["output_ref"] == ref
    output = await client.get(f"/v1/jobs/{job_id}/output")
    media_type = output.headers["content-type"]
    assert (output.content, media_type) == (b"pdf", "application/octet-stream")


async def test_under_one_key_an_output_comes_in_the_same_bytes(client: Client) -> None:
    job_id, fence = await client.leased()
    headers = {"content-type": "application/json", "Idempotency-Key": "k"}
    bodies = [
        b'{"fence":%d,"output":[%s"%s"]}' % (fence, blank, b"x" * 70_000) for blank in (b"", b" ")
    ]
    client.world.silent = True
    path = f"/v1/jobs/{job_id}/result"
    first = await client.post(path, content=bodies[0], headers={**headers, "Prefer": "wait=0"})
    assert first.status_code == 202
    answer = await client.post(path, content=bodies[1], headers=headers)
    assert code_of(answer) == (422, "IDEMPOTENCY_KEY_REUSED")


# --- Outputs of steps -----------------------------------------------------------------------------
STEPS = [{"name": "one"}, {"name": "many", "each": "/one/list"}, {"name": "last"}]


async def next_step(client: Client, job_id: str) -> dict[str, Any]:
    answer = await client.post(f"/v1/jobs/{job_id}/lock", json={"runtime_id": "r1"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.rule("S2.5")
async def test_a_runtime_fetches_each_input_that_lies_in_the_store(client: Client) -> None:
    await client.put("/v1/queues/default/templates/t", json={"steps": STEPS})
    first = {**LARGE, "list": ["a", "b"]}
    job_id, _ = await done(client, first)
    for output in ({"small": 1}, LARGE):
        lease = await next_step(client, job_id)
        assert list(lease["input_refs"]) == ["one"]
        given = await client.get(f"/v1/jobs/{job_id}/steps/one/output")
        assert given.json() == first
        assert given.headers["content-length"] == str(lease["input_refs"]["one"]["size"])
        body = {"fence": lease["fence"], "output": output}
        await client.post(f"/v1/jobs/{job_id}/result", json=body)
    lease = await next_step(client, job_id)
    assert lease["inputs"]["many"] == [{"small": 1}, None]
    [name] = lease["input_refs"]
    assert (await client.get(f"/v1/jobs/{job_id}/steps/{name}/output")).json() == LARGE
    # What lies in the log is given in the same way.
    inline = await client.get(f"/v1/jobs/{job_id}/steps/many[0]/output")
    assert inline.json() == {"small": 1}
    known = {"If-None-Match": inline.headers["etag"]}
    again = await client.get(f"/v1/jobs/{job_id}/steps/many[0]/output", headers=known)
    assert again.status_code == 304


@pytest.mark.rule("S2.5")
async def test_an_input_is_there_as_soon_as_its_step_may_be_had(world: World) -> None:
    world.settings = replace(world.settings, view_seconds=30)
    async with client_over(world) as client:
        steps = [{"name": "one"}, {"name": "two"}]
        await client.put("/v1/queues/default/templates/t", json={"steps": steps})
        job_id, fence = await client.leased()
        world.is_lagging = True
        body = {"fence": fence, "output": {"small": 1}}
        await client.post(f"/v1/jobs/{job_id}/result", json=body)
        asking = asyncio.create_task(client.get(f"/v1/jobs/{job_id}/steps/one/output"))
        await client.get("/healthz")
        world.catch_up()
        assert (await asking).json() == {"small": 1}


async def test_where_a_step_has_no_output_it_says_why(client: Client, store: ObjectStore) -> None:
    await client.put("/v1/queues/default/templates/t", json={"steps": STEPS})
    job_id, _ = await done(client, {**LARGE, "list": [1, 2]})
    plain = await client.job(type="plain")
    for path, why in {
        f"{job_id}/steps/many": "many[0] to many[1]",
        f"{job_id}/steps/last": "succeeded",
        f"{job_id}/steps/none": "succeeded",
        f"{plain['id']}/steps/main": "no steps",
    }.items():
        answer = await client.get(f"/v1/jobs/{path}/output")
        assert code_of(answer) == (404, "RESULT_NOT_FOUND")
        assert why in answer.json()["detail"]
    await client.post(f"/v1/jobs/{job_id}/cancel")
    withdraw(client.world, job_id, "owner_removed")
    gone = await client.get(f"/v1/jobs/{job_id}/steps/one/output")
    assert code_of(gone) == (404, "RESULT_NOT_FOUND")
    assert "removed" in gone.json()["detail"]


# --- What is gone ---------------------------------------------------------------------------------
async def test_what_was_lost_or_damaged_is_told(client: Client, store: ObjectStore) -> None:
    job_id, _ = await done(client)
    [key] = await keys(store)
    await store.delete(key)
    lost = await client.get(f"/v1/jobs/{job_id}/output")
    assert code_of(lost) == (404, "RESULT_NOT_FOUND")
    await store.put(key, b"other", sha256=sha256(b"other").hexdigest(), size=5)
    damaged = await client.get(f"/v1/jobs/{job_id}/output")
    assert code_of(damaged) == (500, "OBJECT_DAMAGED")


@pytest.mark.rule("S4.7")
async def test_a_result_that_was_withdrawn_is_given_no_more(
    client: Client, store: ObjectStore
) -> None:
    for output in (LARGE, {"small": 1}):
        job_id, _ = await done(client, output)
        withdraw(client.world, job_id, "owner_removed")
        answer = await client.get(f"/v1/jobs/{job_id}/output")
        assert code_of(answer) == (404, "RESULT_NOT_FOUND")
        assert (await client.get(f"/v1/jobs/{job_id}")).json()["result"] is None


def withdraw(world: World, job_id: str, why: Any = "expired") -> None:
    world.take(Sent(WithdrawResult(JobId(job_id), why), CommandId(f"w-{job_id}"), "t"), "")


@pytest.mark.rule("S4.7")
async def test_of_an_erased_job_only_the_history_is_left(client: Client) -> None:
    key = {"Idempotency-Key": "k"}
    job_id, fence = await client.leased(failed_ttl_seconds=0, idempotency_key="k")
    body = {"fence": fence, "code": "X", "retryable": False}
    await client.post(f"/v1/jobs/{job_id}/fail", json=body)
    withdraw(client.world, job_id)
    for path in ("", "/output", "/payload", "/attempts"):
        assert code_of(await client.get(f"/v1/jobs/{job_id}{path}")) == (404, "JOB_NOT_FOUND")
    assert code_of(await client.post(f"/v1/jobs/{job_id}/rerun")) == (404, "JOB_NOT_FOUND")
    history = await client.get(f"/v1/jobs/{job_id}/events")
    assert history.json()["items"][-1]["type"] == "ledger.job.erased.v1"
    for _ in range(2):
        asked = {"type": "t", "failed_ttl_seconds": 0}
        again = await client.post("/v1/jobs", json=asked, headers=key)
        assert code_of(again) == (404, "JOB_NOT_FOUND")
        assert job_id in again.json()["detail"]
        client.world.forget(job_id)


# --- Reruns ---------------------------------------------------------------------------------------
@pytest.mark.rule("S1.9")
async def test_a_rerun_has_a_payload_of_its_own(client: Client, store: ObjectStore) -> None:
    for forgotten in (False, True):
        job = await client.job(payload=LARGE)
        await client.post(f"/v1/jobs/{job['id']}/cancel")
        if forgotten:
            client.world.forget(job["id"])
        answer = await client.post(f"/v1/jobs/{job['id']}/rerun", json={"labels": {"user": "bob"}})
        again = answer.json()
        assert (answer.status_code, again["retried_from"]) == (201, job["id"])
        assert again["payload_ref"]["key"].startswith("users/bob/")
        await store.delete(job["payload_ref"]["key"])
        whole = await client.get(f"/v1/jobs/{again['id']}/payload")
        assert whole.json() == LARGE


async def test_a_rerun_may_bring_a_large_payload(client: Client) -> None:
    job = await client.job(payload={"small": 1})
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    answer = await client.post(f"/v1/jobs/{job['id']}/rerun", json={"payload": LARGE})
    whole = await client.get(f"/v1/jobs/{answer.json()['id']}/payload")
    assert whole.json() == LARGE
    assert sent_of(client, RerunJob).extract == {}


async def test_a_rerun_of_what_is_lost_says_so(client: Client, store: ObjectStore) -> None:
    job = await client.job(payload=LARGE)
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    await store.delete(job["payload_ref"]["key"])
    answer = await client.post(f"/v1/jobs/{job['id']}/rerun")
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), ["/payload"])


async def failed_flow(client: Client) -> str:
    """Its first step has given `LARGE`, its second has failed."""
    steps = [{"name": "one"}, {"name": "two"}]
    template = {"steps": steps, "retry": {"max_attempts": 1}}
    await client.put("/v1/queues/default/templates/t", json=template)
    job_id, _ = await done(client)
    lease = await client.post(f"/v1/jobs/{job_id}/lock", json={"runtime_id": "r1"})
    failure = {"fence": lease.json()["fence"], "code": "X", "retryable": False}
    answer = await client.post(f"/v1/jobs/{job_id}/fail", json=failure)
    assert answer.json()["status"] == "failed"
    return job_id


async def rerun_from_failed(client: Client, job_id: str, **fields: Any) -> tuple[str, list[str]]:
    """The new job, and how its steps stand."""
    body = {"from_failed": True, **fields}
    answer = await client.post(f"/v1/jobs/{job_id}/rerun", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], [step["status"] for step in answer.json()["steps"]]


@pytest.mark.rule("S1.9", "S2.5")
async def test_a_rerun_from_where_it_failed_has_outputs_of_its_own(
    client: Client, store: ObjectStore
) -> None:
    job_id = await failed_flow(client)
    [old] = await keys(store)
    again, statuses = await rerun_from_failed(client, job_id, labels={"user": "bob"})
    assert statuses == ["succeeded", "pending"]
    await store.delete(old)
    [new] = await keys(store)
    assert new.startswith("users/bob/")
    lease = await client.post(f"/v1/jobs/{again}/lock", json={"runtime_id": "r1"})
    assert lease.json()["input_refs"]["one"]["key"] == new
    # And from there on once more.
    failure = {"fence": lease.json()["fence"], "code": "X", "retryable": False}
    await client.post(f"/v1/jobs/{again}/fail", json=failure)
    _, statuses = await rerun_from_failed(client, again)
    assert statuses == ["succeeded", "pending"]
    assert len(await keys(store)) == 2


async def test_a_step_whose_output_is_lost_is_done_again(
    client: Client, store: ObjectStore
) -> None:
    job_id = await failed_flow(client)
    await store.delete((await keys(store))[0])
    assert (await rerun_from_failed(client, job_id))[1] == ["pending", "pending"]


async def test_from_where_it_failed_is_said_once_the_view_shows_where_that_is(
    client: Client, store: ObjectStore
) -> None:
    steps = [{"name": "one"}, {"name": "two"}]
    await client.put("/v1/queues/default/templates/t", json={"steps": steps})
    job_id, _ = await done(client)
    client.world.is_lagging = True
    await client.post(f"/v1/jobs/{job_id}/cancel")
    answer = await client.post(f"/v1/jobs/{job_id}/rerun", json={"from_failed": True})
    assert code_of(answer) == (503, "VIEW_BEHIND")
    client.world.catch_up()
    assert (await rerun_from_failed(client, job_id))[1] == ["succeeded", "pending"]


# --- The store is away ----------------------------------------------------------------------------
async def test_while_the_store_is_away_nothing_is_recorded(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    world.objects = FolderStore(tmp_path / "file" / "objects")
    async with client_over(world) as client:
        answer = await client.post("/v1/jobs", json={"type": "t", "payload": LARGE})
        assert code_of(answer) == (503, "STORE_UNAVAILABLE")
        assert answer.headers["retry-after"] == "1"
        assert world.sent == []
        assert "objects" in (await client.get("/readyz")).json()["checks"]
        small = await client.job(payload={"a": 1})
        assert small["status"] == "pending"
