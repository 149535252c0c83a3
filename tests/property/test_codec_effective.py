"""All readers of one prefix agree, whatever lies in the log and however it is cut and resumed."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.entries import Entry, Proven, TakeOver
from ledger.domain.events import CommandsConsumed, Event, JobCancelled
from ledger.domain.ids import JobId, Micros, QueueName
from ledger.log.effective import START, Cursor, Effective, EffectiveEntries, TakenOver
from ledger.log.entry_codec import EntryEncoder, event_from, take_over_record
from ledger.log.errors import ChainBroken
from ledger.log.records import Outgoing, Record

JOB = JobId("q.0190a7b2-7b1c-7def-8a12-0123456789ab")


def record_at(offset: int, record: Outgoing) -> Record:
    key, value, headers = record
    return SimpleNamespace(
        topic="events",
        partition=0,
        offset=offset,
        timestamp=0,
        key=key,
        value=value,
        headers=tuple(headers),
    )


class Writer:
    """An owner that goes on from what it found at its take-over, whether it still may or not."""

    def __init__(self, nonce: str, after: Cursor) -> None:
        self.nonce = nonce
        self.number = after.entry
        self.hash = after.hash
        self.encoder = EntryEncoder(partition=0, ledger_id="L", nonce=nonce)

    def entry(self, size: int) -> list[Outgoing]:
        self.number += 1
        facts: list[Event] = [
            JobCancelled(JOB, "at_once", reason=f"{self.nonce};{each}") for each in range(size)
        ]
        facts[-1] = CommandsConsumed(QueueName("q"), self.number)
        entry = Entry(self.number, Micros(self.number), self.number, 0, tuple(facts), self.nonce)
        encoded = self.encoder.encode(entry, self.hash)
        self.hash = encoded.hash
        return encoded.records


class Log:
    """Made step by step; beside it, what counts of it by a second, plain rule."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.writers: list[Writer] = []
        self.in_force = ""
        self.number = 0
        self.effective: list[tuple[str, int]] = []
        """What counts, by its kind and last offset."""

    def put(self, records: list[Outgoing]) -> None:
        self.records += [
            record_at(len(self.records) + index, record) for index, record in enumerate(records)
        ]

    def take_over(self, ledger_id: str = "L") -> None:
        nonce = f"n-{len(self.records)}"
        record = take_over_record(TakeOver(nonce, Micros(0), ledger_id, 1), partition=0)
        self.put([record])
        if ledger_id == "L":
            self.in_force = nonce
            self.effective.append(("take-over", len(self.records) - 1))
            self.writers.append(Writer(nonce, reader_of(self.records).cursor))

    def append(self, writer: Writer, *, size: int, landed: int) -> None:
        """`landed` records of the entry; more than it has: all of them."""
        records = writer.entry(size)
        self.put(records[:landed])
        whole = landed >= size
        if whole and writer.nonce == self.in_force and writer.number == self.number + 1:
            self.number += 1
            self.effective.append(("entry", len(self.records) - 1))

    def double(self, first: int, count: int) -> None:
        """Old records land once more: whole batches or pieces, take-overs too."""
        again = self.records[first : first + count]
        self.records += [
            SimpleNamespace(**{**vars(record), "offset": len(self.records) + index})
            for index, record in enumerate(again)
        ]


POISON: list[Outgoing] = [
    (None, None, []),
    (b"k", b"v", [("ce_ledger", b"1;1/1;n-0;0;0;;;;")]),
    (b"\xff", b"{", [("ce_type", b"ledger.partition.taken_over.v1")]),
    *(
        (
            b"k",
            value,
            [
                ("ce_specversion", b"1.0"),
                ("ce_id", b"x"),
                ("ce_source", b"\xff"),
                ("ce_type", kind),
                ("ce_time", b"now"),
                ("content-type", b"?"),
                ("ce_ledger", ledger),
            ],
        )
        for kind, value, ledger in [
            (b"ledger.partition.taken_over.v1", b'{"nonce":"n"}', b""),
            (b"ledger.partition.taken_over.v1", b"\xff", b""),
            (
                b"ledger.partition.taken_over.v1",
                b'{"nonce":"","at":1,"ledger_id":"L","partitions":1}',
                b"",
            ),
            (b"ledger.job.cancelled.v1", b"{}", b""),
            (b"ledger.job.cancelled.v1", b"{}", b";;;;;;;;"),
            (b"ledger.job.cancelled.v1", b"{}", b"1;1/1;;0;0;;;;;00"),
            (b"ledger.job.cancelled.v1", b"{}", b"x;1/1;n-0;0;0;;;;"),
            (b"ledger.job.cancelled.v1", b"{}", b"1;2/1;n-0;0;0;;;;"),
            (b"ledger.job.cancelled.v1", b"{}", b"1;0/0;n-0;0;0;;;;"),
            (b"ledger.job.cancelled.v1", b"{}", b"-1;1/1;n-0;0;0;;;;;00"),
        ]
    ),
]
HEADERLESS: Outgoing = (b"k", b"v", [("ce_id", None), ("ce_ledger", None)])  # type: ignore[list-item]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log()
    log.take_over()
    for _ in range(draw(st.integers(0, 25))):
        match draw(st.sampled_from(["write", "write", "write", "zombie", "torn", "take", *"dpo"])):
            case "write":
                log.append(log.writers[-1], size=draw(st.integers(1, 3)), landed=9)
            case "zombie":
                log.append(draw(st.sampled_from(log.writers)), size=2, landed=9)
            case "torn":
                log.append(
                    draw(st.sampled_from(log.writers)), size=3, landed=draw(st.integers(0, 2))
                )
            case "take":
                log.take_over()
            case "d":
                last = len(log.records) - 1
                log.double(draw(st.integers(0, last)), draw(st.integers(1, 4)))
            case "p":
                log.put([draw(st.sampled_from([*POISON, HEADERLESS]))])
            case "o":
                log.take_over("another")
    return log


def reader_of(records: list[Record], cursor: Cursor = START) -> EffectiveEntries:
    reader = EffectiveEntries("events", 0, cursor)
    reader.feed_all(records)
    return reader


def place(item: Effective) -> tuple[str, int]:
    if isinstance(item, TakenOver):
        return "take-over", item.offset
    return "entry", item.last_offset


@given(logs())
@settings(max_examples=150, deadline=None)
def test_what_counts_is_what_the_plain_rule_says(log: Log) -> None:
    reader = EffectiveEntries("events", 0)
    found = reader.feed_all(log.records)
    assert [place(item) for item in found] == log.effective
    entries = [item.entry.number for item in found if isinstance(item, Proven)]
    assert entries == list(range(1, len(entries) + 1))
    passed_over = sum(msgspec.structs.astuple(reader.ignored))
    effective = sum(
        item.last_offset - item.first_offset + 1 if isinstance(item, Proven) else 1
        for item in found
    )
    assert len(log.records) - effective - 2 <= passed_over <= len(log.records) - effective


@given(logs(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_reader_that_stops_and_resumes_finds_the_same(log: Log, data: st.DataObject) -> None:
    whole = EffectiveEntries("events", 0)
    expected = whole.feed_all(log.records)
    cursor, found = START, list[Effective]()
    while cursor.offset < len(log.records):
        upto = data.draw(st.integers(cursor.offset + 1, len(log.records)))
        part = EffectiveEntries("events", 0, cursor)
        items = part.feed_all(log.records[cursor.offset : upto])
        found += items
        if not items and upto == len(log.records):
            break
        cursor = msgspec.json.decode(msgspec.json.encode(part.cursor), type=Cursor)
    assert found == expected
    if found:
        last = reader_of(log.records[cursor.offset :], cursor)
        assert last.cursor == whole.cursor


@given(logs(), st.data())
@settings(max_examples=100, deadline=None)
def test_an_edited_entry_breaks_the_chain_where_it_is(log: Log, data: st.DataObject) -> None:
    entries = [
        item for item in EffectiveEntries("events", 0).feed_all(log.records) if is_entry(item)
    ]
    if not entries:
        return
    victim = data.draw(st.sampled_from(entries))
    assert isinstance(victim, Proven)
    at = data.draw(st.integers(victim.first_offset, victim.last_offset))
    edited = list(log.records)
    field = data.draw(st.sampled_from(["key", "value"]))
    old = edited[at]
    edited[at] = SimpleNamespace(**{**vars(old), field: (getattr(old, field) or b"") + b" "})
    with pytest.raises(ChainBroken) as broken:
        EffectiveEntries("events", 0).feed_all(edited)
    assert broken.value.offset == victim.first_offset


def is_entry(item: Effective) -> bool:
    return isinstance(item, Proven)


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=60))
def test_decoding_an_event_is_total(kind: bytes, key: bytes, value: bytes) -> None:
    event_from(kind, key, value)
    event_from(b"ledger.job.requested.v1", key, value)


headers = st.lists(
    st.tuples(
        st.sampled_from(["ce_id", "ce_source", "ce_type", "ce_time", "ce_ledger", "x"]),
        st.none() | st.binary(max_size=20) | st.just(b"1;1/1;n;0;0;;;;"),
    ),
    max_size=8,
)


@given(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=30), headers)
def test_a_reader_takes_any_record(
    key: bytes | None, value: bytes | None, alien: list[tuple[str, bytes | None]]
) -> None:
    reader = EffectiveEntries("events", 0)
    assert reader.feed(record_at(0, (key, value, alien))) is None  # type: ignore[arg-type]
    assert reader.ignored.unreadable + reader.ignored.foreign == 1


def test_headers_in_another_order_and_a_trace_do_not_matter() -> None:
    log = Log()
    log.take_over()
    log.append(log.writers[0], size=2, landed=2)
    shuffled = [
        SimpleNamespace(
            **{
                **vars(record),
                "headers": (("traceparent", b"00-x"), *reversed(record.headers)),
            }
        )
        for record in log.records
    ]
    assert reader_of(list(shuffled)).cursor == reader_of(log.records).cursor
