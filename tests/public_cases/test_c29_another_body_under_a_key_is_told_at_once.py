"""idempot-dev/idempot-js PR #191 and ietf-wg-httpapi/idempotency #22: while the first request under
a key is being worked on, one with another body is told to come back later, or given the first one's
answer.

Here whether the body is another one is looked at first, by its canonical bytes: 422 at once, be the
first in flight, done or ended. The same body is the same job, also in flight; another queue, type,
owner's scope or route under the same key is something else (I4).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from ledger.domain.commands import RequestJob
from ledger.domain.events import CommandDuplicated, CommandRejected, JobRequested
from ledger.log.command_codec import partition_for
from tests.unit.api.problems_of import code_of
from tests.unit.api.world import Client, World, client_over
from tests.unit.owner.by_hand import Owner, events_of

SLOW_SECONDS = 60.0
"""Nobody is told "later" in these tests, however busy the machine is."""
JOB: dict[str, Any] = {"type": "t", "idempotency_key": "k"}
EQUAL = (
    b'{"type":"t","idempotency_key":"k","payload":{"a":1,"b":[2,"x"]}}',
    b'{"payload":{"b":[2.0,"\\u0078"],"a":1e0},"idempotency_key":"k","type":"t"}',
    b' { "idempotency_key" : "k", "type" : "t", "payload" : { "a":1.0, "b":[2, "x"] } } ',
)
OTHER = (
    b'{"type":"t","idempotency_key":"k","payload":{"a":2,"b":[2,"x"]}}',
    b'{"type":"t","idempotency_key":"k","payload":{"a":1,"b":["x",2]}}',
    b'{"type":"t","idempotency_key":"k","payload":{"a":"1","b":[2,"x"]}}',
    b'{"type":"t","idempotency_key":"k"}',
    b'{"type":"t","idempotency_key":"k","payload":{"a":1,"b":[2,"x"]},"priority":1}',
)
REUSED = (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    settings = replace(World().settings, decision_seconds=SLOW_SECONDS)
    async with client_over(World(settings)) as client:
        yield client


async def at_once(client: Client, path: str, bodies: Sequence[bytes]) -> list[httpx.Response]:
    """All are in flight before the owner reads the first."""
    world, before = client.world, len(client.world.sent)
    world.silent = True
    asking = [asyncio.ensure_future(client.post(path, content=body)) for body in bodies]
    async with asyncio.timeout(SLOW_SECONDS):
        while len(world.sent) < before + len(bodies):
            world.has_sent.clear()
            await world.has_sent.wait()
    world.silent = False
    for sent in world.sent[before:]:
        partition = partition_for(sent.command, world.settings.partitions)
        world.decide(world.logs[partition], world.read_again(sent.command_id))
    return list(await asyncio.gather(*asking))


@pytest.mark.parametrize("first", range(len(EQUAL)))
async def test_equal_bodies_in_flight_are_one_job_and_another_is_told_so(
    client: Client, first: int
) -> None:
    bodies = [EQUAL[first], *OTHER, *EQUAL, *OTHER]
    answers = await at_once(client, "/v1/jobs", bodies)
    made = answers[0]
    assert made.status_code == 201
    for body, answer in zip(bodies[1:], answers[1:], strict=True):
        if body in EQUAL:
            assert (answer.status_code, answer.json()["id"]) == (200, made.json()["id"])
        else:
            assert code_of(answer) == REUSED
            assert answer.json()["job_id"] == made.json()["id"]
    assert len(client.world.jobs()) == 1


@pytest.mark.parametrize("end", ["succeeded", "cancelled"])
async def test_it_is_the_same_when_the_first_has_ended(client: Client, end: str) -> None:
    job_id = (await client.post("/v1/jobs", content=EQUAL[0])).json()["id"]
    if end == "succeeded":
        lock = await client.post(f"/v1/jobs/{job_id}/lock", json={"runtime_id": "r1"})
        said = {"fence": lock.json()["fence"], "output": 1}
        await client.post(f"/v1/jobs/{job_id}/result", json=said)
    else:
        await client.post(f"/v1/jobs/{job_id}/cancel")
    answers = await at_once(client, "/v1/jobs", [*OTHER, *EQUAL])
    assert {code_of(answer) for answer in answers[: len(OTHER)]} == {REUSED}
    for answer in answers[len(OTHER) :]:
        assert (answer.status_code, answer.json()["id"]) == (200, job_id)
        assert answer.json()["status"] == end


@pytest.mark.parametrize("other", [{"queue": "other"}, {"type": "u"}])
async def test_in_another_scope_the_same_key_is_another_job(
    client: Client, other: dict[str, str]
) -> None:
    one = await client.post("/v1/jobs", json=JOB)
    two = await client.post("/v1/jobs", json={**JOB, **other, "payload": "of its own"})
    assert (one.status_code, two.status_code) == (201, 201)
    assert one.json()["id"] != two.json()["id"]


async def test_tenants_do_not_meet_under_a_key() -> None:
    """They write to one owner, each under its own api."""
    world = World()
    async with client_over(world) as one:
        world.settings = replace(world.settings, tenant="another")
        async with client_over(world) as two:
            job_id = await one.succeeded()
            path, key = f"/v1/jobs/{job_id}/rerun", {"Idempotency-Key": "k"}
            first = await one.post(path, json={"priority": 1}, headers=key)
            second = await two.post(path, json={"priority": 2}, headers=key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] != second.json()["id"]


@pytest.mark.parametrize("route", ["rerun", "cancel"])
async def test_other_writes_compare_bodies_in_flight_too(client: Client, route: str) -> None:
    job_id = await client.succeeded() if route == "rerun" else (await client.job())["id"]
    same, other = {"rerun": (b'{"priority":1}', b'{"priority":2}')}.get(
        route, (b'{"reason":"a"}', b'{"reason":"b"}')
    )
    client.headers["Idempotency-Key"] = "k"
    answers = await at_once(client, f"/v1/jobs/{job_id}/{route}", [same, other, same, other])
    assert answers[0].status_code == answers[2].status_code < 300
    assert answers[0].json()["id"] == answers[2].json()["id"]
    assert [code_of(answers[1]), code_of(answers[3])] == [REUSED, REUSED]


def test_an_owner_compares_what_it_reads_in_one_turn_before_anything_is_proven() -> None:
    owner = Owner()

    def keyed(priority: int) -> RequestJob:
        return RequestJob("sum", idempotency_key="k", priority=priority)

    turn = owner.does(keyed(1), keyed(2), keyed(1))
    made, refused, same = events_of(turn)
    assert isinstance(made, JobRequested)
    assert isinstance(refused, CommandRejected)
    assert refused.code == "IDEMPOTENCY_KEY_REUSED"
    assert isinstance(same, CommandDuplicated)
    assert refused.job_id == same.job_id == made.job_id
