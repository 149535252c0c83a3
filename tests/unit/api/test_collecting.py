"""Collecting results, and what an owner of objects may ask."""

from __future__ import annotations

from ledger.domain.commands import CollectJob, RemoveObjects
from ledger.domain.ids import SECOND, Micros
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client

NOBODY = "default.01890000-0000-7000-8000-000000000000"


async def collect(client: Client, *ids: str) -> list[dict[str, object]]:
    answer = await client.post("/v1/jobs/collect", json={"ids": ids})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


async def test_what_succeeded_is_collected_and_the_rest_says_how_it_stands(client: Client) -> None:
    done = await client.succeeded({"n": 1}, result_ttl_seconds=60)
    waits = (await client.job())["id"]
    items = await collect(client, waits, done, NOBODY, "no id", done)
    assert [(item["id"], item["status"]) for item in items] == [
        (waits, "pending"),
        (done, "succeeded"),
        (NOBODY, None),
        ("no id", None),
        (done, "succeeded"),
    ]
    assert items[1]["output"] == {"n": 1}
    assert items[1]["collected_at"]
    assert items[1]["result_expires_at"] > items[1]["collected_at"]  # type: ignore[operator]
    assert items[0]["output"] is items[0]["collected_at"] is None
    job = (await client.get(f"/v1/jobs/{done}")).json()
    assert job["collected_at"] == items[1]["collected_at"]
    commands = [sent for sent in client.world.sent if isinstance(sent.command, CollectJob)]
    assert [sent.command.job_id for sent in commands] == [done]  # type: ignore[union-attr]


async def test_repeating_answers_the_same(client: Client) -> None:
    done = await client.succeeded("x", result_ttl_seconds=60)
    first = await collect(client, done)
    client.world.at = Micros(client.world.at + 5 * SECOND)
    assert await collect(client, done) == first
    client.world.is_lagging = True
    assert await collect(client, done) == first


async def test_the_first_to_collect_counts_also_where_the_view_is_behind(client: Client) -> None:
    done = await client.succeeded("x")
    client.world.is_lagging = True
    first = await collect(client, done)
    client.world.at = Micros(client.world.at + 5 * SECOND)
    assert await collect(client, done) == first


async def test_an_expired_result_says_so(client: Client) -> None:
    done = await client.succeeded("x", result_ttl_seconds=60)
    [first] = await collect(client, done)
    client.world.at = Micros(client.world.at + 61 * SECOND)
    [item] = await collect(client, done)
    assert (item["status"], item["output"]) == ("succeeded", None)
    assert item["collected_at"] == first["collected_at"]
    assert item["result_expires_at"] == first["result_expires_at"]


async def test_a_job_that_its_owner_has_forgotten(client: Client) -> None:
    done = await client.succeeded("x", result_ttl_seconds=60)
    client.world.forget(done)
    [item] = await collect(client, done)
    assert (item["status"], item["output"]) == ("succeeded", "x")
    assert item["result_expires_at"]
    assert await collect(client, done) == [item]


async def test_what_ended_otherwise_is_not_collected(client: Client) -> None:
    job_id = (await client.job())["id"]
    await client.post(f"/v1/jobs/{job_id}/cancel")
    [item] = await collect(client, job_id)
    assert (item["status"], item["collected_at"]) == ("cancelled", None)


async def test_under_a_key(client: Client) -> None:
    done, other = await client.succeeded("x"), await client.succeeded("y")
    key = {"Idempotency-Key": "k"}
    first = await client.post("/v1/jobs/collect", json={"ids": [done]}, headers=key)
    again = await client.post("/v1/jobs/collect", json={"ids": [done]}, headers=key)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    more = await client.post("/v1/jobs/collect", json={"ids": [done, other]}, headers=key)
    assert code_of(more) == (422, "IDEMPOTENCY_KEY_REUSED")


async def test_an_undecided_collect(client: Client) -> None:
    done = await client.succeeded("x")
    client.world.silent = True
    answer = await client.post("/v1/jobs/collect", json={"ids": [done]})
    assert answer.status_code == 202
    assert answer.headers["location"].startswith("/v1/commands/")


async def test_ids_are_at_most_200(client: Client) -> None:
    answer = await client.post("/v1/jobs/collect", json={"ids": [NOBODY] * 201})
    assert (code_of(answer), pointers(answer)) == ((422, "VALIDATION_FAILED"), ["/ids"])
    assert pointers(await client.post("/v1/jobs/collect", json={})) == ["/ids"]
    assert (await collect(client)) == []


async def test_objects_of_an_owner_are_removed_by_an_operation(client: Client) -> None:
    answer = await client.delete("/v1/owners/ada")
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/operations/{answer.json()['operation_id']}"
    operation = (await client.get(answer.headers["location"])).json()
    assert (operation["kind"], operation["status"]) == ("remove_objects", "running")
    assert operation["where"] == {"user": "ada"}
    await client.delete("/v1/owners/ada/projects/7")
    assert client.world.sent[-1].command == RemoveObjects("ada", "7")


async def test_the_same_key_is_the_same_removal(client: Client) -> None:
    key = {"Idempotency-Key": "k"}
    first = await client.delete("/v1/owners/ada", headers=key)
    again = await client.delete("/v1/owners/ada", headers=key)
    assert again.json() == first.json()
    long = await client.delete(f"/v1/owners/{'u' * 257}")
    assert pointers(long) == ["/user"]
