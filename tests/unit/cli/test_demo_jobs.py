"""How the demo judges what it did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.demo_jobs import (
    CRASHING,
    DOOMED,
    ENDS_AS,
    FLAKY,
    GREETING,
    PATIENT,
    Ended,
    complaints,
    counts_text,
    requests,
)

COUNT = 50
ATTEMPTS = {GREETING: 1, FLAKY: 2, DOOMED: 3, PATIENT: 1, CRASHING: 2}


@pytest.fixture
def jobs() -> list[Ended]:
    """All as they ought to end."""
    types = [str(asked["type"]) for asked in requests(COUNT)]
    return [Ended(str(n), t, ENDS_AS[t], ATTEMPTS[t]) for n, t in enumerate(types)]


def test_as_many_as_asked_for_and_one_of_each_rare_kind(jobs: list[Ended]) -> None:
    types = [job.type for job in jobs]

    assert len(types) == COUNT
    assert [types.count(rare) for rare in (CRASHING, PATIENT, DOOMED)] == [1, 1, 1]
    assert types.count(FLAKY) >= 2


def test_all_is_well(jobs: list[Ended]) -> None:
    assert complaints(jobs, COUNT) == []
    assert counts_text(jobs) == "50 jobs: 48 succeeded, 1 cancelled, 1 failed"


def test_a_lost_job_is_told(jobs: list[Ended]) -> None:
    assert complaints(jobs[:-1], COUNT) == ["there are 49 jobs, not 50"]


def test_a_doubled_job_is_told(jobs: list[Ended]) -> None:
    assert "a job is listed twice" in complaints([*jobs[:-1], jobs[0]], COUNT)


@pytest.mark.parametrize("type_", ENDS_AS)
def test_a_job_that_ended_otherwise_is_told(jobs: list[Ended], type_: str) -> None:
    place = next(n for n, job in enumerate(jobs) if job.type == type_)
    jobs[place] = replace(jobs[place], status="expired")

    assert complaints(jobs, COUNT) == [f"{place} ({type_}) is expired, not {ENDS_AS[type_]}"]


@pytest.mark.parametrize("type_", [FLAKY, CRASHING, DOOMED])
def test_a_retry_that_did_not_happen_is_told(jobs: list[Ended], type_: str) -> None:
    place = next(n for n, job in enumerate(jobs) if job.type == type_)
    jobs[place] = replace(jobs[place], attempt=1)

    [complaint] = complaints(jobs, COUNT)

    assert complaint.startswith(f"{place} ({type_})")
