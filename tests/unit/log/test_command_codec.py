from __future__ import annotations

from types import SimpleNamespace

import pytest

from ledger.domain import commands
from ledger.domain.commands import Asked, CancelJob, CancelPart, Claim, Report, RequestJob, Where
from ledger.domain.ids import LEDGER_QUEUE, CommandId, JobId, Micros, QueueName, RuntimeId
from ledger.log.codec import (
    Misshapen,
    Unreadable,
    command_from,
    command_record,
    partition_for,
    routing_key,
    topic_of,
)
from ledger.log.connection import COMMAND_BYTES_MAX
from ledger.log.partitions import partition_of
from ledger.log.records import Record
from ledger.log.topics import Topics
from tests.golden import samples

JOB = JobId("mail.0190a7b2-7b1c-7def-8a12-0123456789ab")
HEADERS = {
    "ce_specversion": b"1.0",
    "ce_id": b"c-1",
    "ce_source": b"test",
    "ce_type": b"ledger.job.request.v1",
    "content-type": b"application/json",
}


def record(
    value: bytes | None = b'{"type":"send"}',
    *,
    without: str = "",
    more: tuple[tuple[str, bytes | None], ...] = (),
    **changed: bytes,
) -> Record:
    headers = {name: value for name, value in HEADERS.items() if name != without}
    for name, content in changed.items():
        headers[name.replace("content_type", "content-type")] = content
    return SimpleNamespace(
        topic="ledger.requests.v1",
        partition=0,
        offset=5,
        timestamp=1_000,
        key=b"mail",
        value=value,
        headers=(*headers.items(), *more),
    )


def reports(*parts: str) -> bytes:
    said = ",".join(parts)
    return f'{{"runtime_id":"r","session":"s","queue":"mail","reports":[{said}]}}'.encode()


UNREADABLE = {
    "no specversion": record(without="ce_specversion"),
    "no id": record(without="ce_id"),
    "no source": record(without="ce_source"),
    "no type": record(without="ce_type"),
    "an empty id": record(ce_id=b""),
    "a long id": record(ce_id=b"x" * 257),
    "another version": record(ce_specversion=b"0.3"),
    "an id that is not UTF-8": record(ce_id=b"\xff"),
    "NUL in a header": record(ce_id=b"a\0b"),
    "a line feed in a header": record(more=(("ce_actor", b"ann\nroot"),)),
    "a header without a value": record(more=(("ce_time", None),)),
    "a header twice": record(more=(("ce_id", b"c-2"),)),
    "a huge header": record(more=(("traceparent", b"x" * 3000),)),
    "another media type": record(content_type=b"text/xml"),
    "a time that is none": record(ce_time=b"yesterday"),
    "a time without a zone": record(ce_time=b"2026-01-01T00:00:00"),
    "a reply address that is none": record(ce_replyto=b"nobody"),
    "no value": record(None),
    "an empty value": record(b""),
    "no JSON": record(b"{"),
    "duplicate keys": record(b'{"type":"a","type":"b"}'),
    "NaN": record(b'{"type":NaN}'),
    "NUL": record(b'{"type":"a\\u0000"}'),
    "a lone surrogate": record(b'{"type":"a","payload":{"x":["\\ud800"]}}'),
    "too deep": record(b'{"type":"a","payload":' + b"[" * 70 + b"]" * 70 + b"}"),
    "too long": record(b'{"type":"a","payload":"' + b"x" * COMMAND_BYTES_MAX + b'"}'),
}

MISSHAPEN = {
    "no object": (record(b"[1]"), ""),
    "no type": (record(b"{}"), "/type"),
    "an unknown field": (record(b'{"type":"a","colour":1}'), "/colour"),
    "a wrong kind": (record(b'{"type":"a","priority":"high"}'), "/priority"),
    "out of range": (record(b'{"type":"a","priority":10}'), "/priority"),
    "a bad label": (record(b'{"type":"a","labels":{"x":1}}'), "/labels"),
    "an empty label key": (record(b'{"type":"a","labels":{"":"x"}}'), "/labels"),
    "deeper": (
        record(b'{"type":"a","retry":{"backoff_seconds":[1,-1]}}'),
        "/retry/backoff_seconds/1",
    ),
    "an unsafe integer": (
        record(b'{"type":"a","payload":{"n/m":[9007199254740992]}}'),
        "/payload/n~1m/0",
    ),
    "a huge integer": (record(b'{"type":"a","payload":' + b"1" * 60 + b"}"), "/payload"),
    "a type of no version": (record(ce_type=b"ledger.job.request.v9"), ""),
    "a part of a report": (
        record(
            reports(f'{{"kind":"start","job_id":"{JOB}","fence":-1}}'),
            ce_type=b"ledger.runtime.report.v1",
        ),
        "/reports/0/fence",
    ),
}


@pytest.mark.parametrize("unreadable", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_for_the_dead_letters(unreadable: Record) -> None:
    found = command_from(unreadable)
    assert isinstance(found, Unreadable)
    assert found.key == b"mail"
    assert found.reason


@pytest.mark.parametrize(("misshapen", "pointer"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_a_readable_command_of_wrong_form_says_where(misshapen: Record, pointer: str) -> None:
    found = command_from(misshapen)
    assert isinstance(found, Misshapen)
    assert found.pointer == pointer
    assert found.command_id == "c-1"
    assert found.offset == 5


PUTS = [
    (b"ledger.template.put.v1", '"queue":"mail","type":"send"', "template", '"priority":3'),
    (b"ledger.queue.put.v1", '"queue":"mail"', "settings", '"depth_max":9'),
    (b"ledger.queue.put.v1", '"queue":"mail"', "settings", ""),
    (
        b"ledger.schedule.put.v1",
        '"queue":"mail","name":"daily"',
        "schedule",
        '"cron":"0 3 * * *","type":"send","payload":{"n":1.50}',
    ),
    (b"ledger.model.put.v1", '"name":"m"', "model", '"base_url":"https://model.example"'),
]


@pytest.mark.parametrize(("kind", "address", "field", "body"), PUTS)
def test_the_body_of_a_put_may_stand_beside_its_address(
    kind: bytes, address: str, field: str, body: str
) -> None:
    beside = ",".join(filter(None, (address, body)))
    flat = command_from(record(f"{{{beside}}}".encode(), ce_type=kind))
    nested = command_from(record(f'{{{address},"{field}":{{{body}}}}}'.encode(), ce_type=kind))
    assert isinstance(flat, Asked)
    assert flat == nested


@pytest.mark.parametrize(("kind", "address", "field", "body"), PUTS)
def test_what_is_wrong_in_it_is_where_it_stands(
    kind: bytes, address: str, field: str, body: str
) -> None:
    beside = ",".join(filter(None, (address, body, '"x":1')))
    found = command_from(record(f"{{{beside}}}".encode(), ce_type=kind))
    assert isinstance(found, Misshapen)
    assert found.pointer == "/x"


def test_a_misshapen_command_says_whom_it_is_about_and_who_waits() -> None:
    found = command_from(
        record(
            f'{{"job_id":"{JOB}","queue":"mail","x":1}}'.encode(),
            ce_type=b"ledger.job.cancel.v1",
            ce_replyto=b"3/gateway",
            ce_actor=b"ann",
        )
    )
    assert isinstance(found, Misshapen)
    assert (found.job_id, found.queue) == (JOB, "mail")
    assert (found.reply_to, found.actor) == ("3/gateway", "ann")
    assert found.appended_at == 1_000_000


def test_ids_that_are_none_are_not_taken_over() -> None:
    found = command_from(
        record(b'{"job_id":"nonsense","queue":"NO"}', ce_type=b"ledger.job.cancel.v1")
    )
    assert isinstance(found, Misshapen)
    assert (found.job_id, found.queue) == (None, None)


def test_raw_parts_do_not_hold_on_to_the_record() -> None:
    padding = b" " * 1_000
    found = command_from(record(b'{"type":"a",' + padding + b'"payload":{"n":1}}'))
    assert isinstance(found, Asked)
    assert isinstance(found.command, RequestJob)
    assert memoryview(found.command.payload).nbytes == 7  # type: ignore[arg-type]
    assert memoryview(found.command.payload).obj is not None  # type: ignore[arg-type]
    result = f'{{"kind":"result","job_id":"{JOB}","fence":1,"output":[1,2]}}'
    found = command_from(record(reports(result), ce_type=b"ledger.runtime.report.v1"))
    assert isinstance(found, Asked)
    assert isinstance(found.command, Report)


def test_the_content_type_may_be_absent_or_carry_a_parameter() -> None:
    assert isinstance(command_from(record(without="content-type")), Asked)
    utf8 = b"application/json; charset=utf-8"
    assert isinstance(command_from(record(content_type=utf8)), Asked)


def test_other_headers_are_passed_over() -> None:
    assert isinstance(command_from(record(more=(("x-other", b"\xff"), ("x", None)))), Asked)


def test_requests_go_to_their_own_intake_and_all_else_to_the_commands() -> None:
    topics = Topics("p.")
    assert topic_of(RequestJob(type="a"), topics) == "p.ledger.requests.v1"
    assert topic_of(CancelJob(JOB), topics) == "p.ledger.commands.v1"


def test_a_command_goes_where_its_queue_lies() -> None:
    assert routing_key(RequestJob(type="a", queue=QueueName("print"))) == "print"
    assert routing_key(CancelJob(JOB)) == "mail"
    claim = Claim(RuntimeId("r"), queues=(QueueName("print"), QueueName("mail")), types=("a",))
    assert routing_key(claim) == "print"
    assert routing_key(commands.CancelJobs(Where())) == LEDGER_QUEUE
    assert partition_for(CancelJob(JOB), 16) == partition_of("mail", 16)


def test_a_part_of_a_bulk_operation_goes_to_the_partition_it_names() -> None:
    assert partition_for(CancelPart("o-1", 11, Where()), 16) == 11


def test_a_malformed_job_id_has_no_route() -> None:
    with pytest.raises(ValueError, match="is no job id"):
        routing_key(CancelJob(JobId("nonsense")))


@pytest.mark.parametrize("kind", commands.COMMANDS)
def test_every_type_of_command_has_a_place(kind: type[commands.Command]) -> None:
    command = samples.full(kind)
    assert routing_key(command)
    assert 0 <= partition_for(command, 16) < 16


def test_a_record_says_who_asked_and_when() -> None:
    key, value, headers = command_record(
        CancelJob(JOB, reason="no more"),
        CommandId("c-9"),
        source="gateway",
        reply_to="1/a",
        sent_at=Micros(1),
        actor="ann",
        traceparent="00-1-2-3",
    )
    assert key == b"mail"
    assert value == f'{{"job_id":"{JOB}","reason":"no more"}}'.encode()
    assert dict(headers)["ce_time"] == b"1970-01-01T00:00:00.000001Z"
    assert dict(headers)["ce_replyto"] == b"1/a"
    assert dict(headers)["ce_actor"] == b"ann"
    assert dict(headers)["traceparent"] == b"00-1-2-3"
