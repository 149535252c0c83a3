"""The producer against a real owner: what is asked is decided, and what is refused says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ledger.client import (
    Accepted,
    Bounds,
    Connection,
    LogUnavailable,
    NotAcknowledged,
    Producer,
    Refused,
    Submitted,
    Undecided,
    sync,
)
from ledger.client.command_ids import new_command_id
from ledger.domain.events import JobCancelled, JobRequested
from tests.support.builders import unknown_like
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

MANY = 3_000


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@pytest.fixture
async def producer(ledger: Ledger) -> AsyncIterator[Producer]:
    async with producer_of(ledger) as producer:
        yield producer


def producer_of(ledger: Ledger, wait_seconds: float = 20.0) -> Producer:
    bootstrap = ledger.connection.bootstrap
    return Producer(bootstrap, prefix=ledger.topics.prefix, wait_seconds=wait_seconds)


async def test_a_job_is_asked_for_and_decided(ledger: Ledger, producer: Producer) -> None:
    async with ledger.owner():
        accepted = await producer.submit(
            "echo", {"n": 1}, queue="q1", labels={"user": "ada"}, priority=2
        )
    assert accepted.job_id == accepted.job["id"]
    assert accepted.job_id.startswith("q1.")
    assert (accepted.job["status"], accepted.job["payload"]) == ("pending", {"n": 1})
    assert (accepted.job["labels"], accepted.job["priority"]) == ({"user": "ada"}, 2)
    assert not accepted.deduplicated
    assert [e for e in await ledger.events() if isinstance(e, JobRequested)]


async def test_the_same_key_is_the_same_job_and_other_content_is_refused(
    ledger: Ledger, producer: Producer
) -> None:
    async with ledger.owner():
        first = await producer.submit("echo", {"a": 1, "b": 1.0}, idempotency_key="k")
        again = await producer.submit("echo", {"b": 1, "a": 1}, idempotency_key="k")
        with pytest.raises(Refused) as caught:
            await producer.submit("echo", {"a": 2}, idempotency_key="k")
    assert (again.job_id, again.deduplicated) == (first.job_id, True)
    assert (caught.value.code, caught.value.job_id) == ("IDEMPOTENCY_KEY_REUSED", first.job_id)


async def test_the_same_command_sent_again_is_the_same_job(
    ledger: Ledger, producer: Producer
) -> None:
    command_id = new_command_id()
    async with ledger.owner():
        first = await producer.submit("echo", command_id=command_id)
        again = await producer.submit("echo", command_id=command_id)
    assert (again.job_id, again.replayed) == (first.job_id, True)


async def test_many_are_asked_for_in_batches_and_answered_in_their_order(
    ledger: Ledger, producer: Producer
) -> None:
    requests = [
        {"type": "echo", "queue": f"q{n % 4}", "payload": {"n": n}, "idempotency_key": str(n // 2)}
        for n in range(MANY)
    ]
    async with ledger.owner():
        outcomes = await producer.submit_many(requests, await_decision=True)
    accepted = [one for one in outcomes if isinstance(one, Accepted)]
    refused = [one for one in outcomes if isinstance(one, Refused)]
    assert len(accepted) + len(refused) == MANY
    assert [one.job["payload"]["n"] for one in accepted] == list(range(MANY))
    assert len({one.job_id for one in accepted}) == MANY


async def test_a_refusal_among_many_stops_no_other(ledger: Ledger, producer: Producer) -> None:
    requests = [
        {"type": "echo", "payload": {"n": n}, "idempotency_key": "same" if n < 2 else str(n)}
        for n in range(5)
    ]
    async with ledger.owner():
        outcomes = await producer.submit_many(requests, await_decision=True)
    kinds = [type(one) for one in outcomes]
    assert kinds == [Accepted, Refused, Accepted, Accepted, Accepted]


async def test_bad_input_among_many_is_found_before_any_is_sent(
    ledger: Ledger, producer: Producer
) -> None:
    with pytest.raises(Refused, match="VALIDATION_FAILED"):
        await producer.submit_many([{"type": "echo"}, {"type": "echo", "priority": 99}])
    async with ledger.owner():
        await producer.submit("last")
    requested = [e.type for e in await ledger.events() if isinstance(e, JobRequested)]
    assert requested == ["last"]


async def test_without_an_owner_the_place_is_known_and_the_decision_is_not(
    ledger: Ledger,
) -> None:
    async with producer_of(ledger, wait_seconds=0.2) as producer:
        submitted = await producer.submit("echo", wait=False)
        assert isinstance(submitted, Submitted)
        with pytest.raises(Undecided) as caught:
            await producer.submit("echo")
        outcomes = await producer.submit_many([{"type": "echo"}] * 2, await_decision=True)
    places = [submitted, caught.value, *outcomes]
    assert [getattr(place, "offset", None) for place in places] == [0, 1, 2, 3]
    assert {getattr(place, "topic", None) for place in places} == {ledger.topics.requests}
    command_id = caught.value.command_id
    async with ledger.owner(), producer_of(ledger) as producer:
        assert (await producer.submit("echo", command_id=command_id)).replayed


async def test_cancel_and_rerun(ledger: Ledger, producer: Producer) -> None:
    async with ledger.owner():
        job = await producer.submit("echo", {"n": 1}, labels={"user": "ada"})
        with pytest.raises(Refused) as early:
            await producer.rerun(job.job_id)
        with pytest.raises(Refused) as other:
            await producer.cancel(job.job_id, if_version=7)
        cancelled = await producer.cancel(job.job_id, "no need")
        again = await producer.rerun(job.job_id, payload={"n": 2}, priority=0)
        with pytest.raises(Refused) as late:
            await producer.cancel(job.job_id)
        with pytest.raises(Refused) as unknown:
            await producer.cancel(unknown_like(job.job_id))
    assert (early.value.code, early.value.job_status) == ("JOB_NOT_CLOSED", "pending")
    assert other.value.code == "PRECONDITION_FAILED"
    assert (cancelled.job["status"], cancelled.job["cancel"]["reason"]) == ("cancelled", "no need")
    assert again.job["retried_from"] == job.job_id
    assert (again.job["payload"], again.job["labels"]) == ({"n": 2}, {"user": "ada"})
    assert (late.value.code, late.value.job_status) == ("JOB_CLOSED", "cancelled")
    assert unknown.value.code == "JOB_NOT_FOUND"


async def test_all_that_match_are_cancelled_on_every_queue(
    ledger: Ledger, producer: Producer
) -> None:
    async with ledger.owner():
        await producer.submit_many(
            [
                {"type": "echo", "queue": f"q{n}", "labels": {"user": "ada" if n % 2 else "bob"}}
                for n in range(6)
            ],
            await_decision=True,
        )
        operation = await producer.cancel_where(labels={"user": "ada"}, reason="consent withdrawn")
        assert operation
        await ledger.until(lambda events: sum(isinstance(e, JobCancelled) for e in events) == 3)
        with pytest.raises(Refused, match="VALIDATION_FAILED"):
            await producer.cancel_where()


async def test_a_template_is_stored_once_and_obeyed(ledger: Ledger, producer: Producer) -> None:
    template = {
        "timeout_seconds": 7,
        "retry": {"max_attempts": 2, "fatal_codes": ["NO"]},
        "overridable": ["labels"],
    }
    async with ledger.owner():
        stored = await producer.put_template("q", "echo", template)
        again = await producer.put_template("q", "echo", template)
        job = await producer.submit("echo", queue="q")
        with pytest.raises(Refused) as caught:
            await producer.submit("echo", queue="q", priority=1)
    assert (stored.version, stored.created) == (1, True)
    assert (again.version, again.created) == (1, False)
    assert (job.job["timeout_seconds"], job.job["max_attempts"]) == (7, 2)
    assert (caught.value.code, caught.value.pointer) == ("VALIDATION_FAILED", "/priority")


async def test_an_owner_that_comes_later_still_answers(ledger: Ledger, producer: Producer) -> None:
    asking = asyncio.create_task(producer.submit("echo"))
    async with ledger.owner():
        assert (await asking).job["status"] == "pending"


async def test_a_ledger_that_is_not_there_is_said_so(bootstrap: str, topic_prefix: str) -> None:
    with pytest.raises(LogUnavailable, match="topics apply"):
        async with Producer(bootstrap, prefix=topic_prefix):
            pass


async def test_a_broker_that_is_not_there_is_said_so() -> None:
    nobody = Connection(bootstrap="127.0.0.1:1", bounds=Bounds(connect_seconds=0.5))
    with pytest.raises(LogUnavailable):
        async with Producer(nobody, partitions=2):
            pass


def test_a_script_needs_no_loop(bootstrap: str, topic_prefix: str) -> None:
    async def ready() -> None:
        async with ledger_on(bootstrap, topic_prefix):
            pass

    asyncio.run(ready())
    with sync.Producer(bootstrap, prefix=topic_prefix, wait_seconds=0.2) as producer:
        submitted = producer.submit("echo", wait=False)
        assert submitted.offset == 0
        assert [one.offset for one in producer.submit_many([{"type": "echo"}] * 2)] == [1, 2]
        with pytest.raises(Undecided):
            producer.submit("echo")
        with pytest.raises(Refused):
            producer.submit("no spaces")
    with pytest.raises(ValueError, match="with"):
        producer.submit("echo")


async def test_what_is_not_acknowledged_is_said_so(ledger: Ledger) -> None:
    async with producer_of(ledger) as producer:
        assert producer._outbox is not None
        await producer._outbox.close()
        with pytest.raises(NotAcknowledged) as caught:
            await producer.submit("echo", wait=False, command_id="mine")
    assert caught.value.command_id == "mine"
