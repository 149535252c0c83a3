"""The OpenAPI document: valid, whole, and what the app does."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from api.app import DOCUMENT, OPERATIONS
from api.problems import CODES
from ledger.domain.rejections import STATUS
from tests.unit.api.problems_of import code_of
from tests.unit.api.world import Client

Json = dict[str, Any]


def validator(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema)


async def test_it_is_served(client: Client) -> None:
    answer = await client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == msgspec.json.encode(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1")


def test_every_schema_is_one() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_reference_leads_somewhere() -> None:
    names = re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT))
    assert set(names) <= DOCUMENT["components"]["schemas"].keys()


def test_operation_ids_are_unique() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_every_code_of_the_rules_has_its_status() -> None:
    assert {code: CODES[code].status for code in STATUS} == dict(STATUS)


CONTRACT = {
    "VALIDATION_FAILED": 422,
    "MALFORMED_JSON": 400,
    "PAYLOAD_TOO_LARGE": 413,
    "JOB_NOT_FOUND": 404,
    "TEMPLATE_NOT_FOUND": 404,
    "SCHEDULE_NOT_FOUND": 404,
    "MODEL_NOT_FOUND": 404,
    "QUEUE_NOT_FOUND": 404,
    "JOB_ALREADY_LOCKED": 409,
    "JOB_NOT_PENDING": 409,
    "JOB_CLOSED": 409,
    "LEASE_STALE": 409,
    "RESULT_ALREADY_EXISTS": 409,
    "CANCEL_NOT_SUPPORTED": 409,
    "DUPLICATE_ACTIVE": 409,
    "NOT_REPEATABLE": 409,
    "IDEMPOTENCY_KEY_REUSED": 422,
    "TEMPLATE_DISABLED": 409,
    "QUEUE_PAUSED": 409,
    "INVALID_SCHEDULE": 422,
    "QUEUE_FULL": 429,
    "WRONG_PARTITION": 422,
    "COMMAND_EXPIRED": 422,
    "ENTRY_TOO_LARGE": 413,
    "JOB_NOT_CLOSED": 409,
    "LIMIT_REACHED": 409,
    "NOT_SCHEDULABLE": 409,
    "OPERATION_NOT_FOUND": 404,
    "COMMAND_NOT_FOUND": 404,
    "PRECONDITION_FAILED": 412,
    "VIEW_BEHIND": 503,
    "LOG_UNAVAILABLE": 503,
}
"""As published; clients are written against it."""


@pytest.mark.parametrize(("code", "status"), CONTRACT.items())
def test_a_published_code_keeps_its_status(code: str, status: int) -> None:
    assert CODES[code].status == status


ROUTES = {
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/{id}"),
    ("GET", "/v1/jobs/{id}/events"),
    ("GET", "/v1/jobs/{id}/output"),
    ("GET", "/v1/jobs/{id}/attempts"),
    ("POST", "/v1/jobs/{id}/cancel"),
    ("POST", "/v1/jobs/{id}/rerun"),
    ("POST", "/v1/jobs/cancel"),
    ("GET", "/v1/operations/{operation_id}"),
    ("POST", "/v1/runtimes/{rid}/poll"),
    ("POST", "/v1/runtimes/{rid}/claim"),
    ("GET", "/v1/runtimes"),
    ("POST", "/v1/jobs/{id}/lock"),
    ("POST", "/v1/jobs/{id}/start"),
    ("POST", "/v1/jobs/{id}/heartbeat"),
    ("POST", "/v1/jobs/{id}/progress"),
    ("POST", "/v1/jobs/{id}/result"),
    ("POST", "/v1/jobs/{id}/fail"),
    ("POST", "/v1/jobs/{id}/release"),
    ("POST", "/v1/jobs/{id}/wait"),
    ("POST", "/v1/jobs/{id}/cancelled"),
    ("GET", "/v1/queues"),
    ("GET", "/v1/queues/{queue}"),
    ("POST", "/v1/jobs/collect"),
    ("PUT", "/v1/queues/{queue}"),
    ("POST", "/v1/queues/{queue}/pause"),
    ("POST", "/v1/queues/{queue}/resume"),
    ("GET", "/v1/templates"),
    ("GET", "/v1/queues/{queue}/templates/{type}"),
    ("PUT", "/v1/queues/{queue}/templates/{type}"),
    ("GET", "/v1/queues/{queue}/templates/{type}/versions/{n}"),
    ("GET", "/v1/schedules"),
    ("GET", "/v1/queues/{queue}/schedules/{name}"),
    ("PUT", "/v1/queues/{queue}/schedules/{name}"),
    ("DELETE", "/v1/queues/{queue}/schedules/{name}"),
    ("POST", "/v1/queues/{queue}/schedules/{name}/enable"),
    ("POST", "/v1/queues/{queue}/schedules/{name}/disable"),
    ("POST", "/v1/queues/{queue}/schedules/{name}/run"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("PUT", "/v1/models/{name}"),
    ("DELETE", "/v1/models/{name}"),
    ("POST", "/v1/models/{name}/calls"),
    ("DELETE", "/v1/owners/{user}"),
    ("DELETE", "/v1/owners/{user}/projects/{project}"),
    ("GET", "/v1/commands/{command_id}"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
}
"""As published."""


def test_every_published_route_is_there() -> None:
    described = {
        (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described >= ROUTES


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.name))
async def test_every_described_route_answers(client: Client, operation: Any) -> None:
    path = re.sub(r"\{\w+\}", "x", operation.path)
    # A stream would never end.
    method = "HEAD" if operation.name == "streamEvents" else operation.method
    answer = await client.request(method, path)
    if answer.status_code >= 400:
        assert code_of(answer)[1] != "ROUTE_NOT_FOUND"
        assert (
            str(answer.status_code)
            in DOCUMENT["paths"][operation.path][operation.method.lower()]["responses"]
        )


async def test_answers_are_of_their_schemas(client: Client) -> None:
    job = await client.job(labels={"a": "b"}, scope="s", idempotency_key="k", delay_seconds=1)
    validator("JobView").validate(job)
    job_id, fence = await client.leased()
    body = {"fence": fence, "code": "X", "message": "m"}
    failed = await client.post(f"/v1/jobs/{job_id}/fail", json=body)
    validator("JobView").validate(failed.json())
    events = await client.get(f"/v1/jobs/{job_id}/events")
    validator("EventList").validate(events.json())
    validator("JobPage").validate((await client.get("/v1/jobs", params={"page": 1})).json())
    validator("QueueList").validate((await client.get("/v1/queues")).json())
    problem = await client.post("/v1/jobs", json={"type": 1})
    validator("Problem").validate(problem.json())


async def test_what_operators_read_is_of_its_schema(client: Client) -> None:
    step = {"name": "a", "on_fail": {"goto": "a"}, "progress": [0, 50]}
    for kind, path, body in (
        ("TemplateView", "/v1/queues/q/templates/t", {"steps": [step], "payload_schema": {}}),
        ("ScheduleView", "/v1/queues/q/schedules/s", {"cron": "* * * * *", "type": "t"}),
        ("ModelView", "/v1/models/m", {"base_url": "http://model.example"}),
    ):
        put = await client.put(path, json=body)
        validator(kind).validate(put.json())
        validator(kind).validate((await client.get(path)).json())
    put = await client.put("/v1/queues/q", json={"limits": [{"key": ["/type"], "max": 1}]})
    validator("QueueSettingsView").validate(put.json())
    await client.post("/v1/queues/q/pause")
    validator("HeldQueueView").validate((await client.get("/v1/queues/q")).json())
    ids = [await client.succeeded(), "unknown"]
    collected = await client.post("/v1/jobs/collect", json={"ids": ids})
    validator("CollectedList").validate(collected.json())


async def test_a_lease_is_of_its_schema(client: Client) -> None:
    await client.job()
    body = {"queues": ["default"], "types": ["t"]}
    claimed = await client.post("/v1/runtimes/r/claim", json=body)
    validator("ClaimView").validate(claimed.json())
    lease = claimed.json()["items"][0]
    beat = await client.post(
        f"/v1/jobs/{lease['job_id']}/heartbeat", json={"fence": lease["fence"]}
    )
    validator("HeartbeatView").validate(beat.json())
