"""What owners are told of claims: which still wait here, which are answered, which are over."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from api import beats
from api.beats import Beats
from api.gateway import opened
from api.positions import Seen
from api.wire import Place, Sent
from ledger.domain.commands import Claim, GatewayBeat, ReleaseLease
from ledger.domain.ids import CommandId, QueueName, RuntimeId
from ledger.log.connection import COMMAND_BYTES_MAX
from ledger.log.errors import LogUnavailable
from ledger.log.replies import Reply
from tests.unit.api.test_claims import ALL_QUEUES, KEY, ONE_QUEUE, QUEUES, Leaver, app, until
from tests.unit.api.test_gateway import ScriptedWire
from tests.unit.api.world import Client, World, client_over

__all__ = ["app"]
WAITS = {**ONE_QUEUE, "wait_seconds": 20}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "PAUSE_SECONDS", 0.001)


def ids(world: World) -> list[CommandId]:
    """Of the claims that were sent, in order."""
    return [sent.command_id for sent in world.sent if isinstance(sent.command, Claim)]


def told(world: World, word: str) -> set[CommandId]:
    return {command_id for beat in world.beats for command_id in getattr(beat, word)}


# --- One claim -----------------------------------------------------------------------------------
async def test_a_claim_that_waits_is_listed_until_it_is_answered(client: Client) -> None:
    world = client.world
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=WAITS))
    await until(lambda: sum(bool(beat.waiting) for beat in world.beats) >= 2)
    assert told(world, "waiting") == set(ids(world))
    assert told(world, "handed_over") == set()
    await client.job()
    assert len((await claiming).json()["items"]) == 1
    await until(lambda: told(world, "handed_over") == set(ids(world)))
    assert told(world, "given_up") == set()


async def test_an_empty_answer_is_no_news(client: Client) -> None:
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=WAITS))
    await until(lambda: bool(client.world.parked))
    client.world.end_waits()
    assert (await claiming).json() == {"items": []}
    await client.job()
    await client.post("/v1/runtimes/r1/claim", json=ONE_QUEUE)
    await until(lambda: bool(told(client.world, "handed_over")))
    assert told(client.world, "handed_over") == {ids(client.world)[1]}
    assert told(client.world, "given_up") == set()


async def test_a_claim_whose_caller_hangs_up_is_given_up(world: World, app: Any) -> None:
    body = b'{"queues": ["default"], "types": ["t"], "wait_seconds": 20}'
    leaver = Leaver(world, "/v1/runtimes/r1/claim", body, {})
    calling = asyncio.create_task(leaver.call(app))
    await until(lambda: bool(world.parked))
    leaver.hung_up.set()
    await calling
    await until(lambda: told(world, "given_up") == set(ids(world)))


async def test_a_keyed_claim_whose_caller_hangs_up_waits_on_and_is_handed_over(
    world: World, app: Any
) -> None:
    body = b'{"queues": ["default"], "types": ["t"], "wait_seconds": 20}'
    leaver = Leaver(world, "/v1/runtimes/r1/claim", body, KEY)
    calling = asyncio.create_task(leaver.call(app))
    await until(lambda: bool(world.parked))
    leaver.hung_up.set()
    await calling
    world.beats.clear()
    await until(lambda: told(world, "waiting") == set(ids(world)))
    async with client_over(world) as client:
        await client.job()
        await until(lambda: told(world, "handed_over") == set(ids(world)))
    assert told(world, "given_up") == set()


async def test_what_a_gateway_handed_over_it_says_before_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beats, "PAUSE_SECONDS", 60.0)
    async with client_over(world) as client:
        await client.job()
        await client.post("/v1/runtimes/r1/claim", json=ONE_QUEUE)
        assert world.beats == []
    assert told(world, "handed_over") == set(ids(world))


# --- Several partitions --------------------------------------------------------------------------
async def test_a_part_of_a_claim_waits_until_the_whole_is_answered(client: Client) -> None:
    world = client.world
    await client.job(queue=QUEUES[0])
    decide, silent = world.decide, world.logs[1]
    world.decide = (  # type: ignore[method-assign]
        lambda log, asked: None if log is silent else decide(log, asked)
    )
    body = {**ALL_QUEUES, "limit": 2}
    headers = {"Prefer": "wait=20"}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body, headers=headers))
    await until(lambda: len(ids(world)) == 2 and bool(told(world, "waiting")))
    world.beats.clear()
    await until(lambda: ids(world)[0] in told(world, "waiting"))
    assert told(world, "handed_over") == set()
    world.decide = decide  # type: ignore[method-assign]
    world.decide(silent, world.read_again(ids(world)[1]))
    assert len((await claiming).json()["items"]) == 1
    await until(lambda: told(world, "handed_over") == {ids(world)[0]})


async def test_of_a_wait_over_several_partitions_one_is_handed_over_and_the_rest_given_up(
    client: Client,
) -> None:
    world = client.world
    body = {**ALL_QUEUES, "wait_seconds": 20}
    claiming = asyncio.create_task(client.post("/v1/runtimes/r1/claim", json=body))
    await until(lambda: len(world.parked) == len(QUEUES))
    parked = ids(world)[len(QUEUES) :]
    await client.job(queue=QUEUES[1])
    assert len((await claiming).json()["items"]) == 1
    await until(lambda: told(world, "handed_over") == {parked[1]})
    await until(lambda: told(world, "given_up") == {*parked} - {parked[1]})


async def test_a_surplus_is_released_and_not_told_as_handed_over() -> None:
    wire = ScriptedWire()
    surplus = Sent(Claim(RuntimeId("r"), (QueueName("q"),), ("t",)), CommandId("c"), "test")
    async with opened(wire, Seen(), in_flight_max=9) as gateway:
        with gateway.waiting(surplus, gives_back=True) as waiter:
            granted = Raw(msgspec.json.encode({"items": [{"job_id": "j", "fence": 1}]}))
            wire.heard.put_nowait([Reply(surplus.command_id, "accepted", "0:1", data=granted)])
            await asyncio.wait((waiter.reply,), timeout=5)
    assert [type(sent.command) for sent in wire.sent] == [ReleaseLease]


# --- The log -------------------------------------------------------------------------------------
class Partitions(ScriptedWire):
    """Takes what is sent to it, but for one partition: that is slow, or refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[GatewayBeat] = []
        self.stuck: asyncio.Event | None = None

    async def append(self, sent: Sent, *, awaited: bool = True) -> Place:
        command = sent.command
        assert isinstance(command, GatewayBeat)
        assert awaited, "the reply address says whose beat it is"
        if command.partition == 0 and self.stuck is not None:
            await self.stuck.wait()
            raise LogUnavailable("no acknowledgement")
        self.beats.append(command)
        return Place("commands", command.partition, len(self.beats))


def command_ids(many: int) -> tuple[CommandId, ...]:
    return tuple(CommandId(f"ik.{number:040}.{number:040}") for number in range(many))


async def test_who_has_no_claim_and_no_news_of_one_says_nothing() -> None:
    wire = Partitions()
    told = Beats(wire, dict)
    told.send({})
    await told.drain()
    assert wire.beats == []


async def test_a_partition_that_takes_none_holds_up_no_other_and_is_told_later() -> None:
    wire = Partitions()
    wire.stuck = asyncio.Event()
    told = Beats(wire, dict)
    [one] = command_ids(1)
    for partition in range(2):
        told.handed_over(partition, one)
        told.given_up(partition, one)
    told.send({})
    await until(lambda: bool(wire.beats))
    told.send({0: [one], 1: [one]})
    await until(lambda: len(wire.beats) == 2)
    assert wire.beats == [GatewayBeat(1, (), (one,), (one,)), GatewayBeat(1, (one,))]
    wire.stuck.set()
    wire.stuck = None
    await told.drain()
    assert wire.beats[2:] == [GatewayBeat(0, (), (one,), (one,))]


async def test_however_many_claims_there_are_each_beat_fits_a_record() -> None:
    wire = Partitions()
    told = Beats(wire, dict)
    many = command_ids(2_001)
    for one in many:
        told.handed_over(3, one)
        told.given_up(3, one)
    told.send({3: many})
    await told.drain()
    assert len(wire.beats) == 3
    for word in ("waiting", "handed_over", "given_up"):
        assert tuple(one for beat in wire.beats for one in getattr(beat, word)) == many
    assert max(len(msgspec.json.encode(beat)) for beat in wire.beats) <= COMMAND_BYTES_MAX


async def test_news_that_cannot_be_told_are_kept_within_a_bound() -> None:
    wire = Partitions()
    told = Beats(wire, dict)
    for one in command_ids(beats.NEWS_MAX + 1):
        told.handed_over(3, one)
    await told.drain()
    assert sum(len(beat.handed_over) for beat in wire.beats) == beats.NEWS_MAX
