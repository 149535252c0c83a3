"""Flows: which steps begin when, which are skipped, and when the whole has succeeded."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain.commands import SubmitResult
from ledger.domain.failures import SUCCESS_NOT_MET
from ledger.domain.flows import inputs_of
from ledger.domain.job import status
from ledger.domain.job_view import job_view
from tests.support.flows import Run, back, linear, ref, step, tries

pytestmark = pytest.mark.rule("S2.5")


# --- Order ---------------------------------------------------------------------------------------
def test_each_step_begins_when_the_one_before_it_has_succeeded() -> None:
    run = Run(linear("draft"), linear("check"), linear("print"))
    assert run.began == ["requested", "step_queued draft"]
    assert run.finish("draft") == ["step_succeeded draft", "step_queued check"]
    assert run.finish("check") == ["step_succeeded check", "step_queued print"]
    assert run.finish("print") == ["step_succeeded print", "succeeded print"]
    assert status(run.job) == "succeeded"


def test_steps_that_need_nothing_begin_at_once() -> None:
    run = Run(step("a"), step("b"), step("c", "a", "b"))
    assert run.began == ["requested", "step_queued a", "step_queued b"]


def test_a_step_waits_for_all_that_it_needs() -> None:
    run = Run(step("a"), step("b"), step("c", "a", "b"))
    assert run.finish("b") == ["step_succeeded b"]
    assert run.finish("a") == ["step_succeeded a", "step_queued c"]


def test_steps_stand_behind_what_they_need_however_they_were_written() -> None:
    run = Run(step("last", "first"), step("first"))
    assert [*run.statuses] == ["first", "last"]
    assert run.finish("first") == ["step_succeeded first", "step_queued last"]


def test_a_flow_that_is_put_off_begins_at_its_time() -> None:
    run = Run(linear("a"), linear("b"), asked={"delay_seconds": 5.0})
    assert job_view(run.job).ready_at == "2026-03-01T12:00:05.000Z"
    assert run.ready() == []
    run.after(5)
    assert run.finish("a") == ["step_succeeded a", "step_queued b"]


def test_a_step_is_given_the_outputs_of_those_that_it_needs() -> None:
    run = Run(step("a"), step("b"), step("c", "a"), step("d", "c", "b"))
    run.finish("a", b'{"n":1}')
    run.finish("c", b"[2]")
    run.finish(
        "b",
        b"null",
    )
    assert run.inputs("d") == {"c": b"[2]", "b": b"null"}


# --- Conditions ----------------------------------------------------------------------------------
def test_a_step_whose_condition_holds_begins() -> None:
    run = Run(
        linear("a"), linear("b", when="steps.a.output.ok && payload.x == 1"), payload=b'{"x":1}'
    )
    assert run.finish("a", b'{"ok":true}') == ["step_succeeded a", "step_queued b"]


@pytest.mark.parametrize("output", [b'{"ok":false}', b"{}", b"[]", b'{"ok":"yes"}', b"null"])
def test_a_step_whose_condition_is_false_or_undefined_is_skipped(output: bytes) -> None:
    run = Run(linear("a"), linear("b", when="steps.a.output.ok"))
    assert run.finish("a", output) == [
        "step_succeeded a",
        "step_skipped b condition",
        "succeeded b",
    ]


def test_a_flow_of_which_nothing_is_to_be_done_has_succeeded_at_once() -> None:
    run = Run(linear("a", when="payload.x == 1"))
    assert run.began == ["requested", "step_skipped a condition", "succeeded a"]
    assert run.owner.partition.queue(run.job.request.queue).pending == 0


def test_a_step_behind_a_skipped_one_runs() -> None:
    run = Run(step("a"), step("b", "a", when="payload.x == 1"), step("c", "a"), step("d", "b", "c"))
    assert run.finish("a") == ["step_succeeded a", "step_skipped b condition", "step_queued c"]
    assert run.finish("c") == ["step_succeeded c", "step_queued d"]
    assert run.inputs("d")["b"] == b"null"


def test_unless_all_that_it_needs_were_skipped() -> None:
    run = Run(linear("a", when="payload.x == 1"), linear("b"), linear("c"), step("d"))
    assert run.began == [
        "requested",
        "step_skipped a condition",
        "step_queued d",
        "step_skipped b needs_skipped",
        "step_skipped c needs_skipped",
    ]


def test_a_condition_sees_what_came_along_of_an_output_by_reference() -> None:
    run = Run(linear("a"), linear("b", when="steps.a.output.pages > 9"), linear("c"))
    fence = run.start("a")
    said = SubmitResult(run.id, fence, output_ref=ref(), extract={"/pages": 10})
    assert run.say(said) == ["step_succeeded a", "step_queued b"]
    assert inputs_of(run.job, run.step("b")) == ({"a": Raw(b"null")}, {"a": ref()})


def test_of_an_output_by_reference_all_else_is_undefined() -> None:
    run = Run(linear("a"), linear("b", when="steps.a.output.pages > 9"))
    said = run.say(SubmitResult(run.id, run.start("a"), output_ref=ref(), extract={"/n": 1}))
    assert said == ["step_succeeded a", "step_skipped b condition", "succeeded b"]


# --- Degraded ------------------------------------------------------------------------------------
DEGRADES = back(then="degrade")


@pytest.mark.rule("S3.3")
def test_a_step_behind_a_degraded_one_runs_with_null_for_it() -> None:
    run = Run(linear("a", on_fail=DEGRADES), linear("b"))
    assert run.fail("a") == ["attempt_failed a BROKEN", "step_degraded a", "step_queued b"]
    assert run.inputs("b")["a"] == b"null"
    assert run.finish("b") == ["step_succeeded b", "succeeded b"]


@pytest.mark.rule("S3.3")
def test_a_degraded_flow_says_so_and_its_step_stays_failed() -> None:
    run = Run(linear("a", on_fail=DEGRADES), linear("b"))
    run.fail("a", message="no ink")
    run.finish("b")
    view = job_view(run.job)
    assert (view.status, view.degraded, view.error) == ("succeeded", True, None)
    assert [(s.name, s.status) for s in view.steps] == [("a", "failed"), ("b", "succeeded")]
    assert view.steps[0].error is not None
    assert view.steps[0].error.message == "no ink"


def test_a_condition_tells_a_degraded_step_from_one_that_succeeded() -> None:
    run = Run(
        linear("a", on_fail=DEGRADES), linear("b", when="steps.a.status == 'succeeded'"), step("c")
    )
    assert run.fail("a")[1:] == ["step_degraded a", "step_skipped b condition"]


# --- When the whole has succeeded ----------------------------------------------------------------
def test_a_failed_step_fails_the_flow_and_stops_the_others() -> None:
    run = Run(step("a"), step("b"), step("c"), step("d", "c"))
    run.finish("a")
    run.start("b")
    assert run.fail("c") == ["attempt_failed c BROKEN", "failed BROKEN"]
    assert run.statuses == {"a": "succeeded", "b": "cancelled", "c": "failed", "d": "skipped"}


def test_any_step_is_enough_where_the_template_says_so() -> None:
    run = Run(step("a"), step("b"), step("c", "a"), success_when="any_step_succeeded")
    assert run.fail("a") == ["attempt_failed a BROKEN", "step_skipped c needs_failed"]
    assert run.finish("b") == ["step_succeeded b", "succeeded c"]
    assert job_view(run.job).degraded is False


def test_none_is_not_enough() -> None:
    run = Run(step("a"), step("b"), success_when="any_step_succeeded")
    run.fail("a", "BAD")
    assert run.fail("b", "WORSE") == ["attempt_failed b WORSE", "failed WORSE"]


def test_a_condition_says_whether_it_has_succeeded() -> None:
    judged = "steps.check.output.score >= 7"
    run = Run(linear("write"), linear("check"), success_when=judged)
    run.finish("write")
    assert run.finish("check", b'{"score":7}') == ["step_succeeded check", "succeeded check"]


def test_where_it_is_not_met_the_flow_fails_and_says_why() -> None:
    run = Run(linear("a"), success_when="steps.a.output.ok")
    assert run.finish("a", b"{}") == ["step_succeeded a", f"failed {SUCCESS_NOT_MET}"]
    error = job_view(run.job).error
    assert error is not None
    assert (error.code, bool(error.message)) == (SUCCESS_NOT_MET, True)


def test_where_it_is_not_met_all_is_done_again() -> None:
    judged = "steps.a.output.ok"
    run = Run(linear("a"), success_when=judged, retry=tries(2, 5))
    assert run.finish("a", b"{}") == ["step_succeeded a", "pass_restarted 2", "step_queued a"]
    run.after(5)
    assert run.finish("a", b'{"ok":true}') == ["step_succeeded a", "succeeded a"]


def test_but_not_where_nothing_was_done_that_could_come_out_otherwise() -> None:
    run = Run(linear("a", when="payload.x == 1"), success_when="steps.a.output.ok", retry=tries(9))
    assert run.began == ["requested", "step_skipped a condition", f"failed {SUCCESS_NOT_MET}"]


# --- How it is shown -----------------------------------------------------------------------------
def test_a_flow_stands_as_the_step_that_has_come_furthest() -> None:
    run = Run(step("a"), step("b"), step("c"))
    assert status(run.job) == "pending"
    run.wait("a")
    assert status(run.job) == "waiting"
    run.lock("b")
    assert status(run.job) == "leased"
    run.start("c")
    assert status(run.job) == "running"
    run.cancel()
    assert status(run.job) == "cancelling"


def test_between_two_steps_it_is_pending() -> None:
    run = Run(linear("a"), linear("b"))
    run.finish("a")
    assert status(run.job) == "pending"
    assert run.owner.partition.queue(run.job.request.queue).pending == 1


def test_a_flow_counts_passes_as_its_attempts() -> None:
    run = Run(linear("a"), retry=tries(3))
    assert (job_view(run.job).attempt, job_view(run.job).max_attempts) == (0, 3)
    run.start("a")
    assert job_view(run.job).attempt == 1
    run.fail("a")
    assert job_view(run.job).attempt == 2
