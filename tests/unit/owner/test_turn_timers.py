"""What the clock costs a turn: what is due, not what waits."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.commands import RequestJob
from ledger.domain.entries import Entry
from ledger.domain.events import JobRequested
from ledger.domain.ids import SECOND, JobId, Micros
from tests.unit.owner.by_hand import QUEUE, Owner

DELAYED = 100_000
DUE = 3


@pytest.mark.rule("S2.3")
def test_of_very_many_delayed_jobs_only_those_whose_time_has_come_are_looked_at() -> None:
    owner = Owner()
    later, soon = Micros(owner.at + 86_400 * SECOND), Micros(owner.at + 60 * SECOND)
    events = tuple(
        JobRequested(
            JobId(f"{QUEUE}.019ca945-0a00-7000-8000-{number:012x}"),
            QUEUE,
            "sum",
            Raw(b"{}"),
            soon if number < DUE else later,
            owner.at + number,
        )
        for number in range(DELAYED)
    )
    owner.partition.apply(Entry(1, owner.at, 0, 0, events))
    timers = owner.partition.timers
    owner.turn().timers(owner.at, 1_000)
    assert len(timers) == DELAYED
    owner.at = Micros(owner.at + 61 * SECOND)
    owner.turn().timers(owner.at, 1_000)
    assert len(timers) == DELAYED - DUE, "the others were not touched"
    ready = owner.partition.best(QUEUE, ("sum",), DELAYED, owner.at)
    assert [job.id for job, _ in ready] == [event.job_id for event in events[:DUE]]


@pytest.mark.rule("S1.11")
def test_a_job_whose_time_has_come_is_given_first_though_words_are_still_unread() -> None:
    """After an outage: its time is long over, and what others said meanwhile is yet to be read, so
    that no silence counts. That is no reason to let later ones pass."""
    owner = Owner()
    owner.does(RequestJob(type="sum", queue=QUEUE, delay_seconds=5.0))
    [delayed] = owner.partition.jobs
    owner.at = Micros(owner.at + 60 * SECOND)
    owner.does(RequestJob(type="sum", queue=QUEUE))
    first, second = owner.partition.best(QUEUE, ("sum",), 2, owner.at)
    assert first[0].id == delayed
    assert second[0].id != delayed
