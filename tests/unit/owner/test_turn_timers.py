"""What the clock does in a turn, and what it costs: what is due, not what waits."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.commands import Beat, RequestJob, RetryAsk
from ledger.domain.entries import Entry
from ledger.domain.events import AttemptExpired, JobRequested, LeaseGranted, RetryScheduled
from ledger.domain.ids import SECOND, JobId, Micros, RuntimeId, Session
from processors.owner.turn import Turn
from tests.unit.owner.by_hand import QUEUE, Owner, events_of

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


def beat(runtime: str, number: int, *, received: int = 0) -> Beat:
    session = Session(f"{runtime}-1")
    return Beat(RuntimeId(runtime), session, QUEUE, number, ("sum",), 2, received)


def given(turn: Turn) -> list[tuple[str, str]]:
    """Which job to whom."""
    return [(e.job_id, e.runtime_id) for e in events_of(turn) if isinstance(e, LeaseGranted)]


@pytest.mark.rule("S1.5")
def test_who_let_a_lease_lapse_is_given_nothing_until_it_is_heard_again() -> None:
    owner = Owner()
    owner.does(beat("silent", 1))
    [lapsed] = owner.submit(lease_seconds=1, retry=RetryAsk(backoff_seconds=(0.0,)))
    owner.at = Micros(owner.at + 2 * SECOND)
    turn = owner.turn()
    turn.timers(owner.at, 1_000)
    turn.assign()
    assert [type(event) for event in events_of(turn)] == [AttemptExpired, RetryScheduled]
    [other] = owner.submit()
    assert given(owner.does(beat("awake", 1))) == [(lapsed, "awake"), (other, "awake")]
    [third] = owner.submit()
    assert given(owner.does(beat("silent", 2, received=1))) == [(third, "silent")]
