"""Reports: many words of one runtime in one record, sent again when in doubt."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from ledger.domain.commands import (
    Beat,
    HeldLease,
    ProgressSaid,
    Report,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedStart,
    ReportedWait,
)
from ledger.domain.decide import decide
from ledger.domain.events import Event, JobProgressed
from ledger.domain.failures import LEASE_EXPIRED
from ledger.domain.ids import MAIN, Fence, JobId, Session
from ledger.domain.job import status
from ledger.domain.rejections import Rejection
from tests.support.builders import (
    ADA,
    JOB,
    LATER,
    OK,
    QUEUE,
    cancel_asked,
    cancelled,
    evenly,
    expired,
    failed,
    gave_up,
    job_id,
    leased,
    lock,
    released,
    requested,
    result,
    retried,
    runtime_started,
    started,
    succeeded,
)
from tests.support.clock import after
from tests.support.given import Given, given

SESSION = Session("s1")
ONE = Fence(1)
SECOND_JOB = job_id("second")
HELD = (runtime_started(), requested(), leased(session="s1", number=1))

begin = ReportedStart(JOB, ONE)
done = ReportedResult(JOB, ONE, OK)


def report(*words: Any, beat: Beat | None = None) -> Report:
    return Report(ADA, SESSION, QUEUE, words, beat)


def of(events: tuple[Event, ...], job: JobId) -> list[str]:
    return [type(e).__name__ for e in events if getattr(e, "job_id", None) == job]


def test_each_word_is_decided_on_what_the_words_before_it_left() -> None:
    given(*HELD).when(report(begin, done)).then(started(), succeeded())


def test_a_result_alone_starts_what_was_not_started() -> None:
    given(*HELD).when(report(done)).then(started(), succeeded())


def test_words_on_many_jobs_stand_in_one_entry() -> None:
    told = given(*HELD, after(1), requested(SECOND_JOB), leased(job=SECOND_JOB))
    mixed = report(begin, ReportedStart(SECOND_JOB, ONE), done, ReportedResult(SECOND_JOB, ONE, OK))
    events = told.when(mixed).decided().events
    assert of(events, JOB) == of(events, SECOND_JOB) == ["AttemptStarted", "JobSucceeded"]


def test_a_refused_word_stops_no_other() -> None:
    told = given(*HELD)
    stale, nobody = ReportedResult(JOB, Fence(9), OK), ReportedStart(SECOND_JOB, ONE)
    decided = told.when(report(stale, nobody, done)).decided()
    assert [(one.code, one.fence) for one in decided.refused] == [
        (Rejection.LEASE_STALE, 9),
        (Rejection.JOB_NOT_FOUND, 1),
    ]
    assert status(told.job) == "succeeded"


def test_the_second_of_two_results_is_told_that_one_exists() -> None:
    decided = given(*HELD).when(report(done, ReportedResult(JOB, ONE, LATER))).decided()
    assert [one.code for one in decided.refused] == [Rejection.RESULT_ALREADY_EXISTS]


# --- Sent again ----------------------------------------------------------------------------------
def sent_again(told: Given, again: Report) -> None:
    """Nothing new comes of it, and nothing is refused."""
    decided = told.when(again).decided()
    assert (decided.events, decided.refused) == ((), ())


def test_a_report_of_a_result() -> None:
    told = given(*HELD).when(report(begin, done)).then(started(), succeeded())
    sent_again(told, report(begin, done))


def test_a_report_of_a_result_with_another_output_is_no_copy() -> None:
    told = given(*HELD).when(report(begin, done)).then(started(), succeeded())
    decided = told.when(report(begin, ReportedResult(JOB, ONE, LATER))).decided()
    assert [one.code for one in decided.refused] == [Rejection.RESULT_ALREADY_EXISTS]


def test_a_report_of_a_failure() -> None:
    words = report(begin, ReportedFailure(JOB, ONE, "BROKEN"))
    told = given(*HELD).when(words).then(started(), failed(), retried(1))
    sent_again(told, words)
    told = told.when(after(1)).then().when(lock()).then(leased(fence=2))
    sent_again(told, words)


def test_a_report_of_the_last_failure() -> None:
    asked = requested(retry=evenly(max_attempts=1))
    told = given(runtime_started(), asked, leased(session="s1", number=1))
    words = report(begin, ReportedFailure(JOB, ONE, "BROKEN"))
    told.when(words).decided()
    assert status(told.job) == "failed"
    sent_again(told, words)


def test_a_report_of_a_release() -> None:
    words = report(begin, ReportedRelease(JOB, ONE))
    told = given(*HELD).when(words).then(started(), released())
    sent_again(told, words)


def test_a_report_of_a_wait() -> None:
    words = report(begin, ReportedWait(JOB, ONE, 600))
    told = given(*HELD).when(words).then(started(), gave_up(wait=600))
    sent_again(told, words)
    ended = told.when(result()).then(succeeded())
    sent_again(ended, words)


def test_a_report_of_a_stop() -> None:
    words = report(ReportedCancel(JOB, ONE))
    told = given(*HELD, cancel_asked()).when(words).then(cancelled("acknowledged"))
    sent_again(told, words)


def test_a_failure_after_a_result_is_told_that_the_job_is_closed() -> None:
    told = given(*HELD).when(report(done)).then(started(), succeeded())
    decided = told.when(report(ReportedFailure(JOB, ONE, "BROKEN"))).decided()
    assert [one.code for one in decided.refused] == [Rejection.JOB_CLOSED]


def test_a_word_under_a_fence_from_before_is_no_copy_once_it_expired() -> None:
    told = given(*HELD).when(after(60)).then(expired(LEASE_EXPIRED), retried(1))
    decided = told.when(report(begin, done)).decided()
    assert [one.code for one in decided.refused] == [Rejection.LEASE_STALE] * 2


# --- The beat inside it --------------------------------------------------------------------------
def test_the_beat_does_not_prolong_what_the_report_settles() -> None:
    beat = Beat(ADA, SESSION, QUEUE, 1, ("report",), leases=(HeldLease(JOB, ONE),))
    told = given(*HELD, after(50)).when(report(begin, done, beat=beat))
    told.then(started(), succeeded())


def test_the_beat_says_how_far_the_others_are() -> None:
    told = given(*HELD, after(1), requested(SECOND_JOB))
    told.also(leased(job=SECOND_JOB, session="s1", number=2))
    held = HeldLease(SECOND_JOB, ONE, ProgressSaid(50))
    beat = Beat(ADA, SESSION, QUEUE, 1, ("report",), leases=(held, HeldLease(JOB, ONE)))
    events = told.when(report(begin, done, beat=beat)).decided().events
    assert of(events, SECOND_JOB) == ["AttemptStarted", "JobProgressed"]
    assert events[-1] == JobProgressed(SECOND_JOB, MAIN, ONE, 50)


def test_deciding_a_report_changes_nothing() -> None:
    told = given(*HELD)
    asked = told.owner.asked(report(begin, done))
    first = decide(told.owner.partition, asked, told.now)
    assert decide(told.owner.partition, asked, told.now) == first


def test_an_unsafe_integer_spoils_its_own_word_only() -> None:
    bad = ReportedResult(JOB, ONE, Raw(b"9007199254740993"))
    told = given(*HELD)
    decided = told.when(report(begin, bad)).decided()
    assert [(one.code, one.pointer) for one in decided.refused] == [
        (Rejection.VALIDATION_FAILED, "/output")
    ]
    assert status(told.job) == "running"
