"""The forms of commands, with the bounds of the contract."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledger.domain.commands import TYPES, Beat, Claim, LockJob, RequestJob, SubmitResult
from ledger.domain.rejections import STATUS, WHEN, Rejection


def read(kind: type, **fields: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(fields), type=kind)


def asked(**fields: Any) -> Any:
    return read(RequestJob, **{"type": "report", **fields})


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "report\n"},
        {"type": ""},
        {"type": "-x"},
        {"type": "x" * 101},
        {"queue": "default\n"},
        {"queue": "Default"},
        {"queue": "_ledger"},
        {"queue": "x" * 64},
        {"priority": 10},
        {"priority": -1},
        {"priority": 1.5},
        {"labels": {"x": 1}},
        {"labels": {"": "1"}},
        {"labels": {"x" * 65: "1"}},
        {"labels": {"x": "1" * 257}},
        {"labels": {str(number): "1" for number in range(33)}},
        {"scope": "x" * 257},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 257},
        {"lease_seconds": 0.9},
        {"timeout_seconds": -1},
        {"delay_seconds": 11 * 365 * 86_400},
        {"run_at": "2026-03-01T12:00:00"},
        {"run_at": "noon"},
        {"retry": {"max_attempts": 0}},
        {"retry": {"jitter": 1.1}},
        {"retry": {"position": "front"}},
        {"retry": {"colour": "red"}},
        {"payload_hash": "a" * 64 + "\n"},
        {"colour": "red"},
    ],
)
def test_what_a_request_may_not_say(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        asked(**wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"type": "x" * 100, "queue": "x" * 63},
        {"type": "a.b:c_d-e", "queue": "0_-"},
        {"priority": 0},
        {"labels": {str(number): "" for number in range(32)}},
        {"scope": None, "start_timeout_seconds": None},
        {"timeout_seconds": 0, "delay_seconds": 0.25, "lease_seconds": 1},
        {"run_at": "2026-03-01T12:00:00+05:45"},
        {"retry": {"max_attempts": 1, "backoff_seconds": []}},
        {"payload": None},
        {"payload": [1, {"a": None}]},
    ],
)
def test_what_a_request_may_say(right: dict[str, Any]) -> None:
    assert isinstance(asked(**right), RequestJob)


def test_runtimes_are_named_by_1_to_256_characters() -> None:
    job = "default.019ca945-0a00-7000-8000-000000000001"
    for wrong in ("", "x" * 257):
        with pytest.raises(msgspec.ValidationError):
            read(LockJob, job_id=job, runtime_id=wrong)


@pytest.mark.rule("S1.11")
def test_a_claim_asks_for_1_to_50_jobs() -> None:
    claim = {"runtime_id": "ada", "queues": ["default"], "types": ["report"]}
    assert read(Claim, **claim).limit == 1
    assert read(Claim, **claim, limit=50).limit == 50
    wrongs: list[dict[str, Any]] = [{"limit": 0}, {"limit": 51}, {"wait_seconds": 31}]
    for wrong in (*wrongs, {"types": []}, {"queues": []}):
        with pytest.raises(msgspec.ValidationError):
            read(Claim, **{**claim, **wrong})


def test_a_beat_counts_from_one() -> None:
    beat = {"runtime_id": "ada", "session": "s", "queue": "default", "types": []}
    assert read(Beat, **beat, beat=1).slots == 0
    with pytest.raises(msgspec.ValidationError):
        read(Beat, **beat, beat=0)


def test_an_output_of_null_is_not_one_that_is_absent() -> None:
    said = {"job_id": "default.x", "fence": 1}
    assert bytes(read(SubmitResult, **said, output=None).output) == b"null"
    assert read(SubmitResult, **said).output is msgspec.UNSET


def test_every_command_has_a_name_of_its_own() -> None:
    assert all(name == kind.TYPE for name, kind in TYPES.items())
    assert all(name.startswith("ledger.") and name.endswith(".v1") for name in TYPES)


def test_every_refusal_has_a_status_and_a_meaning() -> None:
    assert set(STATUS) == set(WHEN) == set(Rejection)
    assert all(400 <= status <= 503 for status in STATUS.values())
