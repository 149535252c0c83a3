"""Flows that go wrong, in this order: the step's own retry, its `on_fail`, the flow's retry for the
whole pass."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from ledger.domain.commands import FailAttempt, Heartbeat, SubmitResult
from ledger.domain.failures import JOB_TIMEOUT, LEASE_EXPIRED, WAIT_TIMEOUT
from ledger.domain.job import status
from ledger.domain.job_view import job_view
from ledger.domain.rejections import Rejection
from tests.support.builders import BOB, request
from tests.support.flows import ONCE, Run, back, linear, step, tries

pytestmark = pytest.mark.rule("S3.4")


# --- The step's own retry ------------------------------------------------------------------------
def test_a_step_has_one_attempt_unless_it_says_otherwise() -> None:
    run = Run(linear("a"))
    assert run.fail("a") == ["attempt_failed a BROKEN", "failed BROKEN"]


def test_a_step_is_tried_again_by_itself_after_its_backoff() -> None:
    run = Run(linear("a"), linear("b", retry=tries(3, 2, 7)))
    run.finish("a")
    assert run.fail("b") == ["attempt_failed b BROKEN", "retry_scheduled b"]
    assert run.ready() == []
    run.after(2)
    assert run.fail("b") == ["attempt_failed b BROKEN", "retry_scheduled b"]
    assert job_view(run.job).ready_at == "2026-03-01T12:00:09.000Z"
    run.after(7)
    assert run.fail("b") == ["attempt_failed b BROKEN", "failed BROKEN"]


def test_what_a_steps_retry_does_not_say_the_templates_says() -> None:
    retry = tries(1, 3, fatal_codes=("BAD",))
    run = Run(linear("a", retry=tries(2)), retry=retry)
    plan = run.job.request.flow.steps[0]  # type: ignore[union-attr]
    assert (plan.retry.max_attempts, plan.retry.fatal_codes) == (2, ("BAD",))
    assert run.fail("a", "BAD")[-1] == "failed BAD"


def test_a_runtimes_own_word_ends_the_retries_of_step_and_flow() -> None:
    run = Run(linear("a", retry=tries(3)), retry=tries(3))
    assert run.fail("a", retryable=False) == ["attempt_failed a BROKEN", "failed BROKEN"]


def test_a_fatal_code_ends_them_whatever_the_runtime_says() -> None:
    run = Run(linear("a", retry=tries(3, fatal_codes=("BAD",))), retry=tries(3))
    assert run.fail("a", "BAD", retryable=True) == ["attempt_failed a BAD", "failed BAD"]


def test_a_runtime_may_ask_for_a_later_retry() -> None:
    run = Run(linear("a", retry=tries(2, 1)))
    run.fail("a", retry_after_seconds=60)
    assert job_view(run.job).ready_at == "2026-03-01T12:01:00.000Z"


@pytest.mark.parametrize("position", ["keep", "tail"])
def test_a_step_waits_at_its_place_or_at_the_tail(position: str) -> None:
    run = Run(step("a", retry=tries(2, position=position)), step("b"))
    run.owner.clock.pass_seconds(1)
    plain = run.owner.hear(run.owner.asked(request()))
    order = run.job.order
    run.fail("a")
    moved = run.job.order > order
    assert moved == (position == "tail")
    found = run.owner.partition.best(run.job.request.queue, ("story", "report"), 9, run.now)
    first = [(job.id == run.id, one.name) for job, one in found]
    flow_first = [(True, "a"), (True, "b"), (False, "main")]
    assert first == (flow_first if position == "keep" else [flow_first[2], *flow_first[:2]])
    assert plain is not None


# --- on_fail -------------------------------------------------------------------------------------
@pytest.mark.rule("S3.3")
def test_a_failed_check_sends_the_flow_back_three_times_and_then_it_goes_on_degraded() -> None:
    check = linear("check", on_fail=back("write", 3, then="degrade"))
    run = Run(linear("plan"), linear("write"), check, linear("print"))
    run.finish("plan")
    for count in (1, 2, 3):
        run.finish("write")
        assert run.fail("check", "TOO_DULL", retryable=False) == [
            "attempt_failed check TOO_DULL",
            f"sent_back check write {count}",
            "step_queued write",
        ]
        assert run.statuses["plan"] == "succeeded"
    run.finish("write")
    assert run.fail("check", "TOO_DULL") == [
        "attempt_failed check TOO_DULL",
        "step_degraded check",
        "step_queued print",
    ]
    assert run.finish("print") == ["step_succeeded print", "succeeded print"]
    assert job_view(run.job).degraded is True


@pytest.mark.rule("S3.3")
def test_or_it_fails_where_it_is_not_to_go_on() -> None:
    run = Run(linear("write"), linear("check", on_fail=back("write", 1)))
    run.finish("write")
    run.fail("check")
    run.finish("write")
    assert run.fail("check") == ["attempt_failed check BROKEN", "failed BROKEN"]


def test_a_step_may_send_the_flow_back_to_itself() -> None:
    run = Run(linear("a", on_fail=back("a", 1)))
    assert run.fail("a") == ["attempt_failed a BROKEN", "sent_back a a 1", "step_queued a"]
    assert run.fail("a") == ["attempt_failed a BROKEN", "failed BROKEN"]


def test_its_own_retry_comes_first_and_anew_after_each_way_back() -> None:
    run = Run(linear("a"), linear("b", retry=tries(2), on_fail=back("a", 1)))
    run.finish("a")
    assert run.fail("b")[-1] == "retry_scheduled b"
    assert run.fail("b")[1:] == ["sent_back b a 1", "step_queued a"]
    run.finish("a")
    assert run.step("b").attempt == 0
    assert run.fail("b")[-1] == "retry_scheduled b"
    assert run.fail("b")[-1] == "failed BROKEN"


def test_only_the_codes_that_it_names_send_it_back_or_degrade_it() -> None:
    rule = back("a", 1, then="degrade", codes=("DULL",))
    run = Run(linear("a"), linear("b", on_fail=rule))
    run.finish("a")
    run.fail("b", "DULL")
    run.finish("a")
    assert run.fail("b", "BROKEN") == ["attempt_failed b BROKEN", "failed BROKEN"]


def test_what_stands_behind_the_way_back_is_done_again_and_nothing_else() -> None:
    run = Run(
        step("plan"),
        step("text", "plan"),
        step("image", "plan"),
        step("check", "text", on_fail=back("text")),
        step("print", "check", "image"),
    )
    run.finish("plan")
    fence = run.start("image")
    run.finish("text")
    assert run.fail("check")[1:] == ["sent_back check text 1", "step_queued text"]
    assert run.statuses["image"] == "running"
    assert run.finish("image") == ["step_succeeded image"]
    assert run.step("image").ended_fence == fence


def test_each_step_has_its_own_count_and_keeps_it_when_another_sends_the_flow_back() -> None:
    run = Run(
        linear("a"),
        linear("b", on_fail=back("a", 1)),
        linear("c", on_fail=back("a", 1)),
    )
    run.finish("a")
    assert run.fail("b")[1] == "sent_back b a 1"
    run.finish("a")
    run.finish("b")
    assert run.fail("c")[1] == "sent_back c a 1"
    run.finish("a")
    assert run.fail("b")[-1] == "failed BROKEN"


# --- The whole pass ------------------------------------------------------------------------------
def test_the_flow_is_done_again_from_its_start_and_nothing_is_kept() -> None:
    run = Run(linear("a"), linear("b"), retry=tries(2, 5))
    run.finish("a")
    assert run.fail("b") == ["attempt_failed b BROKEN", "pass_restarted 2", "step_queued a"]
    assert run.statuses == {"a": "pending", "b": "pending"}
    assert run.part("a").output is UNSET
    assert run.ready() == []
    run.after(5)
    run.finish("a")
    assert run.finish("b") == ["step_succeeded b", "succeeded b"]


def test_it_is_done_again_only_so_often() -> None:
    run = Run(linear("a"), retry=tries(2))
    assert run.fail("a")[1] == "pass_restarted 2"
    assert run.fail("a") == ["attempt_failed a BROKEN", "failed BROKEN"]


def test_nothing_of_a_new_pass_begins_before_its_backoff() -> None:
    run = Run(step("a"), step("b"), retry=tries(2, 5))
    run.finish("a")
    run.fail("b")
    assert job_view(run.job).ready_at == "2026-03-01T12:00:05.000Z"
    assert run.ready() == []


def test_not_even_what_stands_behind_a_step_that_is_skipped() -> None:
    run = Run(
        step("a", when="payload.x == 1"),
        step("b"),
        step("c", "a", "d"),
        step("d"),
        retry=tries(2, 5),
    )
    run.finish("d")
    assert run.fail("b")[1:] == [
        "pass_restarted 2",
        "step_skipped a condition",
        "step_queued b",
        "step_queued d",
    ]
    assert run.ready() == []
    skips = Run(step("a", when="payload.x == 1"), step("b"), step("c", "b", "a"), retry=tries(2, 5))
    skips.finish("b")
    assert skips.fail("c")[1:] == ["pass_restarted 2", "step_skipped a condition", "step_queued b"]


def test_a_new_pass_counts_ways_back_from_nought() -> None:
    run = Run(linear("a"), linear("b", on_fail=back("a", 1)), retry=tries(2))
    for again in ("pass_restarted 2", "failed BROKEN"):
        run.finish("a")
        assert run.fail("b")[1] == "sent_back b a 1"
        run.finish("a")
        assert run.fail("b")[1] == again


def test_a_degraded_step_is_no_reason_for_a_new_pass() -> None:
    run = Run(linear("a", on_fail=back(then="degrade")), linear("b"), retry=tries(2))
    run.fail("a")
    assert run.fail("b")[1] == "pass_restarted 2"
    assert run.statuses == {"a": "pending", "b": "pending"}


def test_a_pass_at_the_tail_waits_behind_what_waits_now() -> None:
    run = Run(linear("a"), retry=tries(2, position="tail"))
    run.owner.clock.pass_seconds(1)
    run.fail("a")
    assert run.job.order == run.now


def test_leases_of_other_steps_are_void_when_a_pass_is_restarted() -> None:
    run = Run(step("a"), step("b"), retry=tries(2))
    fence = run.start("a", BOB)
    run.fail("b")
    assert run.refused(SubmitResult(run.id, fence)).code == Rejection.LEASE_STALE
    assert run.refused(Heartbeat(run.id, fence)).code == Rejection.LEASE_STALE
    assert run.statuses == {"a": "pending", "b": "pending"}


# --- Why it failed -------------------------------------------------------------------------------
def test_a_flow_that_failed_shows_what_it_failed_with() -> None:
    run = Run(step("a", on_fail=back(then="degrade")), step("b"), step("c"))
    run.fail("c", "WORST", message="it burnt")
    error = job_view(run.job).error
    assert error is not None
    assert (error.code, error.message) == ("WORST", "it burnt")


def test_while_a_new_pass_waits_the_failure_of_the_last_one_is_shown() -> None:
    run = Run(linear("a"), linear("b"), retry=tries(2))
    run.finish("a")
    run.fail("b", "DULL")
    error = job_view(run.job).error
    assert error is not None
    assert error.code == "DULL"


@pytest.mark.parametrize(("how", "ends"), [(None, "failed"), ("expired", "expired")])
def test_a_last_attempt_that_ran_out_of_time_ends_it_as_the_template_says(
    how: str | None, ends: str
) -> None:
    run = Run(linear("a", timeout_seconds=5.0), exhausted_as=how)
    run.start("a")
    assert run.after(5) == [f"attempt_expired a {JOB_TIMEOUT}", f"{ends} {JOB_TIMEOUT}"]
    assert status(run.job) == ends


def test_a_lapsed_lease_and_a_wait_that_was_too_long_are_failures_of_the_step() -> None:
    run = Run(linear("a", retry=tries(2), on_fail=back(then="degrade")), linear("b"))
    run.start("a")
    assert run.after(60) == [f"attempt_expired a {LEASE_EXPIRED}", "retry_scheduled a"]
    run.wait("a", 90)
    assert run.after(90)[:2] == [f"attempt_expired a {WAIT_TIMEOUT}", "step_degraded a"]


def test_saying_a_failure_again_is_no_news_even_when_the_step_is_done_anew() -> None:
    run = Run(linear("a"), linear("b", on_fail=back("a")), retry=ONCE)
    run.finish("a")
    fence = run.start("b")
    run.fail("b")
    assert run.say(FailAttempt(run.id, fence, "BROKEN")) == []
