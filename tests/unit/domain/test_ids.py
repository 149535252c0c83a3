"""Ids and instants."""

from __future__ import annotations

from datetime import datetime
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.ids import (
    Micros,
    QueueName,
    micros,
    new_job_id,
    parse_rfc3339,
    queue_of,
    rfc3339,
    rfc3339_micros,
)
from tests.support.clock import NOON

QUEUE = QueueName("default")


@given(st.integers(0, 2**47 * 1000), st.binary(max_size=40))
def test_a_job_id_is_a_uuid7_of_its_queue(at: int, seed: bytes) -> None:
    job_id = new_job_id(QUEUE, Micros(at), seed)
    uuid = UUID(job_id.removeprefix("default."))
    assert (uuid.version, uuid.variant) == (7, RFC_4122)
    assert uuid.int >> 80 == at // 1000
    assert queue_of(job_id) == QUEUE


def test_the_same_ask_at_the_same_instant_has_the_same_id() -> None:
    assert new_job_id(QUEUE, NOON, b"a") == new_job_id(QUEUE, NOON, b"a")
    ids = {new_job_id(QUEUE, NOON, b"%d" % number) for number in range(10_000)}
    assert len(ids) == 10_000


def test_ids_sort_by_time() -> None:
    ids = [new_job_id(QUEUE, Micros(NOON + ms * 1000), b"%d" % ms) for ms in range(200)]
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "default",
        "default.",
        ".019ca945-0a00-7000-8000-000000000001",
        "Default.019ca945-0a00-7000-8000-000000000001",
        "default.019ca945-0a00-4000-8000-000000000001",
        "default.019ca945-0a00-7000-c000-000000000001",
        "default.019CA945-0A00-7000-8000-000000000001",
        "default.019ca945-0a00-7000-8000-000000000001\n",
        "default\n.019ca945-0a00-7000-8000-000000000001",
        "a.b.019ca945-0a00-7000-8000-000000000001",
        "_ledger.019ca945-0a00-7000-8000-000000000001",
        "x" * 64 + ".019ca945-0a00-7000-8000-000000000001",
    ],
)
def test_what_is_no_job_id_names_no_queue(text: str) -> None:
    assert queue_of(text) is None


@given(st.datetimes())
def test_instants_are_read_as_they_are_written(moment: datetime) -> None:
    text = moment.isoformat(timespec="microseconds") + "Z"
    at = parse_rfc3339(text)
    assert rfc3339_micros(at) == text
    assert rfc3339(at) == moment.isoformat(timespec="milliseconds") + "Z"


def test_an_instant_has_a_zone() -> None:
    assert parse_rfc3339("2026-03-01T17:45:00+05:45") == NOON
    for text in ("2026-03-01T12:00:00", "noon"):
        with pytest.raises(ValueError, match=r"offset|Invalid"):
            parse_rfc3339(text)


def test_durations_are_integers_inside() -> None:
    assert micros(0.000001) == 1
    assert micros(1.5) == 1_500_000
    assert micros(0.1 + 0.2) == 300_000
