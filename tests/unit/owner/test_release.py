"""What becomes of a turn's effects, as records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.commands import Beat
from ledger.domain.events import JobRequested, LeaseGranted
from ledger.domain.evolve import begin, evolve
from ledger.domain.ids import MAIN, Fence, JobId, Micros, QueueName, RuntimeId, Session, new_job_id
from ledger.domain.job import Job
from ledger.domain.partition import Partition
from ledger.log.inbox import Assigned, AssignedItem, inbox_from
from ledger.log.topics import Topics
from processors.owner.credit import Offers
from processors.owner.release import ITEMS_BYTES_MAX, Release
from processors.owner.seams import Seams
from processors.owner.turn import Effects

QUEUE, RUNTIME, SESSION = QueueName("q"), RuntimeId("r1"), Session("s1")
AT = Micros(1_767_323_045_678_000)
SLOTS = 800


class Owner:
    """A partition whose jobs are given to one runtime, in turn."""

    def __init__(self) -> None:
        self.partition = Partition(0)
        self.offers = Offers()
        self.offers.hear(Beat(RUNTIME, SESSION, QUEUE, 1, ("work",), SLOTS), AT, 0)
        seams = SimpleNamespace(topics=Topics(), source="ledger/L1", partitions=1)
        self.release = Release(cast(Seams, seams), self.partition, self.offers)
        self.release.inboxes.add(QUEUE)
        self.effects = Effects()

    def gives(self, *payloads: bytes) -> list[JobId]:
        grants = self.effects.assignments.setdefault((QUEUE, RUNTIME), [])
        for payload in payloads:
            number = len(grants) + 1
            job_id = new_job_id(QUEUE, AT, str(number).encode())
            request = JobRequested(job_id, QUEUE, "work", Raw(payload), AT, number)
            grant = LeaseGranted(
                job_id, MAIN, RUNTIME, Fence(1), 1, Micros(AT + 60_000_000), SESSION, number
            )
            leased = evolve(begin(request, AT), grant, AT)
            assert isinstance(leased, Job)
            self.partition.jobs[job_id] = leased
            grants.append(grant)
        return [grant.job_id for grant in grants]

    def values(self) -> list[bytes]:
        """Of the records in the inbox."""
        batches = self.release.records(self.effects, AT)
        return [value or b"" for records in batches.values() for _, value, _ in records]


def items_of(value: bytes) -> tuple[AssignedItem, ...]:
    headers = (("ce_type", Assigned.TYPE.encode()),)
    content = inbox_from(cast(Any, SimpleNamespace(value=value, headers=headers)))
    assert isinstance(content, Assigned)
    return content.items


def test_what_is_given_at_once_goes_in_one_record() -> None:
    owner = Owner()
    job_ids = owner.gives(*[b'{"n":1}'] * 100)
    (value,) = owner.values()
    assert [item.job_id for item in items_of(value)] == job_ids
    assert len(value) < 100 * 400


@pytest.mark.parametrize(
    "sizes",
    [(1_000,) * SLOTS, (60_000,) * 40, (10,) * 500 + (60_000,) * 10, (60_000,) * 10 + (10,) * 500],
    ids=["many", "large", "large last", "large first"],
)
def test_what_is_too_much_for_one_record_goes_in_several_in_order(sizes: tuple[int, ...]) -> None:
    owner = Owner()
    job_ids = owner.gives(*(b'"' + b"x" * size + b'"' for size in sizes))
    values = owner.values()
    assert max(map(len, values)) <= ITEMS_BYTES_MAX
    assert len(values) <= 3 * (sum(map(len, values)) // ITEMS_BYTES_MAX + 1)
    items = [item for value in values for item in items_of(value)]
    assert [item.job_id for item in items] == job_ids
    assert [item.number for item in items] == list(range(1, len(sizes) + 1))


def test_an_assignment_whose_lease_has_ended_only_fills_its_number() -> None:
    owner = Owner()
    first, second = owner.gives(b"1", b"2")
    del owner.partition.jobs[first]
    (value,) = owner.values()
    void, given = items_of(value)
    assert (void.void, void.number, void.job) == (True, 1, None)
    assert (given.void, given.number, given.job_id) == (False, 2, second)
    assert "job" not in msgspec.json.decode(value)["items"][0]
