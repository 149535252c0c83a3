"""Bulk cancel, and the operation that it starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledger.domain.commands import CancelJobs
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client


async def test_a_bulk_cancel_starts_an_operation(client: Client) -> None:
    await client.job(queue="q1", labels={"user": "ada"})
    await client.job(queue="q2", labels={"user": "ada"})
    await client.job(queue="q2", labels={"user": "bob"})
    body = {"where": {"labels": {"user": "ada"}}, "reason": "withdrawn"}
    answer = await client.post("/v1/jobs/cancel", json=body)
    assert answer.status_code == 202
    assert answer.json()["matched"] == 2
    assert answer.headers["location"] == f"/v1/operations/{answer.json()['operation_id']}"
    operation = (await client.get(answer.headers["location"])).json()
    assert (operation["status"], operation["reason"]) == ("running", "withdrawn")
    assert operation["where"] == {"labels": {"user": "ada"}}


async def test_a_dry_run_only_counts(client: Client) -> None:
    await client.job(type="a")
    before = len(client.world.sent)
    body = {"where": {"types": ["a", "b"]}, "dry_run": True}
    answer = await client.post("/v1/jobs/cancel", json=body)
    assert (answer.status_code, answer.json()) == (200, {"operation_id": None, "matched": 1})
    assert len(client.world.sent) == before


async def test_a_dry_run_waits_like_a_read(client: Client) -> None:
    client.world.is_lagging = True
    created = await client.post("/v1/jobs", json={"type": "a"})
    headers = {"Ledger-Min-Position": created.headers["ledger-position"]}
    body = {"where": {"types": ["a"]}, "dry_run": True}
    behind = await client.post("/v1/jobs/cancel", json=body, headers=headers)
    assert code_of(behind) == (503, "VIEW_BEHIND")
    counting = asyncio.create_task(client.post("/v1/jobs/cancel", json=body, headers=headers))
    await asyncio.sleep(0.02)
    client.world.catch_up()
    assert (await counting).json()["matched"] == 1


@pytest.mark.parametrize("where", [{}, {"labels": {}}, {"queue": None, "scope": None}])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_where_that_names_nothing_would_match_everything(
    client: Client, where: dict[str, Any], dry_run: bool
) -> None:
    answer = await client.post("/v1/jobs/cancel", json={"where": where, "dry_run": dry_run})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/where"]
    assert client.world.sent == []


async def test_where_is_required(client: Client) -> None:
    answer = await client.post("/v1/jobs/cancel", json={"reason": "r"})
    assert pointers(answer) == ["/where"]
    assert code_of(await client.post("/v1/jobs/cancel")) == (400, "MALFORMED_JSON")


async def test_the_same_key_is_the_same_operation(client: Client) -> None:
    body, key = {"where": {"queue": "q"}}, {"Idempotency-Key": "k"}
    first = await client.post("/v1/jobs/cancel", json=body, headers=key)
    again = await client.post("/v1/jobs/cancel", json=body, headers=key)
    assert again.json()["operation_id"] == first.json()["operation_id"]
    other = await client.post("/v1/jobs/cancel", json={"where": {"queue": "p"}}, headers=key)
    assert code_of(other) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert isinstance(client.world.sent[-1].command, CancelJobs)


async def test_an_undecided_bulk_cancel(client: Client) -> None:
    client.world.silent = True
    answer = await client.post("/v1/jobs/cancel", json={"where": {"queue": "q"}})
    assert answer.status_code == 202
    assert answer.headers["location"].startswith("/v1/commands/")


async def test_an_unknown_operation(client: Client) -> None:
    assert code_of(await client.get("/v1/operations/x")) == (404, "OPERATION_NOT_FOUND")
