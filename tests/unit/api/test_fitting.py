"""Payloads and outputs are held against their templates before the log is asked, and never is
refused what the owner would accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger.domain.commands import RequestJob, RerunJob, SubmitResult
from ledger.domain.ids import INLINE_BYTES_MAX, QueueName
from ledger.objects import FolderStore
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client, client_over

pytestmark = pytest.mark.rule("S2.1")

PATH = "/v1/queues/default/templates/t"
MANY = 50


def of_n(kind: str) -> dict[str, Any]:
    """A schema whose `n` is of that type."""
    return {"properties": {"n": {"type": kind}}, "required": ["n"]}


@pytest.fixture(autouse=True)
def looks_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first look, the catalogue looks when a test says so."""
    monkeypatch.setattr("api.catalogue.LOOK_SECONDS", 3600.0)


@pytest.fixture
async def client(client: Client) -> Client:
    """It has asked once, so that the first look is over."""
    client.services.catalogue.of(QueueName("default"))
    await looked(client)
    return client


async def looked(client: Client) -> None:
    await client.services.catalogue.look()


async def put(client: Client, kind: str, at: str = "payload_schema", **more: Any) -> None:
    answer = await client.put(PATH, json={at: of_n(kind), **more})
    assert answer.status_code in (200, 201), answer.text


async def asked(client: Client, n: object, **fields: Any) -> httpx.Response:
    return await client.post("/v1/jobs", json={"type": "t", "payload": {"n": n}, **fields})


def sent(client: Client, kind: type[Any]) -> int:
    """Commands of the kind that came to the log."""
    return sum(isinstance(one.command, kind) for one in client.world.sent)


# --- Payloads -------------------------------------------------------------------------------------
async def test_a_payload_that_does_not_fit_is_refused_as_the_owner_would(client: Client) -> None:
    await put(client, "string")
    by_owner = await asked(client, 1)
    assert sent(client, RequestJob) == 1
    await looked(client)
    at_the_edge = await asked(client, 1)
    assert sent(client, RequestJob) == 1
    assert code_of(at_the_edge) == (422, "VALIDATION_FAILED")
    assert pointers(at_the_edge) == ["/payload/n"]
    assert at_the_edge.json() == by_owner.json()
    absent = await client.post("/v1/jobs", json={"type": "t"})
    assert pointers(absent) == ["/payload/n"]
    assert sent(client, RequestJob) == 1
    assert (await asked(client, "fits")).status_code == 201


async def test_a_template_that_was_changed_a_moment_ago_counts(client: Client) -> None:
    await put(client, "string")
    await looked(client)
    await put(client, "number")
    assert (await asked(client, 1)).status_code == 201
    assert code_of(await asked(client, "no more")) == (422, "VALIDATION_FAILED")


async def test_while_the_views_are_behind_the_owner_says_it(client: Client) -> None:
    await put(client, "string")
    await looked(client)
    client.world.is_lagging = True
    await put(client, "number")
    assert (await asked(client, 1)).status_code == 201
    assert code_of(await asked(client, True)) == (422, "VALIDATION_FAILED")
    assert sent(client, RequestJob) == 2


async def test_while_postgres_is_away_the_owner_says_it(client: Client) -> None:
    client.world.is_cut = True
    assert (await asked(client, 1)).status_code == 201
    client.world.is_cut = False
    await put(client, "string")
    await looked(client)
    client.world.is_cut = True
    assert (await asked(client, "fits")).status_code == 201
    assert code_of(await asked(client, 1)) == (422, "VALIDATION_FAILED")
    assert sent(client, RequestJob) == 3


async def test_a_version_that_is_named_is_certain_wherever_the_views_are(client: Client) -> None:
    await put(client, "string")
    await asked(client, "holds it")
    await put(client, "number")
    await looked(client)
    first = await asked(client, 1, template_version=1)  # Not known yet: the owner says it.
    await looked(client)
    client.world.is_cut = True
    again = await asked(client, 1, template_version=1)
    assert (first.status_code, again.json()) == (422, first.json())
    assert sent(client, RequestJob) == 2
    assert (await asked(client, "fits", template_version=1)).status_code == 201
    newest = await asked(client, "no number", template_version=2)
    assert pointers(newest) == ["/payload/n"]
    assert sent(client, RequestJob) == 3


@pytest.mark.rule("S1.7")
async def test_under_a_key_that_came_before_the_earlier_job_answers(client: Client) -> None:
    await put(client, "string")
    first = await asked(client, "a", idempotency_key="k")
    await put(client, "number")
    await looked(client)
    again = await asked(client, "a", idempotency_key="k")
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert code_of(await asked(client, "a", idempotency_key="k2")) == (422, "VALIDATION_FAILED")


@pytest.mark.rule("S1.9")
async def test_a_new_payload_of_a_rerun_is_looked_at_where_it_is_certain(client: Client) -> None:
    await put(client, "string")
    job = (await asked(client, "a")).json()
    await client.post(f"/v1/jobs/{job['id']}/cancel")
    await looked(client)
    path = f"/v1/jobs/{job['id']}/rerun"
    refused = await client.post(path, json={"payload": {"n": 1}})
    assert (code_of(refused), pointers(refused)) == ((422, "VALIDATION_FAILED"), ["/payload/n"])
    assert sent(client, RerunJob) == 0
    assert (await client.post(path, json={"payload": {"n": "b"}})).status_code == 201
    # No open job but the rerun holds version 1; the owner knows whether one does.
    await put(client, "number")
    await looked(client)
    held = await client.post(path, json={"payload": {"n": "c"}})
    assert (held.status_code, sent(client, RerunJob)) == (201, 2)


@pytest.mark.rule("S2.6")
async def test_a_schedules_payload_is_looked_at_when_its_time_comes(client: Client) -> None:
    await put(client, "string")
    await looked(client)
    body = {"cron": "0 6 * * *", "type": "t", "payload": {"n": 1}}
    path = "/v1/queues/default/schedules/s"
    assert (await client.put(path, json=body)).status_code == 201
    refused = await client.post(f"{path}/run")
    assert pointers(refused) == ["/payload/n"]


@pytest.mark.rule("S3.7")
async def test_a_large_one_that_the_newest_may_accept_is_to_be_sent_again(
    client: Client, tmp_path: Path
) -> None:
    client.world.objects = store = FolderStore(tmp_path / "objects")
    large = {"type": "t", "payload": {"n": 1, "text": "x" * INLINE_BYTES_MAX}}
    await put(client, "string")
    async with client_over(client.world) as other:
        refused = await other.post("/v1/jobs", json=large)
        assert (code_of(refused), pointers(refused)) == ((422, "VALIDATION_FAILED"), ["/payload/n"])
        client.world.is_lagging = True
        await put(client, "number")
        assert code_of(await other.post("/v1/jobs", json=large)) == (503, "VIEW_BEHIND")
        client.world.catch_up()
        assert (await other.post("/v1/jobs", json=large)).status_code == 201
    await store.close()


# --- Outputs --------------------------------------------------------------------------------------
async def result(client: Client, job_id: str, fence: int, n: object) -> httpx.Response:
    body = {"fence": fence, "output": {"n": n}}
    return await client.post(f"/v1/jobs/{job_id}/result", json=body)


async def test_an_output_that_does_not_fit_is_refused_as_the_owner_would(client: Client) -> None:
    await put(client, "string", "output_schema")
    job_id, fence = await client.leased()
    by_owner = await result(client, job_id, fence, 1)
    assert sent(client, SubmitResult) == 1
    await looked(client)
    at_the_edge = await result(client, job_id, fence, 1)
    assert sent(client, SubmitResult) == 1
    assert (at_the_edge.status_code, at_the_edge.json()) == (422, by_owner.json())
    assert (await result(client, job_id, fence, "fits")).status_code == 200


async def test_an_output_is_held_against_the_version_of_its_job(client: Client) -> None:
    await put(client, "string", "output_schema")
    job_id, fence = await client.leased()
    await put(client, "number", "output_schema")
    await looked(client)
    assert (await result(client, job_id, fence, "fits its own")).status_code == 200


@pytest.mark.rule("S2.5")
async def test_in_a_flow_only_what_is_to_be_its_result(client: Client) -> None:
    steps = [{"name": "one"}, {"name": "two"}]
    await put(client, "string", "output_schema", steps=steps)
    job_id, fence = await client.leased()
    await looked(client)
    assert (await result(client, job_id, fence, 1)).status_code == 200
    lease = await client.post(f"/v1/jobs/{job_id}/lock", json={"runtime_id": "r1"})
    refused = await result(client, job_id, lease.json()["fence"], 1)
    assert (code_of(refused), sent(client, SubmitResult)) == ((422, "VALIDATION_FAILED"), 1)


async def test_what_the_view_cannot_say_of_an_output_the_owner_does(client: Client) -> None:
    await put(client, "string", "output_schema")
    await looked(client)
    job_id, fence = await client.leased()
    client.world.is_cut = True
    assert code_of(await result(client, job_id, fence, 1)) == (422, "VALIDATION_FAILED")
    assert sent(client, SubmitResult) == 1
    stale = await result(client, job_id, fence + 1, 1)
    assert code_of(stale) == (409, "LEASE_STALE")


@pytest.mark.rule("S1.8")
async def test_the_same_result_of_an_ended_job_stays_no_news(client: Client) -> None:
    await put(client, "string", "output_schema")
    await looked(client)
    job_id, fence = await client.leased()
    assert (await result(client, job_id, fence, "a")).status_code == 200
    assert (await result(client, job_id, fence, "a")).status_code == 200
    assert code_of(await result(client, job_id, fence, 1)) == (409, "RESULT_ALREADY_EXISTS")


# --- What it costs --------------------------------------------------------------------------------
@pytest.mark.parametrize("has_template", [False, True])
async def test_no_job_and_no_result_that_fits_costs_a_question_to_postgres(
    client: Client, has_template: bool
) -> None:
    if has_template:
        await put(client, "string", "payload_schema", output_schema=of_n("string"))
    await looked(client)
    before = client.world.questions
    for _ in range(MANY):
        job_id, fence = await client.leased(payload={"n": "a"})
        assert (await result(client, job_id, fence, "b")).status_code == 200
    assert client.world.questions == before


async def test_one_look_is_one_question_however_many_queues_are_asked_about(client: Client) -> None:
    for number in range(MANY):
        await client.job(queue=f"q{number}")
    before = client.world.questions
    await looked(client)
    assert client.world.questions == before + 1
