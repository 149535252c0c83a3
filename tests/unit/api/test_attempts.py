"""What an HTTP runtime says of one job."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.canonical import sha256_hex
from ledger.domain.ids import Fence, JobId
from ledger.domain.object_keys import output_key
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client


async def test_a_lock_answers_the_lease_with_the_job(client: Client) -> None:
    job = await client.job()
    answer = await client.post(f"/v1/jobs/{job['id']}/lock", json={"runtime_id": "r1"})
    lease = answer.json()
    assert answer.status_code == 200
    assert lease["job_id"] == job["id"]
    assert (lease["step"], lease["attempt"], lease["fence"]) == ("main", 1, 1)
    assert lease["job"]["lease"]["expires_at"] == lease["lease_expires_at"]
    assert lease["inputs"] == {}


@pytest.mark.parametrize("runtime", ["r1", "r2"])
async def test_the_loser_and_the_holder_itself_are_told_so(client: Client, runtime: str) -> None:
    job_id, _ = await client.leased()
    answer = await client.post(f"/v1/jobs/{job_id}/lock", json={"runtime_id": runtime})
    assert code_of(answer) == (409, "JOB_ALREADY_LOCKED")


async def test_a_delayed_job_cannot_be_locked(client: Client) -> None:
    job = await client.job(delay_seconds=60)
    answer = await client.post(f"/v1/jobs/{job['id']}/lock", json={"runtime_id": "r1"})
    assert code_of(answer) == (409, "JOB_NOT_PENDING")
    assert answer.json()["job_status"] == "pending"


async def test_a_lock_names_a_step(client: Client) -> None:
    job = await client.job()
    body = {"runtime_id": "r1", "step": "other"}
    answer = await client.post(f"/v1/jobs/{job['id']}/lock", json=body)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/step"]


async def test_start_heartbeat_progress_result(client: Client) -> None:
    job_id, fence = await client.leased()
    path = f"/v1/jobs/{job_id}"
    started = await client.post(f"{path}/start", json={"fence": fence})
    assert started.json()["status"] == "running"
    beat = await client.post(f"{path}/heartbeat", json={"fence": fence})
    assert beat.json()["cancel_requested"] is False
    assert beat.json().keys() == {
        "lease_expires_at",
        "cancel_requested",
        "cancel_reason",
        "cancel_deadline",
    }
    said = await client.post(f"{path}/progress", json={"fence": fence, "percent": 40})
    assert said.json()["progress"]["percent"] == 40
    done = await client.post(f"{path}/result", json={"fence": fence, "output": {"x": 1}})
    assert (done.status_code, done.json()["status"]) == (200, "succeeded")
    assert done.json()["result"]["output_hash"] == sha256_hex({"x": 1})
    assert done.headers["etag"] == f'"{done.json()["version"]}"'


async def test_a_heartbeat_tells_of_a_cancel(client: Client) -> None:
    job_id, fence = await client.leased()
    await client.post(f"/v1/jobs/{job_id}/cancel", json={"reason": "stop"})
    beat = (await client.post(f"/v1/jobs/{job_id}/heartbeat", json={"fence": fence})).json()
    assert (beat["cancel_requested"], beat["cancel_reason"]) == (True, "stop")
    done = await client.post(f"/v1/jobs/{job_id}/cancelled", json={"fence": fence})
    assert done.json()["status"] == "cancelled"


async def test_the_same_result_again_and_another(client: Client) -> None:
    job_id = await client.succeeded({"x": 1})
    path = f"/v1/jobs/{job_id}/result"
    same = await client.post(path, json={"fence": 1, "output": {"x": 1}})
    other = await client.post(path, json={"fence": 1, "output": {"x": 2}})
    assert same.status_code == 200
    assert code_of(other) == (409, "RESULT_ALREADY_EXISTS")


async def test_a_stale_fence(client: Client) -> None:
    job_id, fence = await client.leased()
    for path, more in (("start", {}), ("result", {"output": 1}), ("fail", {"code": "X"})):
        answer = await client.post(f"/v1/jobs/{job_id}/{path}", json={"fence": fence + 1, **more})
        assert code_of(answer) == (409, "LEASE_STALE")


async def test_fail_release_and_wait(client: Client) -> None:
    job_id, fence = await client.leased()
    failed = await client.post(
        f"/v1/jobs/{job_id}/fail",
        json={"fence": fence, "code": "NETWORK_ERROR", "message": "m", "details": {"a": [1]}},
    )
    assert failed.json()["status"] == "pending"
    assert failed.json()["error"]["details"] == {"a": [1]}
    job_id, fence = await client.leased()
    released = await client.post(f"/v1/jobs/{job_id}/release", json={"fence": fence})
    assert (released.json()["status"], released.json()["attempt"]) == ("pending", 0)
    job_id, fence = await client.leased()
    waiting = await client.post(
        f"/v1/jobs/{job_id}/wait", json={"fence": fence, "timeout_seconds": 5}
    )
    assert waiting.json()["status"] == "waiting"


async def test_an_acknowledged_cancel_that_nobody_asked_for(client: Client) -> None:
    job_id, fence = await client.leased()
    answer = await client.post(f"/v1/jobs/{job_id}/cancelled", json={"fence": fence})
    assert code_of(answer)[0] == 409


async def test_a_given_hash_is_checked(client: Client) -> None:
    job_id, fence = await client.leased()
    path, body = f"/v1/jobs/{job_id}/result", {"fence": fence, "output": {"b": 1, "a": 2}}
    wrong = await client.post(path, json={**body, "output_hash": "0" * 64})
    assert code_of(wrong) == (422, "VALIDATION_FAILED")
    assert pointers(wrong) == ["/output_hash"]
    right = await client.post(path, json={**body, "output_hash": sha256_hex(body["output"])})
    assert right.status_code == 200


async def test_an_output_lies_inline_or_elsewhere(client: Client) -> None:
    job_id, fence = await client.leased()
    key = output_key(JobId(job_id), {}, Fence(fence))
    ref = {"key": key, "size": 5, "sha256": "0" * 64}
    path = f"/v1/jobs/{job_id}/result"
    both = await client.post(path, json={"fence": fence, "output": 1, "output_ref": ref})
    assert pointers(both) == ["/output_ref"]
    unknown = await client.post(path, json={"fence": fence, "output_ref": {**ref, "x": 1}})
    assert pointers(unknown) == ["/output_ref/x"]
    foreign = await client.post(path, json={"fence": fence, "output_ref": {**ref, "key": "k"}})
    assert pointers(foreign) == ["/output_ref/key"]
    lonely = await client.post(path, json={"fence": fence, "output": 1, "extract": {}})
    assert pointers(lonely) == ["/extract"]
    done = await client.post(path, json={"fence": fence, "output_ref": ref})
    assert done.json()["result"]["output_ref"] == ref
    output = await client.get(f"/v1/jobs/{job_id}/output")
    assert code_of(output) == (404, "RESULT_NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("start", {"fence": -1}, "/fence"),
        ("start", {"fence": True}, "/fence"),
        ("start", {"fence": 1, "x": 1}, "/x"),
        ("lock", {"runtime_id": ""}, "/runtime_id"),
        ("lock", {"runtime_id": "r" * 257}, "/runtime_id"),
        ("progress", {"fence": 1, "percent": 101}, "/percent"),
        ("progress", {"fence": 1, "message": "m" * 2049}, "/message"),
        ("heartbeat", {"fence": 1, "progress": {"percent": -1}}, "/progress/percent"),
        ("heartbeat", {"fence": 1, "progress": {"per": -1}}, "/progress/per"),
        ("fail", {"fence": 1}, "/code"),
        ("fail", {"fence": 1, "code": "C", "details": "d" * 8191}, "/details"),
        ("fail", {"fence": 1, "code": "C", "retry_after_seconds": -1}, "/retry_after_seconds"),
        ("result", {"fence": 1, "output": {"a": [2**53]}}, "/output/a/0"),
        ("result", {"fence": 1, "output": 1, "output_hash": "A" * 64}, "/output_hash"),
        ("wait", {"fence": 1}, "/timeout_seconds"),
        ("cancel", {"reason": "r" * 2049}, "/reason"),
        ("rerun", {"priority": 10}, "/priority"),
        ("rerun", {"original": {}}, "/original"),
        ("cancel", {"if_version": 1}, "/if_version"),
        ("cancel", {"job_id": "x"}, "/job_id"),
    ],
)
async def test_a_wrong_field_is_named(
    client: Client, path: str, body: dict[str, Any], pointer: str
) -> None:
    job_id, _ = await client.leased()
    before = len(client.world.sent)
    answer = await client.post(f"/v1/jobs/{job_id}/{path}", json=body)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [pointer]
    assert len(client.world.sent) == before, "nothing that is wrong reaches the log"


async def test_who_asked_goes_along(client: Client) -> None:
    job = await client.job()
    await client.post(f"/v1/jobs/{job['id']}/lock", json={"runtime_id": "r 1\u200b\n%"})
    assert client.world.sent[-1].actor == "api:r 1%E2%80%8B%0A%25"


async def test_a_trace_goes_along(client: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.post("/v1/jobs", json={"type": "t"}, headers={"traceparent": trace})
    assert client.world.sent[-1].traceparent == trace
    await client.post("/v1/jobs", json={"type": "t"}, headers={"traceparent": "evil"})
    assert client.world.sent[-1].traceparent == ""
