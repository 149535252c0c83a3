"""The gateway's own promises: nothing grows without a bound, and it goes on whatever it hears."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from msgspec import Raw

from api import gateway as gateways
from api.gateway import Decision, Gateway, Undecided, granted, opened
from api.idempotency import fresh_id, keyed_id, part_id
from api.positions import Seen
from api.wire import Heard, Place, Sent
from ledger.domain.commands import CancelJob, Command, LockJob, ReleaseLease
from ledger.domain.ids import CommandId, JobId, RuntimeId
from ledger.domain.partition import identity_of
from ledger.log.errors import LogUnavailable
from ledger.log.replies import Reply

JOB = JobId("default.01890000-0000-7000-8000-000000000000")


class ScriptedWire:
    """Takes commands; tells what the test puts in."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.heard: asyncio.Queue[list[Heard] | Exception] = asyncio.Queue()
        self.is_down = False

    async def append(self, sent: Sent, *, awaited: bool = True) -> Place:
        await asyncio.sleep(0)
        self.sent.append(sent)
        if self.is_down:
            raise LogUnavailable("no acknowledgement")
        return Place("commands", 0, len(self.sent))

    def partition_of(self, command: Command) -> int:
        return 0

    async def hear(self) -> Sequence[Heard]:
        heard = await self.heard.get()
        if isinstance(heard, Exception):
            raise heard
        return heard

    async def events_end(self, partition: int) -> int:
        return 0


def cancel(command_id: str) -> Sent:
    return Sent(CancelJob(JOB), CommandId(command_id), "test")


def lease(fence: int) -> Raw:
    return Raw(msgspec.json.encode({"job_id": JOB, "fence": fence}))


async def asked(wire: ScriptedWire, many: int = 1) -> None:
    async with asyncio.timeout(5):
        while len(wire.sent) < many:  # noqa: ASYNC110 (of plain state)
            await asyncio.sleep(0.001)


async def test_replies_find_who_asked() -> None:
    wire, seen = ScriptedWire(), Seen()
    async with opened(wire, seen, in_flight_max=9) as gateway:
        asking = [asyncio.create_task(gateway.decide(cancel(name), 5)) for name in ("a", "b")]
        await asked(wire, 2)
        replies = [Reply(CommandId(name), "accepted", f"0:{n}") for n, name in enumerate("ba")]
        wire.heard.put_nowait(list(replies))
        decisions = await asyncio.gather(*asking)
    assert [d.reply.position for d in decisions if isinstance(d, Decision)] == ["0:1", "0:0"]
    assert seen.text() == "0:1"
    assert gateway.in_flight == 0


async def test_a_reply_counts_though_the_append_was_not_acknowledged() -> None:
    wire = ScriptedWire()
    wire.is_down = True
    async with opened(wire, Seen(), in_flight_max=9) as gateway:
        wire.heard.put_nowait([Reply(CommandId("a"), "accepted", "0:1")])
        with gateway.waiting(cancel("a"), gives_back=False) as waiter:
            await asyncio.wait((waiter.reply,), timeout=5)
            await gateway.append(waiter)
        with pytest.raises(LogUnavailable):
            await gateway.decide(cancel("b"), 5)


async def test_what_cannot_be_understood_stops_nothing() -> None:
    wire = ScriptedWire()
    async with opened(wire, Seen(), in_flight_max=9) as gateway:
        lock = Sent(LockJob(JOB, RuntimeId("r")), CommandId("l"), "test")
        with gateway.waiting(lock, gives_back=True):
            pass
        wire.heard.put_nowait([Reply(CommandId("l"), "accepted", "", data=Raw(b"[1]"))])
        asking = asyncio.create_task(gateway.decide(cancel("a"), 5))
        await asked(wire)
        wire.heard.put_nowait([Reply(CommandId("a"), "accepted", "0:1")])
        assert isinstance(await asking, Decision)


@pytest.mark.parametrize("error", [LogUnavailable("away"), RuntimeError("nobody knows")], ids=repr)
async def test_while_replies_cannot_be_heard_writes_are_undecided(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(gateways, "DEAF_SECONDS", 0.0)
    wire = ScriptedWire()
    async with opened(wire, Seen(), in_flight_max=9) as gateway:
        wire.heard.put_nowait(error)
        undecided = await gateway.decide(cancel("a"), 0.01)
        assert isinstance(undecided, Undecided)
        assert not gateway.is_hearing
        assert gateway.place_of("a") == undecided.place
        wire.heard.put_nowait([])
        asking = asyncio.create_task(gateway.decide(cancel("b"), 5))
        await asked(wire, 2)
        wire.heard.put_nowait([Reply(CommandId("b"), "accepted", "0:1")])
        await asking
        assert gateway.is_hearing


async def test_tables_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "PLACES_MAX", 3)
    monkeypatch.setattr(gateways, "ABANDONED_MAX", 3)
    wire = ScriptedWire()
    async with opened(wire, Seen(), in_flight_max=9) as gateway:
        for number in range(9):
            await gateway.decide(cancel(f"c{number}"), 0)
            lock = Sent(LockJob(JOB, RuntimeId("r")), CommandId(f"l{number}"), "test")
            with gateway.waiting(lock, gives_back=True):
                pass
        assert [gateway.place_of(f"c{n}") is not None for n in (5, 6, 8)] == [False, True, True]
        late = [Reply(CommandId(f"l{n}"), "accepted", "", data=lease(n)) for n in range(9)]
        wire.heard.put_nowait(list(late))
        await asked(wire, 12)
    released = [s.command for s in wire.sent if isinstance(s.command, ReleaseLease)]
    assert [command.fence for command in released] == [6, 7, 8]


async def test_a_late_grant_is_given_back_under_one_id() -> None:
    wire = ScriptedWire()
    async with opened(wire, Seen(), in_flight_max=9) as gateway:
        lock = Sent(LockJob(JOB, RuntimeId("r")), CommandId("l"), "test")
        with gateway.waiting(lock, gives_back=True):
            pass
        reply = Reply(CommandId("l"), "accepted", "", data=lease(7))
        wire.heard.put_nowait([reply, reply])
        await asked(wire, 2)
    assert len({sent.command_id for sent in wire.sent}) == 1
    assert isinstance(gateway, Gateway)


def test_what_a_reply_grants() -> None:
    one = Reply(CommandId("x"), "accepted", "", data=lease(1))
    many = msgspec.structs.replace(one, data=Raw(b'{"items":[{"fence":1},{"fence":2}]}'))
    beat = msgspec.structs.replace(one, data=Raw(b'{"lease_expires_at":"x"}'))
    refused = Reply(CommandId("x"), "rejected", "", code="JOB_CLOSED")
    assert [len(granted(reply)) for reply in (one, many, beat, refused)] == [1, 2, 0, 0]


# --- Ids -----------------------------------------------------------------------------------------
def test_ids_of_keyed_commands() -> None:
    first = keyed_id("t", "POST /a", "k", {"a": 1})
    assert first == keyed_id("t", "POST /a", "k", {"a": 1.0})
    identity, content = identity_of(first)
    for other in (
        keyed_id("u", "POST /a", "k", {"a": 1}),
        keyed_id("t", "POST /b", "k", {"a": 1}),
        keyed_id("t", "POST /a", "l", {"a": 1}),
    ):
        assert identity_of(other)[0] != identity
    assert identity_of(keyed_id("t", "POST /a", "k", {"a": 2})) == (
        identity,
        identity_of(keyed_id("t", "POST /b", "l", {"a": 2}))[1],
    )
    assert identity_of(part_id(first, "p"))[1] == content
    assert identity_of(part_id(first, "p"))[0] not in (
        identity,
        identity_of(part_id(first, "q"))[0],
    )


def test_fresh_ids_are_not_keyed() -> None:
    assert fresh_id() != fresh_id()
    assert identity_of(fresh_id())[1] == ""
