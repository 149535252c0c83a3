"""The wire form of every type, byte for byte: what is in a log for ever must be read for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from ledger.domain import commands, events
from ledger.domain.commands import Asked
from ledger.domain.digest import digest
from ledger.domain.entries import Entry, Proven, TakeOver
from ledger.domain.ids import CommandId, Micros, RuntimeId
from ledger.domain.partition import Partition
from ledger.domain.snapshot import FOLD
from ledger.log.chain import chained
from ledger.log.codec import (
    Reply,
    command_from,
    command_record,
    partition_for,
    reply_from,
    reply_record,
)
from ledger.log.effective import Cursor, EffectiveEntries, TakenOver
from ledger.log.entry_codec import EntryEncoder, event_from, take_over_record
from ledger.log.inbox import Assigned, BeatAnswered, OwnerChanged, inbox_from, inbox_record
from ledger.log.records import Outgoing, Record
from tests.golden import samples

Golden = Callable[[str, object], None]

AT = Micros(1_767_323_045_678_901)
PREVIOUS = bytes(range(32))
NONCE = "golden-0123456789ab"
TOPIC = "ledger.events.v1"
BEFORE = Cursor(
    offset=40, entry=6, hash=PREVIOUS, nonce=NONCE, nonces=(NONCE,), ledger_id="L1", partitions=16
)
SAMPLES = {"full": samples.full, "minimal": samples.minimal}


def as_json(record: Outgoing) -> dict[str, Any]:
    key, value, headers = record
    return {
        "key": None if key is None else key.decode(),
        "value": None if value is None else value.decode(),
        "headers": [[name, content.decode()] for name, content in headers],
    }


def as_read(said: dict[str, Any] | Outgoing, offset: int = 40) -> Record:
    if isinstance(said, tuple):
        said = as_json(said)
    key, value = said["key"], said["value"]
    return SimpleNamespace(
        topic=TOPIC,
        partition=3,
        offset=offset,
        timestamp=1_767_323_046_000,
        key=None if key is None else key.encode(),
        value=None if value is None else value.encode(),
        headers=tuple((name, content.encode()) for name, content in said["headers"]),
    )


def entry_of(*facts: events.Event, number: int = 7) -> Entry:
    return Entry(
        number=number,
        at=AT,
        commands=1234,
        requests=56,
        events=facts,
        actor="runtime;a%b",
        cause="c-1",
        correlation=samples.JOB_ID,
        key_id="k1",
    )


def encoder() -> EntryEncoder:
    return EntryEncoder(partition=3, ledger_id="L1", nonce=NONCE)


@pytest.mark.parametrize("name", events.TYPES)
def test_event(name: str, golden: Golden) -> None:
    kind: type[Struct] = events.TYPES[name]
    wire = {}
    for size, sample in SAMPLES.items():
        entry = entry_of(sample(kind))
        encoded = encoder().encode(entry, PREVIOUS)
        wire[size] = as_json(encoded.records[0])
        found = EffectiveEntries(TOPIC, 3, BEFORE).feed(as_read(wire[size]))
        assert found == Proven(entry, 40, 40, encoded.hash)
    golden(f"events/{name}", wire)


@pytest.mark.parametrize("name", commands.TYPES)
def test_command(name: str, golden: Golden) -> None:
    kind: type[Struct] = commands.TYPES[name]
    wire = {}
    for size, sample in SAMPLES.items():
        command = sample(kind)
        sent_at, reply_to = (AT, "7/gateway-1") if size == "full" else (None, "")
        record = command_record(
            command,
            CommandId("c-1"),
            source="sdk/1",
            sent_at=sent_at,
            reply_to=reply_to,
            actor="ann" if size == "full" else "",
        )
        wire[size] = as_json(record)
        assert command_from(as_read(wire[size])) == Asked(
            command,
            CommandId("c-1"),
            actor="ann" if size == "full" else "",
            reply_to=reply_to,
            sent_at=sent_at,
            appended_at=Micros(1_767_323_046_000_000),
            offset=40,
        )
        wire[size]["partition of 16"] = partition_for(command, 16)
    golden(f"commands/{name}", wire)


def test_take_over(golden: Golden) -> None:
    take_over = TakeOver("owner-0123456789ab", AT, "L1", 16)
    wire = as_json(take_over_record(take_over, partition=3))
    assert EffectiveEntries(TOPIC, 3, BEFORE).feed(as_read(wire)) == TakenOver(take_over, 40)
    golden("take_over", wire)


def test_reply(golden: Golden) -> None:
    wire = {}
    for size, sample in SAMPLES.items():
        reply = sample(Reply)
        partition, record = reply_record(reply, "7/gateway-1", source="ledger/L1")
        assert partition == 7
        wire[size] = as_json(record)
        assert reply_from(as_read(wire[size])) == reply
    golden("reply", wire)


@pytest.mark.parametrize("kind", [Assigned, BeatAnswered, OwnerChanged])
def test_inbox(kind: Any, golden: Golden) -> None:
    wire = {}
    for size, sample in SAMPLES.items():
        content = sample(kind)
        runtime = RuntimeId("r-1") if size == "full" else None
        record = inbox_record(content, record_id="3-7-1", source="ledger/L1", runtime_id=runtime)
        wire[size] = as_json(record)
        assert inbox_from(as_read(wire[size])) == content
    golden(f"inbox/{kind.TYPE}", wire)


def test_chain(golden: Golden) -> None:
    """Three entries; the hash of each is over the one before, by the plain reference too."""
    entries = [
        entry_of(samples.full(events.JobRequested), number=7),
        entry_of(
            samples.full(events.AttemptStarted),
            samples.full(events.JobSucceeded),
            samples.full(events.LeaseGranted),
            number=8,
        ),
        entry_of(samples.minimal(events.CommandsConsumed), number=9),
    ]
    writer, previous = encoder(), PREVIOUS
    reader, offset = EffectiveEntries(TOPIC, 3, BEFORE), 40
    wire: list[Any] = []
    for entry in entries:
        encoded = writer.encode(entry, previous)
        fields = []
        found = []
        for key, value, headers in encoded.records:
            said = dict(headers)
            bare = b";".join(said["ce_ledger"].split(b";")[:9])
            names = ("ce_id", "ce_source", "ce_type", "ce_time")
            fields.append((key or b"", *(said[name] for name in names), bare, value or b""))
            found.append(reader.feed(as_read(as_json((key, value, headers)), offset)))
            offset += 1
        assert chained(previous, NONCE.encode(), fields) == encoded.hash  # type: ignore[arg-type]
        assert found[:-1] == [None] * (len(found) - 1)
        assert found[-1] == Proven(entry, offset - len(found), offset - 1, encoded.hash)
        previous = encoded.hash
        wire.append(
            {"hash": encoded.hash.hex(), "records": [as_json(each) for each in encoded.records]}
        )
    golden("chain", {"previous": PREVIOUS.hex(), "nonce": NONCE, "entries": wire})


# --- The fold -----------------------------------------------------------------------------------
def test_the_rules_of_the_fold_have_a_number(golden: Golden) -> None:
    """If this fails, entries become another state than before: raise `FOLD`, or snapshots that an
    older version wrote will be taken for what this one would have folded. `history.jsonl` is what
    some days of random commands once left in a log; it stays as it is."""
    partition = Partition(3)
    for line in (Path(__file__).parent / "history.jsonl").read_bytes().splitlines():
        at, number, cause, said = msgspec.json.decode(line)
        facts = tuple(event_from(*(text.encode() for text in fact)) for fact in said)
        partition.apply(Entry(number, Micros(at), number, number, facts, cause=cause))
    assert len(partition.jobs) + len(partition.closed) > 20
    golden("fold", {"number": FOLD, "state": digest(partition).hex()})
