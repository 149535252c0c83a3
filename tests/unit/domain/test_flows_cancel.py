"""Cancel of a flow: nothing more is begun; what is in flight stops, or finishes if it must."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.commands import (
    AcknowledgeCancel,
    Beat,
    HeldLease,
    LockJob,
    ReleaseLease,
    SubmitResult,
)
from ledger.domain.failures import JOB_TIMEOUT, LEASE_EXPIRED
from ledger.domain.ids import NO_SESSION, Fence
from ledger.domain.job import cancel_of, status
from ledger.domain.rejections import Rejection
from ledger.domain.runtimes import news
from tests.support.builders import ADA, BOB, QUEUE
from tests.support.flows import Run, linear, step, tries

pytestmark = pytest.mark.rule("S2.7")


# --- With nobody at it ---------------------------------------------------------------------------
def test_a_flow_that_waits_is_cancelled_at_once() -> None:
    run = Run(linear("a"), linear("b"))
    assert run.cancel("no need") == ["cancelled at_once"]
    assert run.statuses == {"a": "cancelled", "b": "cancelled"}


def test_also_between_two_steps_and_before_a_retry_or_a_new_pass() -> None:
    between = Run(linear("a"), linear("b"))
    between.finish("a")
    assert between.cancel() == ["cancelled at_once"]
    assert between.statuses == {"a": "succeeded", "b": "cancelled"}
    for retries in ({"retry": tries(2, 9)}, {}):
        run = Run(linear("a", **retries), retry=tries(2, 9))
        run.fail("a")
        assert run.cancel() == ["cancelled at_once"]


# --- The step stops by itself --------------------------------------------------------------------
def test_the_runtime_of_a_step_is_asked_to_stop_and_no_other_step_is_begun() -> None:
    run = Run(step("a"), step("b"), step("c", "a"))
    run.start("a")
    assert run.cancel() == ["cancel_requested"]
    assert run.refused(LockJob(run.id, BOB)).code == Rejection.JOB_NOT_PENDING
    assert run.ready() == []
    assert run.stop("a") == ["step_cancelled a acknowledged", "cancelled acknowledged"]
    assert run.statuses == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}


def test_a_result_that_comes_first_is_kept_and_the_flow_is_cancelled_after_it() -> None:
    run = Run(linear("a"), linear("b"))
    fence = run.start("a")
    run.cancel()
    assert run.finish("a", b"7") == ["step_succeeded a", "cancelled attempt_ended"]
    assert (status(run.job), run.statuses["a"]) == ("cancelled", "succeeded")
    assert run.say(SubmitResult(run.id, fence, Raw(b"7"))) == []


def test_also_of_the_last_step() -> None:
    run = Run(linear("a"))
    run.start("a")
    run.cancel()
    assert run.finish("a") == ["step_succeeded a", "cancelled attempt_ended"]


def test_a_failure_while_cancelling_is_not_tried_again_by_any_rule() -> None:
    run = Run(linear("a", retry=tries(3)), retry=tries(3))
    run.start("a")
    run.cancel()
    assert run.fail("a") == ["attempt_failed a BROKEN", "cancelled attempt_ended"]


def test_a_release_while_cancelling_ends_it() -> None:
    run = Run(linear("a"))
    run.start("a")
    run.cancel()
    assert run.release("a") == [
        "lease_released a",
        "step_cancelled a attempt_ended",
        "cancelled attempt_ended",
    ]


def test_a_lease_that_lapses_while_cancelling_ends_it() -> None:
    run = Run(linear("a", cancelable=False), lease_seconds=5.0)
    run.start("a")
    run.cancel()
    assert run.after(5) == [f"attempt_expired a {LEASE_EXPIRED}", "cancelled attempt_ended"]


def test_a_runtime_that_does_not_stop_is_cut_off_after_the_grace() -> None:
    run = Run(linear("a"), linear("b"))
    run.start("a")
    run.cancel()
    assert run.after(29.9) == []
    assert run.after(0.1) == ["step_cancelled a grace_ended", "cancelled grace_ended"]


def test_a_waiting_step_too() -> None:
    run = Run(linear("a"))
    run.wait("a")
    run.cancel()
    assert run.after(30) == ["step_cancelled a grace_ended", "cancelled grace_ended"]


# --- A step that is not cancelable ---------------------------------------------------------------
def test_it_is_not_told_and_finishes_and_the_later_ones_are_not_begun() -> None:
    run = Run(linear("a", cancelable=False), linear("b"))
    fence = run.start("a")
    run.cancel()
    assert cancel_of(run.job, run.step("a")) is None
    told = news(run.owner.partition, HeldLease(run.id, fence))
    assert (told.lease is not None, told.cancel) == (True, None)
    assert run.after(45) == []
    assert run.finish("a") == ["step_succeeded a", "cancelled attempt_ended"]
    assert run.statuses == {"a": "succeeded", "b": "cancelled"}


def test_it_still_has_no_more_time_than_its_own() -> None:
    run = Run(linear("a", cancelable=False, timeout_seconds=40.0))
    run.start("a")
    run.cancel()
    assert run.after(39) == []
    assert run.after(1) == [f"attempt_expired a {JOB_TIMEOUT}", "cancelled attempt_ended"]


def test_beside_it_one_that_is_cancelable_stops_first() -> None:
    run = Run(step("a", cancelable=False), step("b"), step("c", "a", "b"))
    run.start("a")
    run.start("b", BOB)
    run.cancel()
    assert run.stop("b") == ["step_cancelled b acknowledged"]
    assert status(run.job) == "cancelling"
    assert run.finish("a") == ["step_succeeded a", "cancelled attempt_ended"]
    assert run.statuses == {"a": "succeeded", "b": "cancelled", "c": "cancelled"}


def test_the_grace_cuts_only_the_other_one_off() -> None:
    run = Run(step("a", cancelable=False), step("b"))
    run.start("a")
    run.start("b", BOB)
    run.cancel()
    assert run.after(30) == ["step_cancelled b grace_ended"]
    assert run.after(29) == []
    assert run.finish("a") == ["step_succeeded a", "cancelled attempt_ended"]


def test_the_last_one_that_stops_takes_the_flow_along() -> None:
    run = Run(step("a"), step("b"))
    run.start("a")
    run.start("b", BOB)
    run.cancel("why")
    assert run.stop("a") == ["step_cancelled a acknowledged"]
    assert run.stop("b") == ["step_cancelled b acknowledged", "cancelled acknowledged"]
    assert run.job.cancel is not None
    assert run.job.cancel.reason == "why"


# --- Said again ----------------------------------------------------------------------------------
def test_stopping_or_giving_back_is_no_news_when_said_again_while_another_step_goes_on() -> None:
    run = Run(step("a"), step("b"), step("c"))
    stopped, gave_back = run.start("a"), run.start("b")
    run.start("c")
    run.cancel()
    run.stop("a")
    run.release("b")
    assert run.say(AcknowledgeCancel(run.id, stopped)) == []
    assert run.say(ReleaseLease(run.id, gave_back)) == []
    assert run.refused(SubmitResult(run.id, stopped)).code == Rejection.LEASE_STALE
    assert run.refused(AcknowledgeCancel(run.id, Fence(9))).code == Rejection.LEASE_STALE


def test_asking_twice_is_no_news() -> None:
    run = Run(linear("a"))
    run.start("a")
    run.cancel()
    assert run.cancel("again") == []


def test_a_stop_that_nobody_asked_for_is_refused() -> None:
    run = Run(linear("a"))
    fence = run.start("a")
    assert run.refused(AcknowledgeCancel(run.id, fence)).code == Rejection.JOB_NOT_PENDING


def test_a_new_owner_gives_the_grace_once_more() -> None:
    run = Run(linear("a"))
    fence = run.start("a")
    run.cancel()
    run.after(20)
    run.owner.take_over()
    held = (HeldLease(run.id, fence),)
    run.owner.hear(run.owner.asked(Beat(ADA, NO_SESSION, QUEUE, 1, (), leases=held)))
    assert run.after(29) == []
    assert run.after(1) == ["step_cancelled a grace_ended", "cancelled grace_ended"]
