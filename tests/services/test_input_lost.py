"""Records of an intake are gone before they were decided: the owner says so, decides nothing that
lies behind them, and goes on once an operator has declared them lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from ledger.domain.commands import CancelJob, Command, DeclareInputLost, RequestJob
from ledger.domain.events import CommandRejected, InputLost, JobCancelled, JobRequested
from ledger.domain.ids import LEDGER_QUEUE, JobId, QueueName
from ledger.log.admin import Admin
from ledger.log.offsets import Offsets
from ledger.log.partitions import partition_of
from processors.owner.service import OwnerService
from tests.support.ledger import PATIENCE_SECONDS, Client, Ledger, ledger_on

pytestmark = pytest.mark.services

QUEUE = QueueName("default")
REQUEST = RequestJob(type="sum", queue=QUEUE)
KEPT = 2
GONE = 3


@pytest.fixture
async def ledger(
    bootstrap: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        monkeypatch.setenv("LEDGER_KAFKA", bootstrap)
        monkeypatch.setenv("LEDGER_PREFIX", topic_prefix)
        monkeypatch.setenv("LEDGER_PARTITIONS", str(ledger.partitions))
        yield ledger


@pytest.fixture
async def client(ledger: Ledger) -> AsyncIterator[Client]:
    async with ledger.client() as client:
        yield client


@pytest.fixture
def number(ledger: Ledger) -> int:
    """The partition of the queue."""
    return partition_of(QUEUE, ledger.partitions)


async def job_of(client: Client) -> JobId:
    reply = await client.ask(REQUEST)
    assert reply.job_id is not None, reply
    return reply.job_id


async def lose(
    ledger: Ledger, client: Client, topic: str, number: int, commands: list[Command]
) -> tuple[int, int]:
    """Sends them, and deletes the first GONE of them: (the first missing, the first there)."""
    async with Offsets(ledger.connection) as offsets, Admin(ledger.connection) as admin:
        first = await offsets.end(topic, number)
        await client.send(*commands)
        await admin.delete_records(topic, {number: first + GONE})
    return first, first + GONE


def told(service: OwnerService, number: int) -> dict[str, Any]:
    """What the health endpoint says of the partition."""
    found: dict[str, Any] = service.health()["partitions"].get(number, {"missing": 0})
    return found


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)  # Between two looks.


async def ledger_command(*words: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the owner in this one has its log on standard output."""
    command = (sys.executable, "-m", "cli.main", *words)
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def words(topic: Literal["commands", "requests"], number: int, first: int, end: int) -> list[str]:
    span = ("--first", str(first), "--end", str(end))
    return ["topics", "lost", "--partition", str(number), "--topic", topic, *span]


async def test_a_gap_in_the_requests_stops_the_requests_alone_until_it_is_declared_lost(
    ledger: Ledger, client: Client, number: int
) -> None:
    async with ledger.owner():
        job_id = await job_of(client)
    requests: list[Command] = [REQUEST] * (GONE + KEPT)
    first, end = await lose(ledger, client, ledger.topics.requests, number, requests)
    async with ledger.owner() as service:
        await until(lambda: told(service, number)["missing"] == GONE)
        health = told(service, number)
        [gap] = health["gaps"]
        assert (gap["topic"], gap["first"], gap["end"]) == (ledger.topics.requests, first, end)
        assert health["owner"]
        assert gap["fix"] in health["last_error"]

        assert (await client.ask(CancelJob(job_id))).outcome == "accepted", "commands are decided"
        for wrong in ((first, end + 1), (first - 1, end), (first + 1, end)):
            reply = await client.ask(DeclareInputLost(number, "requests", *wrong))
            assert (reply.code, str(first) in reply.detail) == ("PRECONDITION_FAILED", True)
        reply = await client.ask(DeclareInputLost(number, "commands", 0, 1))
        assert reply.code == "PRECONDITION_FAILED", "nothing is missing of the commands"
        assert sum(isinstance(e, JobRequested) for e in await ledger.events()) == 1

        reply = await client.ask(DeclareInputLost(number, "requests", first, end))
        assert reply.outcome == "accepted"
        await job_of(client)
        assert told(service, number)["missing"] == 0
        again = await client.ask(DeclareInputLost(number, "requests", first, end))
        assert again.code == "PRECONDITION_FAILED", "it is closed"
    events = await ledger.events()
    assert sum(isinstance(e, JobRequested) for e in events) == 1 + KEPT + 1
    assert [e for e in events if isinstance(e, InputLost)] == [
        InputLost(LEDGER_QUEUE, "requests", first, end)
    ]
    assert (await ledger.fold(number)).requests == end + KEPT + 1


async def test_a_gap_in_the_commands_is_closed_by_a_declaration_that_lies_behind_it(
    ledger: Ledger, client: Client, number: int
) -> None:
    async with ledger.owner():
        jobs = [await job_of(client) for _ in range(GONE + KEPT)]
    cancels: list[Command] = [CancelJob(job_id) for job_id in jobs]
    first, end = await lose(ledger, client, ledger.topics.commands, number, cancels)
    async with ledger.owner() as service:
        await until(lambda: told(service, number)["missing"] == GONE)
        await job_of(client)  # Requests are decided meanwhile.
        wrong = await client.ask(DeclareInputLost(number, "commands", first + 1, end))
        assert (wrong.code, str(first) in wrong.detail) == ("PRECONDITION_FAILED", True)
        assert not any(isinstance(e, JobCancelled) for e in await ledger.events())

        result = await ledger_command(*words("commands", number, first, end), "--yes", "--json")

        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["lost"] is True
        late = await client.ask(CancelJob(jobs[0]))
        assert late.outcome == "accepted"
        assert told(service, number)["missing"] == 0
    events = await ledger.events()
    cancelled = [e.job_id for e in events if isinstance(e, JobCancelled)]
    assert cancelled == [*jobs[GONE:], jobs[0]], "those behind the gap, in order, none before it"
    assert [e for e in events if isinstance(e, InputLost)] == [
        InputLost(LEDGER_QUEUE, "commands", first, end)
    ]
    codes = [e.code for e in events if isinstance(e, CommandRejected)]
    assert codes == ["PRECONDITION_FAILED"], "the wrong one, though it is read twice"


async def test_a_gap_that_grows_is_to_be_declared_as_it_is_now(
    ledger: Ledger, client: Client, number: int
) -> None:
    topic = ledger.topics.commands
    async with ledger.owner():
        job_id = await job_of(client)
    cancels: list[Command] = [CancelJob(job_id)] * (GONE + KEPT)
    first, end = await lose(ledger, client, topic, number, cancels)
    async with ledger.owner() as service:
        await until(lambda: told(service, number)["missing"] == GONE)
        async with Admin(ledger.connection) as admin:
            await admin.delete_records(topic, {number: end + 1})
        old = await client.ask(DeclareInputLost(number, "commands", first, end))
        assert old.code == "PRECONDITION_FAILED"
        assert f"to {end + 1} are missing" in old.detail
        reply = await client.ask(DeclareInputLost(number, "commands", first, end + 1))
        assert reply.outcome == "accepted"
    assert sum(isinstance(e, InputLost) for e in await ledger.events()) == 1


async def test_nothing_that_is_there_is_declared_lost_and_nothing_without_yes(
    ledger: Ledger, client: Client, number: int
) -> None:
    requests: list[Command] = [REQUEST] * (GONE + KEPT)
    first, end = await lose(ledger, client, ledger.topics.requests, number, requests)

    hasty = await ledger_command(*words("requests", number, first, end))
    wrong = await ledger_command(*words("requests", number, first, end + 1), "--yes")
    nowhere = await ledger_command(*words("requests", ledger.partitions, first, end), "--yes")
    backwards = await ledger_command(*words("requests", number, end, first or 1), "--yes")

    assert hasty.returncode == 2
    assert f"this gives up {GONE} records" in hasty.stderr
    assert wrong.returncode == 4
    assert f"that is there is {end}" in wrong.stderr
    assert (nowhere.returncode, backwards.returncode) == (2, 2)
    async with Offsets(ledger.connection) as offsets:
        assert await offsets.end(ledger.topics.commands, number) == 0, "nothing was sent"
