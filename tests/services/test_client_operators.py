"""An operator over Kafka, against a real owner."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ledger.client import Operator, Refused
from ledger.domain.events import JobRequested, ModelPut
from ledger.sealing.forward_headers import open_headers
from ledger.sealing.keyring import generate_key, keyring_from
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

KEYRING = keyring_from(f"test:{generate_key()}")


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger, ledger.owner():
        yield ledger


@pytest.fixture
async def operator(ledger: Ledger) -> AsyncIterator[Operator]:
    async with Operator(
        ledger.connection.bootstrap,
        prefix=ledger.topics.prefix,
        wait_seconds=20.0,
        keyring=KEYRING,
    ) as operator:
        yield operator


async def test_a_schedule_is_put_rested_run_and_deleted(operator: Operator) -> None:
    body = {"cron": "0 3 * * *", "type": "report", "payload": {"n": 1}}
    schedule = await operator.put_schedule("ai", "nightly", body)
    assert len(schedule["next_runs"]) == 5
    assert not (await operator.disable_schedule("ai", "nightly"))["enabled"]
    run = await operator.run_schedule("ai", "nightly")
    assert (run.job["schedule"], run.job["payload"]) == ("nightly", {"n": 1})
    assert (await operator.enable_schedule("ai", "nightly"))["last_job_id"] == run.job_id
    await operator.delete_schedule("ai", "nightly")
    with pytest.raises(Refused, match="SCHEDULE_NOT_FOUND"):
        await operator.run_schedule("ai", "nightly")


async def test_a_queue_is_bounded_and_paused(operator: Operator) -> None:
    limits = [{"key": ["/labels/user"], "max": 1}]
    said = await operator.put_queue("ai", depth_max=1, limits=limits)
    assert (said["depth_max"], said["limits"]) == (1, limits)
    assert (await operator.pause_queue("ai", "deploy"))["paused"]["reason"] == "deploy"
    await operator.submit("t", queue="ai")
    with pytest.raises(Refused, match="QUEUE_FULL"):
        await operator.submit("t", queue="ai")
    assert (await operator.resume_queue("ai"))["paused"] is None


async def test_secrets_are_sealed_before_the_log(ledger: Ledger, operator: Operator) -> None:
    body = {"base_url": "http://model.example", "api_key": "sk-hunter2"}
    assert (await operator.put_model("gpt", body))["has_api_key"]
    call = await operator.submit(
        "gpt", queue="models", forward_headers={"Authorization": "Bearer hunter2"}
    )
    await operator.delete_model("gpt")
    events = await ledger.events()
    [put] = [event for event in events if isinstance(event, ModelPut)]
    assert b"hunter2" not in bytes(put.model)
    [asked] = [event for event in events if isinstance(event, JobRequested)]
    assert asked.forward_headers is not None
    opened = open_headers(KEYRING, asked.forward_headers, command_id=call.command_id)
    assert opened["authorization"].reveal() == "Bearer hunter2"


async def test_a_payload_is_refused_with_everything_that_is_wrong(operator: Operator) -> None:
    schema = {"type": "object", "required": ["a", "b"]}
    await operator.put_template("default", "t", {"payload_schema": schema})
    with pytest.raises(Refused) as caught:
        await operator.submit("t", {})
    assert [error.pointer for error in caught.value.errors] == ["/payload/a", "/payload/b"]


async def test_an_open_job_is_not_collected(operator: Operator) -> None:
    job = await operator.submit("t")
    with pytest.raises(Refused, match="JOB_NOT_CLOSED"):
        await operator.collect(job.job_id)


async def test_without_a_keyring_a_secret_is_refused(ledger: Ledger) -> None:
    async with Operator(ledger.connection.bootstrap, prefix=ledger.topics.prefix) as operator:
        with pytest.raises(Refused) as caught:
            await operator.submit("t", forward_headers={"a": "b"})
        assert caught.value.pointer == "/forward_headers"
