"""What waits is held packed, and nobody who reads it can tell."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from benchmarks.open_jobs import held
from ledger.domain import open_jobs
from ledger.domain.events import JobRequested, Unknown
from ledger.domain.evolve import begin
from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job
from ledger.domain.open_jobs import OpenJobs, Packed
from tests.golden.samples import full, minimal
from tests.support.builders import request
from tests.support.given import given

AT = Micros(1_700_000_000_000_000)
LEAST = minimal(JobRequested)
MOST = replace(full(JobRequested), flow=None)
BYTES_MAX = 700


@pytest.fixture(autouse=True)
def packs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_jobs, "RECENT_MAX", 0)


def requests() -> Iterator[JobRequested]:
    """The least that a request says, all that it can, and each of its words by itself."""
    yield from (LEAST, MOST)
    for field in msgspec.structs.fields(JobRequested):
        yield replace(LEAST, **{field.name: getattr(MOST, field.name)})
        if not field.required:
            yield replace(MOST, **{field.name: getattr(LEAST, field.name)})


def added(*jobs: Job) -> OpenJobs:
    held = OpenJobs()
    for job in jobs:
        held.add(job)
    return held


@pytest.mark.parametrize("asked", [*requests()])
@pytest.mark.parametrize("ahead", [0, 5], ids=["ready", "delayed"])
def test_a_packed_job_is_read_as_it_was(asked: JobRequested, ahead: int) -> None:
    job = begin(replace(asked, ready_at=Micros(AT + ahead)), AT)
    jobs = added(job)
    assert type(jobs.peek(job.id)) is Packed
    assert jobs[job.id] == jobs.get(job.id) == job
    assert list(jobs.values()) == [job]


def test_to_read_a_job_does_not_unpack_it() -> None:
    jobs = added(begin(MOST, AT))
    assert jobs[MOST.job_id].request == MOST
    assert type(jobs.peek(MOST.job_id)) is Packed
    assert not list(jobs.begun())


def test_a_job_that_has_begun_is_held_as_it_is() -> None:
    later = begin(LEAST, AT).with_opaque()
    jobs = added(begin(LEAST, AT))
    jobs[later.id] = later
    assert jobs.peek(later.id) is later
    assert list(jobs.begun()) == [later]


def test_what_has_happened_to_a_job_is_not_lost_by_packing() -> None:
    later = begin(LEAST, AT).with_opaque()
    flow = begin(replace(full(JobRequested), job_id=JobId("mail.flow")), AT)
    jobs = added(later, flow)
    assert list(jobs.begun()) == [later, flow]


def test_the_latest_are_not_packed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_jobs, "RECENT_MAX", 2)
    jobs = added(*(begin(replace(LEAST, job_id=JobId(f"mail.{n}")), AT) for n in range(5)))
    assert [job.id for job in jobs.begun()] == ["mail.3", "mail.4"]


def test_equal_terms_are_held_once() -> None:
    names = [JobId(f"mail.{n}") for n in range(3)]
    one, other, dear = (replace(LEAST, job_id=name) for name in names)
    payload = Raw(b'"another"')
    jobs = added(
        begin(one, AT),
        begin(replace(other, payload=payload, order=9, labels={"a": "b"}), AT),
        begin(replace(dear, priority=1), AT),
    )
    first, second, third = map(jobs.terms, names)
    assert first is second
    assert (third.priority, bytes(third.payload), third.job_id) == (1, b"{}", "")


def test_terms_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_jobs, "TERMS_MAX", 3)
    asked = [replace(LEAST, job_id=JobId(f"mail.{n}"), priority=n) for n in range(10)]
    jobs = added(*(begin(one, AT) for one in asked))
    assert [job.request for job in jobs.values()] == asked
    assert len(jobs._terms) <= 3


def test_an_event_of_a_later_version_counts_for_a_packed_job() -> None:
    told = given()
    job = told.when(request()).decided().job_id
    assert job is not None
    told.when(request()).decided()
    before = told.known(job)
    told.owner.append(Unknown("ledger.job.praised.v1", job, b"{}"))
    assert told.known(job) == before.with_opaque()


@pytest.mark.parametrize("kind", ["plain", "declared"])
def test_an_open_job_takes_no_more_than_its_share(kind: str) -> None:
    """Of a payload of 200 bytes, with all that the partition holds for it."""
    assert held(kind, 5_000, None, counts=True)["counted"] <= BYTES_MAX
