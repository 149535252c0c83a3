from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.client.command_ids import new_command_id, new_session
from ledger.client.errors import Refused
from ledger.client.requests import checked_command, checked_request
from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import Asked, CancelJob, RequestJob
from ledger.domain.ids import CommandId, Micros, parse_rfc3339
from ledger.log.command_codec import command_from, routing_key
from ledger.log.headers import text_header

COMMAND = CommandId("c1")


def body_of(**fields: object) -> dict[str, object]:
    checked = checked_request({"type": "echo", **fields}, COMMAND, source="tests")
    value = checked.record[1]
    assert value is not None
    body: dict[str, object] = msgspec.json.decode(value)
    return body


def refused(**fields: object) -> tuple[str, str | None]:
    with pytest.raises(Refused) as caught:
        checked_request({"type": "echo", **fields}, COMMAND, source="tests")
    assert caught.value.command_id == COMMAND
    return caught.value.code, caught.value.pointer


def test_a_request_is_a_cloud_event_keyed_by_its_queue() -> None:
    checked = checked_request(
        {"type": "echo", "queue": "q"}, COMMAND, source="tests", actor="ada", reply_to="3/me"
    )
    key, value, headers = checked.record
    assert key == b"q"
    assert value == b'{"type":"echo","queue":"q","payload":{}}'
    names = ("ce_specversion", "ce_id", "ce_source", "ce_type", "ce_actor", "ce_replyto")
    assert [text_header(headers, name) for name in names] == [
        "1.0",
        "c1",
        "tests",
        "ledger.job.request.v1",
        "ada",
        "3/me",
    ]
    assert isinstance(checked.command, RequestJob)
    assert parse_rfc3339(text_header(headers, "ce_time"))


def test_a_payload_is_written_as_it_is_given() -> None:
    payload = {"b": 1.0, "a": [None, True, "ü"]}
    assert body_of(payload=payload)["payload"] == payload


def test_only_a_keyed_request_carries_a_hash() -> None:
    payload = {"b": 1, "a": 2}
    assert "payload_hash" not in body_of(payload=payload)
    keyed = body_of(payload=payload, idempotency_key="k")
    assert keyed["payload_hash"] == sha256_hex(payload)


def test_instants_may_be_datetimes_with_a_zone() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    checked = checked_request({"type": "echo", "run_at": noon}, COMMAND, source="tests")
    assert isinstance(checked.command, RequestJob)
    assert checked.command.run_at == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert refused(run_at=noon.replace(tzinfo=None)) == ("VALIDATION_FAILED", "/run_at")


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"type": "no spaces"}, "/type"),
        ({"queue": "UPPER"}, "/queue"),
        ({"priority": 10}, "/priority"),
        ({"priority": "5"}, "/priority"),
        ({"labels": {"k": 1}}, "/labels"),
        ({"labels": {"k": "x" * 257}}, "/labels"),
        ({"lease_seconds": 0}, "/lease_seconds"),
        ({"retry": {"max_attempts": 0}}, "/retry/max_attempts"),
        ({"colour": "red"}, "/colour"),
        ({"payload": {"a": [2**53]}}, "/payload/a/0"),
    ],
)
def test_what_the_owner_would_refuse_is_refused_here(
    fields: dict[str, object], pointer: str
) -> None:
    assert refused(**fields) == ("VALIDATION_FAILED", pointer)


@pytest.mark.parametrize(
    "payload",
    [float("nan"), {"a": -float("inf")}, "\0", {"\0": 1}, "\udc00", {1: 1}, {"a": Ellipsis}],
    ids=repr,
)
def test_what_is_no_strict_json_is_refused_here(payload: object) -> None:
    assert refused(payload=payload) == ("MALFORMED_JSON", "/payload")


@pytest.mark.parametrize(
    "written",
    [b'{"a":1,"a":2}', b'["\\u0000"]', b'"\\ud800"', b"1e999", b"NaN", b"[", b"[1,]", b"\xff"],
)
def test_json_that_others_wrote_is_read_as_strictly(written: bytes) -> None:
    assert refused(payload=[orjson.Fragment(written)]) == ("MALFORMED_JSON", "/payload")


def test_good_json_that_others_wrote_is_taken_as_it_stands() -> None:
    fragment = orjson.Fragment(b'{ "a" : 1.50 }')
    checked = checked_request({"type": "echo", "payload": fragment}, COMMAND, source="tests")
    assert checked.record[1] == b'{"type":"echo","payload":{ "a" : 1.50 }}'


TEXT = st.text(st.characters(), max_size=8)  # Surrogates and NUL among them.
JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**53, -(2**53), 2**63, 2**64, 10**70])
    | st.floats()
    | TEXT
    | st.binary(max_size=3)
    | st.sampled_from([b"{}", b' [1, "\\u0000"]', b'{"a":0,"a":0}', b"1e400"]).map(orjson.Fragment),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.fixed_dictionaries(
    {"type": st.just("echo")},
    optional={
        "payload": JSON_LIKE,
        "queue": st.just("q") | TEXT,
        "labels": st.dictionaries(TEXT, TEXT, max_size=2) | JSON_LIKE,
        "scope": st.none() | TEXT,
        "idempotency_key": TEXT,
        "priority": st.integers(-1, 10),
        "retry": st.just({"max_attempts": 2}) | JSON_LIKE,
    },
)


@given(fields=FIELDS, command_id=st.just("c") | TEXT, actor=st.just("") | TEXT)
@example(fields={"type": "echo"}, command_id="c", actor="")
def test_what_passes_here_is_read_by_the_owner_as_what_it_is_here(
    fields: dict[str, object], command_id: str, actor: str
) -> None:
    try:
        checked = checked_request(fields, CommandId(command_id), source="tests", actor=actor)
    except Refused:
        return
    key, value, headers = checked.record
    record = SimpleNamespace(key=key, value=value, headers=headers, timestamp=0, offset=0)
    found = command_from(cast(Any, record))
    assert isinstance(found, Asked)
    assert (found.command_id, found.actor) == (command_id, actor)
    assert found.command == checked.command
    assert key == routing_key(checked.command).encode()


def test_a_payload_is_64_kib_deep_64_levels_at_most() -> None:
    body_of(payload="x" * 65_534)
    assert refused(payload="x" * 65_535) == ("PAYLOAD_TOO_LARGE", "/payload")
    deep: object = 1
    for _ in range(63):
        deep = [deep]
    body_of(payload=deep)
    assert refused(payload=[deep])[0] == "MALFORMED_JSON"
    endless: list[object] = []
    endless.append(endless)
    assert refused(payload=endless)[0] == "MALFORMED_JSON"


def test_a_nan_in_any_field_is_refused() -> None:
    assert refused(delay_seconds=float("nan"))[0] == "MALFORMED_JSON"


@pytest.mark.parametrize("command_id", ["", "x" * 257, "a\nb", "\ud800"], ids=repr)
def test_a_command_id_that_no_header_can_hold_is_refused(command_id: str) -> None:
    with pytest.raises(Refused, match="MALFORMED_JSON"):
        checked_request({"type": "echo"}, CommandId(command_id), source="tests")


@pytest.mark.parametrize("actor", ["a\tb", "x" * 2_049, "\ud800"], ids=["tab", "long", "half"])
def test_an_actor_that_no_header_can_hold_is_refused_each_time(actor: str) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match="MALFORMED_JSON"):
            checked_request({"type": "echo"}, COMMAND, source="tests", actor=actor)


def test_a_command_on_what_is_no_job_id_is_refused() -> None:
    with pytest.raises(Refused, match="JOB_NOT_FOUND"):
        checked_command(CancelJob.TYPE, {"job_id": "nonsense"}, COMMAND, source="tests")


def test_a_command_that_no_record_can_hold_is_refused() -> None:
    with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
        checked_command(CancelJob.TYPE, {"job_id": "x" * 300_000}, COMMAND, source="tests")


def test_ids_sort_by_time() -> None:
    ids = [new_command_id(Micros(second * 1_000_000)) for second in range(100)]
    assert ids == sorted(ids)
    assert all(text[14] == "7" and text[19] in "89ab" for text in ids)


def test_a_session_sorts_behind_the_one_before_even_if_the_clock_went_back() -> None:
    first = new_session(at=Micros(2_000_000))
    second = new_session(after=first, at=Micros(1_000_000))
    assert first < second < new_session(after=second, at=Micros(1_000_000))
