"""Runtimes: sessions, what a beat moves, and who is given which job."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain import runtimes
from ledger.domain.commands import Beat, Claim, HeldLease
from ledger.domain.decide import decide
from ledger.domain.events import Extension, LeasesExtended, RuntimeEnded
from ledger.domain.ids import MAIN, Fence, QueueName, RuntimeId, Session
from ledger.domain.queues import RuntimeSession
from tests.support.builders import (
    ADA,
    BOB,
    JOB,
    QUEUE,
    Fact,
    cancel_asked,
    cancelled,
    evenly,
    fail,
    failed,
    gave_up,
    instant,
    job_id,
    leased,
    released,
    requested,
    retried,
    runtime_started,
    started,
)
from tests.support.clock import NOON, Pause, after
from tests.support.given import Given, given

SESSION = Session("s1")
SECOND_JOB, THIRD_JOB = job_id("second"), job_id("third")


def beat(number: int = 1, *, session: str = "s1", runtime: RuntimeId = ADA, **more: Any) -> Beat:
    fields = {"types": ("report",), "period_seconds": 5.0, **more}
    return Beat(runtime, Session(session), QUEUE, number, **fields)


def holding(fence: int = 1) -> tuple[HeldLease, ...]:
    return (HeldLease(JOB, Fence(fence)),)


HELD = (runtime_started(), requested(), leased(session="s1", number=1), started())


# --- Sessions ------------------------------------------------------------------------------------
def test_a_session_begins_with_its_first_beat() -> None:
    told = given().when(beat()).then(runtime_started())
    told.when(beat(2)).then()


def test_a_beat_of_a_new_session_ends_the_old_one() -> None:
    ended = RuntimeEnded(QUEUE, ADA, SESSION, "superseded")
    told = given(runtime_started()).when(beat(session="s2"))
    told.then(ended, runtime_started(session="s2")).when(beat(9)).then()


def test_a_beat_says_that_types_or_period_have_changed() -> None:
    told = given(runtime_started()).when(beat(types=("report", "quiz")))
    more = told.then(runtime_started(types=("report", "quiz")))
    more.when(beat(types=("report", "quiz"), period_seconds=1)).then(
        runtime_started(types=("report", "quiz"), period=1)
    )


def test_numbers_go_on_where_only_types_have_changed() -> None:
    told = given(*HELD).when(beat(types=("quiz",))).then(runtime_started(types=("quiz",)))
    assert told.owner.partition.queue(QUEUE).sessions[ADA].number == 1


def test_the_last_beat_ends_its_session() -> None:
    ended = RuntimeEnded(QUEUE, ADA, SESSION, "left")
    told = given(runtime_started()).when(beat(leaving=True)).then(ended)
    told.when(beat(leaving=True)).then()
    given(runtime_started(session="s2")).when(beat(session="s1", leaving=True)).then()


def test_a_session_ends_after_three_silent_periods() -> None:
    session = RuntimeSession(SESSION, ("report",), 5_000_000, NOON)
    assert runtimes.silent(QUEUE, ADA, session, NOON, instant(14.9)) == ()
    [ended] = runtimes.silent(QUEUE, ADA, session, NOON, instant(15))
    assert ended == RuntimeEnded(QUEUE, ADA, SESSION, "silent")


def test_an_older_session_does_not_end_a_newer_one() -> None:
    told = given(runtime_started(session="s2"))
    told.owner.append(RuntimeEnded(QUEUE, ADA, SESSION, "silent"))
    assert told.owner.partition.queue(QUEUE).sessions[ADA].session == "s2"


def test_a_queue_counts_so_many_runtimes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "SESSIONS_MAX", 1)
    told = given(runtime_started())
    told.when(beat(runtime=BOB)).then()
    told.when(beat(session="s2")).then(
        RuntimeEnded(QUEUE, ADA, SESSION, "superseded"), runtime_started(session="s2")
    )


# --- What it holds -------------------------------------------------------------------------------
def extension(until: float, *, runtime: RuntimeId = ADA) -> LeasesExtended:
    moved = Extension(JOB, MAIN, Fence(1), instant(until))
    return LeasesExtended(QUEUE, runtime, (moved,))


@pytest.mark.rule("S1.4")
def test_a_beat_extends_what_has_less_than_two_thirds_left() -> None:
    held = given(*HELD, after(19.9))
    held.when(beat(leases=holding())).then()
    held.owner.clock.pass_seconds(0.1)
    held.when(beat(2, leases=holding())).then(extension(80))


@pytest.mark.rule("S1.4")
@pytest.mark.parametrize(
    "other",
    [
        {"runtime": BOB},
        {"session": "s2"},
        {"leases": holding(2)},
        {"leases": (HeldLease(SECOND_JOB, Fence(1)),)},
    ],
)
def test_only_the_holder_extends_a_lease(other: dict[str, Any]) -> None:
    told = given(*HELD, runtime_started(BOB), after(30))
    decided = told.when(beat(**{"leases": holding(), **other})).decided()
    assert not [e for e in decided.events if isinstance(e, LeasesExtended)]


def test_a_beat_of_another_queue_extends_nothing() -> None:
    told = given(*HELD, runtime_started(queue=QueueName("other")), after(30))
    stray = Beat(ADA, SESSION, QueueName("other"), 1, ("report",), leases=holding())
    told.when(stray).then()


def test_a_lease_that_is_listed_twice_moves_once() -> None:
    given(*HELD, after(30)).when(beat(leases=holding() * 2)).then(extension(90))


def test_a_waiting_job_has_no_lease_to_extend() -> None:
    given(*HELD, gave_up(), after(30)).when(beat(leases=holding())).then()


def test_a_runtime_is_told_what_stands_on_record() -> None:
    told = given(*HELD, cancel_asked("why"))
    news = runtimes.news(told.owner.partition, holding()[0])
    assert news.lease is not None
    assert news.lease.until == instant(60)
    assert news.cancel is not None
    assert news.cancel.reason == "why"
    assert runtimes.news(told.owner.partition, holding(2)[0]).lease is None
    assert runtimes.news(told.owner.partition, HeldLease(SECOND_JOB, Fence(1))).lease is None


# --- Who is given what ---------------------------------------------------------------------------
def assigned(told: Given, many: int = 50) -> list[str]:
    return [grant.job_id for grant in told.owner.assign(ADA, "s1", many)]


READY: tuple[Fact | Pause, ...] = (runtime_started(), requested())


@pytest.mark.rule("S1.11")
def test_jobs_are_given_by_priority_and_then_by_age() -> None:
    told = given(
        *READY,
        after(1),
        requested(SECOND_JOB, priority=9),
        after(1),
        requested(THIRD_JOB, priority=0),
        after(1),
        requested(job_id("fourth")),
    )
    assert assigned(told) == [THIRD_JOB, JOB, job_id("fourth"), SECOND_JOB]


@pytest.mark.rule("S1.11")
def test_only_of_the_types_that_a_runtime_can_do_and_in_order_across_them() -> None:
    told = given(requested(), after(1), requested(SECOND_JOB, type="quiz"))
    told.also(after(1), requested(THIRD_JOB, type="poem"), after(1), requested(job_id("4")))
    told.also(runtime_started(types=("quiz",)))
    assert assigned(told) == [SECOND_JOB]
    told.also(runtime_started(types=("quiz", "report", "quiz")))
    assert assigned(told) == [JOB, job_id("4")]
    assert assigned(told) == []


@pytest.mark.rule("S1.11")
def test_no_more_than_is_asked_for_nor_than_one_entry_holds() -> None:
    told = given(runtime_started())
    for number in range(runtimes.GRANTS_MAX + 10):
        told.also(requested(job_id(str(number)), order=NOON + number))
    assert len(assigned(told, 7)) == 7
    assert len(assigned(told, 10_000)) == runtimes.GRANTS_MAX
    assert assigned(told, 0) == []


@pytest.mark.rule("S1.11")
def test_a_delayed_job_is_given_once_its_time_has_come() -> None:
    told = given(runtime_started(), requested(delay=50), after(49))
    assert assigned(told) == []
    told.when(after(1)).then()
    assert assigned(told) == [JOB]


@pytest.mark.rule("S1.11")
def test_what_is_cancelled_leased_waiting_or_ended_is_not_given() -> None:
    told = given(runtime_started(), requested(), after(1), requested(SECOND_JOB))
    told.also(leased(), gave_up(), cancelled("at_once", job=SECOND_JOB))
    assert assigned(told) == []


@pytest.mark.rule("S1.11")
def test_a_job_that_was_given_back_stands_where_it_stood() -> None:
    told = given(*READY, after(1), requested(SECOND_JOB), leased(), released())
    assert assigned(told) == [JOB, SECOND_JOB]


def test_a_job_that_fails_while_its_place_is_still_in_the_lane_is_given_once() -> None:
    told = given(*READY, after(1), requested(SECOND_JOB))
    for _ in range(3):
        told.also(leased(fence=told.job.fence + 1, attempt=1), released(told.job.fence + 1))
    assert assigned(told) == [JOB, SECOND_JOB]


def test_a_retry_that_is_not_due_lets_others_pass() -> None:
    asked = requested(retry=evenly(backoff_us=(90_000_000,)))
    told = given(READY[0], asked, after(1), requested(SECOND_JOB), leased(), started())
    told.when(fail()).then(failed(), retried(90))
    assert assigned(told) == [SECOND_JOB]
    told.owner.clock.pass_seconds(90)
    told.owner.fire()
    assert assigned(told) == [JOB]


def test_assignments_are_numbered_without_a_gap() -> None:
    told = given(runtime_started())
    for number in range(6):
        told.also(requested(job_id(str(number)), order=NOON + number))
    numbers = [g.number for many in (2, 1, 3) for g in told.owner.assign(ADA, "s1", many)]
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert told.owner.partition.queue(QUEUE).sessions[ADA].number == 6


def test_a_new_session_counts_from_one() -> None:
    told = given(*HELD).when(beat(session="s2")).decided()
    assert told.events
    fresh = given(*HELD, runtime_started(session="s2"), after(1), requested(SECOND_JOB))
    [grant] = fresh.owner.assign(ADA, "s2", 1)
    assert grant.number == 1


def test_what_is_granted_twice_before_it_is_recorded_is_not_the_same() -> None:
    told = given(*READY, after(1), requested(SECOND_JOB))
    partition = told.owner.partition

    def granted() -> list[str]:
        given = runtimes.grants(partition, QUEUE, ("report",), ADA, 1, told.now)
        return [grant.job_id for grant in given]

    assert granted() + granted() + granted() == [JOB, SECOND_JOB]


def test_a_grant_that_comes_to_nothing_takes_nothing_from_the_queue() -> None:
    told = given(*READY, after(1), requested(SECOND_JOB))
    runtimes.grants(told.owner.partition, QUEUE, ("report",), ADA, 2, told.now)
    told.owner.partition.taken.clear()
    assert assigned(told) == [JOB, SECOND_JOB]


# --- Claims --------------------------------------------------------------------------------------
@pytest.mark.rule("S1.11")
def test_a_claim_leases_up_to_its_limit() -> None:
    told = given(requested(), after(1), requested(SECOND_JOB), after(1), requested(THIRD_JOB))
    claim = Claim(BOB, (QUEUE,), ("report",), limit=2)
    granted = told.when(claim).decided().grants
    assert [(g.job_id, g.runtime_id, g.session, g.number) for g in granted] == [
        (JOB, BOB, "", 0),
        (SECOND_JOB, BOB, "", 0),
    ]


@pytest.mark.rule("S1.11")
def test_a_claim_that_finds_nothing_is_empty() -> None:
    decided = given().when(Claim(BOB, (QUEUE,), ("report",), limit=50)).decided()
    assert (decided.events, decided.grants) == ((), ())


def test_a_claim_over_queues_takes_from_each_and_from_none_twice() -> None:
    other = QueueName("other")
    there = job_id("there", other)
    told = given(requested(), after(1), requested(there))
    claim = Claim(BOB, (other, QUEUE, other), ("report", "report"), limit=9)
    assert [g.job_id for g in told.when(claim).decided().grants] == [there, JOB]


def test_deciding_a_claim_changes_nothing() -> None:
    told = given(requested(), after(1), requested(SECOND_JOB))
    asked = told.owner.asked(Claim(BOB, (QUEUE,), ("report",), limit=1))
    first = decide(told.owner.partition, asked, told.now)
    assert decide(told.owner.partition, asked, told.now) == first
