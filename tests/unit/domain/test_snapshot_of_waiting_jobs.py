"""Jobs that wait are written as they are held; what follows from them is derived as of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Raw

from ledger.domain.commands import PutTemplate, RequestJob, Template
from ledger.domain.ids import Micros, QueueName
from ledger.domain.open_jobs import Packed
from ledger.domain.partition import Partition
from ledger.domain.snapshot import OpenJobs, Restored, Taken, WaitingJobs, decoded, encoded
from tests.unit.owner.by_hand import Owner

OTHER = QueueName("other")
PLAIN: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 9},
    {"queue": OTHER},
    {"labels": {"user": "u1", "shop": "s"}},
    {"payload": Raw(b'{"long":"' + b"x" * 400 + b'"}')},
    {"scope": "s"},
    {"idempotency_key": "k"},
)
OTHERS: tuple[dict[str, Any], ...] = (
    {"delay_seconds": 30.0},
    {"start_timeout_seconds": 60.0},
    {"type": "once"},
)
"""They wait for something else, too, or others ask for their dedupe key."""
FAR = Micros(1 << 50)


@pytest.fixture
def partition() -> Partition:
    owner = Owner()
    owner.does(
        PutTemplate(QueueName("default"), "sum", Template()),
        PutTemplate(OTHER, "sum", Template(priority=3)),
        PutTemplate(QueueName("default"), "once", Template(repeatable=False)),
    )
    for turn in range(3):
        for number, fields in enumerate((*PLAIN, *OTHERS)):
            asked = {"type": "sum", "payload": Raw(b"%d" % turn), **fields}
            if "idempotency_key" in fields:
                asked["idempotency_key"] = f"k{turn}"
            owner.at = Micros(owner.at + number)
            owner.does(RequestJob(**asked))
    return owner.partition


def parts_of(partition: Partition) -> Iterator[Any]:
    return (decoded(encoded(part)) for part in Taken(partition).parts())


def read_back(partition: Partition) -> Partition:
    restored = Restored(Partition(partition.number, partition.bounds))
    for part in parts_of(partition):
        restored.add(part)
    return restored.partition


def test_those_that_wait_for_a_runtime_alone_are_written_as_they_are_held(
    partition: Partition,
) -> None:
    parts = list(parts_of(partition))
    waiting = [
        job_id
        for part in parts
        if isinstance(part, WaitingJobs)
        for group, _ in part.groups
        for job_id in group.ids
    ]
    others = [job.id for part in parts if isinstance(part, OpenJobs) for job in part.rows]
    assert sorted(waiting + others) == sorted(partition.jobs)
    assert len(waiting) >= 3 * len(PLAIN) - 1, "the last one is held as it is"
    again = read_back(partition)
    assert {type(again.jobs.peek(job_id)) for job_id in waiting} == {Packed}


def test_what_is_read_back_is_the_same(partition: Partition) -> None:
    again = read_back(partition)
    assert dict(again.jobs) == dict(partition.jobs)
    assert again.open_bytes == partition.open_bytes
    for name, queue in partition.queues.items():
        other = again.queues[name]
        assert (other.pending, other.pinned) == (queue.pending, queue.pinned)
        for types in (("sum",), ("once",), ("sum", "once")):
            asked = (name, types, 1_000)
            assert again.best(*asked, again.at) == partition.best(*asked, partition.at)
            assert again.best(*asked, FAR) == partition.best(*asked, FAR)
    assert again.timers.next_due() == partition.timers.next_due()
    assert again.delayed.next_due() == partition.delayed.next_due()
