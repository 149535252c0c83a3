"""Waiting for an owner's decision, and what is answered when none comes."""

from __future__ import annotations

import asyncio

import pytest

from ledger.domain.ids import CommandId, QueueName
from ledger.log.inbox import OwnerChanged
from ledger.log.replies import Reply
from tests.unit.api.problems_of import code_of
from tests.unit.api.world import Client, World, client_over


async def test_not_decided_in_time_is_202_with_its_place(client: Client) -> None:
    client.world.silent = True
    answer = await client.post("/v1/jobs", json={"type": "t"})
    body = answer.json()
    assert answer.status_code == 202
    assert body.keys() == {"command_id", "topic", "partition", "offset"}
    assert body["topic"] == "ledger.requests.v1"
    assert answer.headers["location"] == f"/v1/commands/{body['command_id']}"


async def test_respond_async_does_not_wait(client: Client) -> None:
    client.world.silent = True
    async with asyncio.timeout(0.3):
        for prefer in ("respond-async", "wait=0", "respond-async, handling=lenient"):
            answer = await client.post("/v1/jobs", json={"type": "t"}, headers={"Prefer": prefer})
            assert answer.status_code == 202


@pytest.mark.parametrize("prefer", ["wait=31", "wait=-1", "wait=x", "wait=", "wait=1.5"])
async def test_a_wait_out_of_range_is_an_error(client: Client, prefer: str) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t"}, headers={"Prefer": prefer})
    assert code_of(answer) == (422, "VALIDATION_FAILED")


async def test_a_command_tells_its_outcome(client: Client) -> None:
    client.world.is_lagging = True
    client.world.sends_jobs = False
    accepted = await client.post("/v1/jobs", json={"type": "t"})
    location = accepted.headers["location"]
    pending = await client.get(location)
    assert (pending.status_code, pending.json()["status"]) == (200, "pending")
    client.world.catch_up()
    decided = (await client.get(location)).json()
    assert (decided["status"], decided["outcome"]) == ("decided", "accepted")
    assert (await client.get(f"/v1/jobs/{decided['job_id']}")).status_code == 200


async def test_a_refused_command_tells_why(client: Client) -> None:
    job = await client.job()
    client.world.is_lagging = True
    client.world.silent = True
    answer = await client.post(f"/v1/jobs/{job['id']}/rerun", headers={"Prefer": "wait=0"})
    client.world.silent = False
    log = client.world.log_of(job["id"])
    client.world.decide(log, client.world.read_again(answer.json()["command_id"]))
    client.world.catch_up()
    outcome = (await client.get(answer.headers["location"])).json()
    assert (outcome["outcome"], outcome["code"]) == ("rejected", "JOB_NOT_CLOSED")


async def test_consumed_without_a_row_is_accepted_with_nothing_new(client: Client) -> None:
    client.world.silent = True
    answer = await client.post("/v1/jobs", json={"type": "t"}, headers={"Prefer": "wait=0"})
    client.world.catch_up()
    outcome = (await client.get(answer.headers["location"])).json()
    assert (outcome["status"], outcome["outcome"]) == ("decided", "accepted")


async def test_another_process_can_tell_by_the_place(client: Client) -> None:
    client.world.silent = True
    body = (await client.post("/v1/jobs", json={"type": "t"}, headers={"Prefer": "wait=0"})).json()
    async with client_over(client.world) as other:
        path = f"/v1/commands/{body.pop('command_id')}"
        assert code_of(await other.get(path)) == (404, "COMMAND_NOT_FOUND")
        assert (await other.get(path, params=body)).json()["status"] == "pending"


async def test_an_unknown_command(client: Client) -> None:
    assert code_of(await client.get("/v1/commands/x")) == (404, "COMMAND_NOT_FOUND")


async def test_an_unacknowledged_append_is_503(client: Client) -> None:
    client.world.is_down = True
    answer = await client.post("/v1/jobs", json={"type": "t"})
    assert code_of(answer) == (503, "LOG_UNAVAILABLE")
    assert answer.headers["retry-after"]


async def test_as_many_wait_as_may() -> None:
    world = World()
    world.settings = type(world.settings)(
        connection=world.settings.connection,
        dsn="",
        partitions=world.settings.partitions,
        in_flight_max=1,
        decision_seconds=0.2,
    )
    world.silent = True
    async with client_over(world) as client:
        answers = await asyncio.gather(
            client.post("/v1/jobs", json={"type": "t"}),
            client.post("/v1/jobs", json={"type": "t"}),
        )
    assert sorted(answer.status_code for answer in answers) == [202, 503]
    assert code_of(max(answers, key=lambda answer: answer.status_code))[1] == "OVERLOADED"
    assert len(world.sent) == 1, "what cannot be awaited is not sent"


async def test_a_reply_that_nobody_awaits_is_passed_over(client: Client) -> None:
    client.world.tell(
        Reply(CommandId("x"), "accepted", "9:9"),
        OwnerChanged(QueueName("q"), 3),
    )
    assert (await client.post("/v1/jobs", json={"type": "t"})).status_code == 201


async def test_a_code_of_a_later_version_is_a_conflict(client: Client) -> None:
    client.world.silent = True
    asking = asyncio.create_task(client.post("/v1/jobs", json={"type": "t"}))
    await client.world.has_sent.wait()
    command_id = client.world.sent[0].command_id
    reply = Reply(command_id, "rejected", "0:5", code="NEW_RULE", detail="no")
    client.world.tell(reply)
    answer = await asking
    assert code_of(answer) == (409, "NEW_RULE")
    assert answer.headers["ledger-position"] == "0:5"


async def test_postgres_away(client: Client) -> None:
    client.world.is_cut = True
    assert (await client.post("/v1/jobs", json={"type": "t"})).status_code == 201
    assert code_of(await client.get("/v1/jobs")) == (503, "VIEW_UNAVAILABLE")


async def test_a_failure_shows_nothing_of_itself(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(client.world.reads, "job", fail)
    job = await client.job()
    answer = await client.get(f"/v1/jobs/{job['id']}")
    assert code_of(answer) == (500, "INTERNAL_ERROR")
    assert "secret" not in answer.text
    assert answer.json()["instance"].startswith("urn:")
