"""The small pure parts of the log."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from msgspec import Raw, Struct

from ledger.domain.entries import Entry
from ledger.domain.events import CommandsConsumed, JobSucceeded
from ledger.domain.ids import CommandId, Fence, JobId, Micros, QueueName, StepName
from ledger.domain.raw_fields import decoder_of
from ledger.log.admin import TopicFound
from ledger.log.connection import (
    BATCH_BYTES_MAX,
    ENTRY_BYTES_MAX,
    FETCH_BYTES_MAX,
    RECORD_BYTES_MAX,
    Connection,
)
from ledger.log.entry_codec import EntryEncoder, escaped, unescaped
from ledger.log.inbox import inbox_from
from ledger.log.outbox import size_of
from ledger.log.partitions import partition_of
from ledger.log.records import Outgoing, Record
from ledger.log.replies import Reply, parse_reply_to, reply_from, reply_record
from ledger.log.topics import Topics, problems_of

JOB = JobId("q.0190a7b2-7b1c-7def-8a12-0123456789ab")


# --- Partitions ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        # The vectors of Kafka's own UtilsTest.
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_the_partition_is_the_one_that_java_says(key: str, hashed: int) -> None:
    assert partition_of(key, 2**31) == hashed & 0x7FFF_FFFF
    assert partition_of(key, 16) == (hashed & 0x7FFF_FFFF) % 16


# --- Bounds and sizes ---------------------------------------------------------------------------
def test_the_bounds_fit_each_other() -> None:
    assert 2 * ENTRY_BYTES_MAX <= BATCH_BYTES_MAX < RECORD_BYTES_MAX <= FETCH_BYTES_MAX


@pytest.mark.parametrize("count", [1, 2, 500])
@pytest.mark.parametrize("payload", [0, 1, 200, 20_000])
def test_an_entry_takes_no_more_of_a_batch_than_it_says(count: int, payload: int) -> None:
    fact = JobSucceeded(
        JOB, StepName("main"), Fence(1), 1, "ab" * 32, Raw(b'"' + b"x" * payload + b'"')
    )
    entry = Entry(2**40, Micros(2**50), 2**40, 2**40, (fact,) * count, "a" * 300, "c" * 300)
    encoder = EntryEncoder(partition=15, ledger_id="L" * 40, nonce="n" * 40)
    encoded = encoder.encode(entry, b"h" * 32)
    assert in_a_batch(encoded.records) <= encoded.size + 61


@pytest.mark.parametrize("size", [0, 1, 100, 100_000])
def test_a_record_takes_no_more_of_a_batch_than_it_says(size: int) -> None:
    headers = [("name", b"v" * size), ("", b"")]
    record: Outgoing = (b"k" * size, b"v" * size, headers)
    assert in_a_batch([record] * 3) <= 3 * size_of(record) + 61


def in_a_batch(records: list[Outgoing]) -> int:
    builder = BatchBuilder(1 << 30, 0)
    for key, value, headers in records:
        assert builder.append(timestamp=2**45, key=key, value=value, headers=headers)
    return len(builder._build())


def test_an_entry_without_events_is_no_entry() -> None:
    encoder = EntryEncoder(partition=0, ledger_id="L", nonce="n")
    with pytest.raises(ValueError, match="no events"):
        encoder.encode(Entry(1, Micros(0), 0, 0, ()), b"")


def test_more_events_than_digits_are_kept_ready_for() -> None:
    encoder = EntryEncoder(partition=0, ledger_id="L", nonce="n")
    facts = (CommandsConsumed(QueueName("q"), 1),) * 1_500
    records = encoder.encode(Entry(1, Micros(0), 0, 0, facts), b"").records
    assert dict(records[1_499][2])["ce_ledger"].startswith(b"1;1500/1500;n;")


@pytest.mark.parametrize("text", ["", ";", "%", "%3B", "%25;", "a;b%c", "Grüße;"])
def test_a_packed_text_comes_back(text: str) -> None:
    assert ";" not in escaped(text)
    assert unescaped(escaped(text).encode()) == text


def test_a_connection_shows_no_password() -> None:
    connection = Connection(bootstrap="a:1,b:2", sasl_username="u", sasl_password="hunter2")
    assert "hunter2" not in repr(connection)
    assert connection.client("x")["bootstrap_servers"] == ["a:1", "b:2"]


# --- Raw fields ---------------------------------------------------------------------------------
class Holder(Struct, frozen=True):
    name: str
    must: Raw
    may: Raw | None = None


def test_a_raw_that_may_be_none_is_decoded() -> None:
    decode = decoder_of(Holder)
    assert decode(b'{"name":"a","must":[1],"may":{"b":2}}') == Holder(
        "a", Raw(b"[1]"), Raw(b'{"b":2}')
    )
    assert decode(b'{"name":"a","must":[1]}') == Holder("a", Raw(b"[1]"))


def test_a_raw_holds_its_own_bytes_only() -> None:
    decoded = decoder_of(Holder)(b'{"name":"' + b"x" * 10_000 + b'","must":[1]}')
    assert memoryview(decoded.must).nbytes == 3
    assert sys.getsizeof(memoryview(decoded.must).obj) < 200


# --- Replies and inboxes ------------------------------------------------------------------------
@pytest.mark.parametrize("reply_to", ["", "/", "3", "3/", "/a", "x/a", "-1/a", "³/a"])
def test_a_reply_address_that_is_none_is_refused(reply_to: str) -> None:
    with pytest.raises(ValueError, match="is not <partition>/<address>"):
        parse_reply_to(reply_to)


def test_a_reply_goes_to_the_partition_and_address_that_were_given() -> None:
    reply = Reply(CommandId("c"), "accepted", "3:17")
    partition, (key, _, _) = reply_record(reply, "7/a/b", source="s")
    assert (partition, key) == (7, b"a/b")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (b"ledger.command.replied.v1", b"{"),
        (b"ledger.command.replied.v1", None),
        (b"ledger.runtime.assigned.v1", b"\xff"),
        (b"ledger.runtime.assigned.v9", b"{}"),
        (b"\xff", b"{}"),
    ],
)
def test_readers_of_replies_and_inboxes_pass_over_what_they_cannot_read(
    kind: bytes, value: bytes | None
) -> None:
    record: Record = SimpleNamespace(
        topic="t", partition=0, offset=0, timestamp=0, key=None, value=value,
        headers=(("ce_type", kind),),
    )  # fmt: skip
    assert reply_from(record) is None
    assert inbox_from(record) is None


# --- Topics -------------------------------------------------------------------------------------
def test_the_names_of_topics() -> None:
    topics = Topics("x.")
    assert topics.dead(topics.requests) == "x.dlq.ledger.requests.v1"
    assert topics.assigned(QueueName("mail")) == "x.ledger.assigned.mail.v1"
    assert Topics().dead(Topics().commands) == "dlq.ledger.commands.v1"


@pytest.mark.parametrize("mode", ["development", "production"])
def test_a_topic_as_specified_has_no_problem(mode: str) -> None:
    for spec in Topics().specs(partitions=16, mode=mode):  # type: ignore[arg-type]
        found = TopicFound(spec.partitions, 3, dict(spec.settings))
        assert problems_of(spec, found) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000"),
        ("unclean.leader.election.enable", "true"),
        ("min.insync.replicas", "1"),
        ("message.timestamp.type", "CreateTime"),
        ("max.message.bytes", "1000"),
    ],
)
def test_each_unsafe_setting_of_the_events_is_a_sentence(setting: str, value: str) -> None:
    spec = Topics().specs(partitions=16, mode="production")[2]
    found = TopicFound(16, 3, {**spec.settings, setting: value})
    [problem] = problems_of(spec, found)
    assert str(problem).startswith(f"ledger.events.v1: {setting} is {value}, wanted ")


def test_more_copies_in_sync_than_wanted_are_no_problem() -> None:
    spec = Topics().specs(partitions=16, mode="production")[2]
    found = TopicFound(16, 5, {**spec.settings, "min.insync.replicas": "3"})
    assert problems_of(spec, found) == []


def test_partitions_and_copies_are_looked_at() -> None:
    spec = Topics().specs(partitions=16, mode="production")[2]
    problems = problems_of(spec, TopicFound(8, 2, dict(spec.settings)))
    assert [problem.setting for problem in problems] == ["partitions", "replicas"]
    assert [problem.value for problem in problems_of(spec, None)] == ["missing"]
