"""How far a flow is: each step fills its part of the whole; within a pass it never goes back."""

from __future__ import annotations

import pytest

from ledger.domain.job_view import ProgressView, job_view
from tests.support.flows import Run, back, linear, step, tries

pytestmark = pytest.mark.rule("S3.2")

STAGES = (
    linear("plan", progress=(0, 20)),
    linear("text", progress=(20, 60)),
    linear("image", progress=(60, 80)),
    linear("check", progress=(80, 100), on_fail=back("text", then="degrade")),
)


def shown(run: Run) -> ProgressView:
    progress = job_view(run.job).progress
    assert progress is not None
    return progress


def test_four_stages_fill_their_parts() -> None:
    run = Run(*STAGES)
    assert job_view(run.job).progress is None
    seen = []
    for name in ("plan", "text", "image", "check"):
        run.progress(name, 50)
        seen.append(shown(run).percent)
        run.finish(name)
        seen.append(shown(run).percent)
    assert seen == [10, 20, 40, 60, 70, 80, 90, 100]


def test_the_phase_is_what_the_step_says_else_its_name() -> None:
    run = Run(*STAGES)
    run.start("plan")
    assert (shown(run).percent, shown(run).phase) == (0, "plan")
    run.progress("plan", 10, phase="outline", message="3 of 9")
    assert (shown(run).phase, shown(run).message) == ("outline", "3 of 9")
    run.finish("plan")
    run.start("text")
    assert shown(run).phase == "text"


def test_a_step_shows_its_own_percent() -> None:
    run = Run(*STAGES)
    run.finish("plan")
    run.progress("text", 25)
    assert [view.percent for view in job_view(run.job).steps] == [None, 25, None, None]


def test_it_does_not_go_back_when_the_flow_is_sent_back() -> None:
    run = Run(*STAGES)
    for name in ("plan", "text", "image"):
        run.finish(name)
    run.fail("check")
    assert shown(run).percent == 80
    run.progress("text", 10)
    assert shown(run).percent == 80
    run.finish("text")
    run.finish("image")
    run.progress("check", 50)
    assert shown(run).percent == 90


def test_nor_when_a_step_is_tried_again() -> None:
    run = Run(linear("a", retry=tries(2)), linear("b"))
    run.progress("a", 80)
    run.fail("a")
    run.progress("a", 10)
    assert (shown(run).percent, job_view(run.job).steps[0].percent) == (40, 10)


def test_a_new_pass_begins_from_nought() -> None:
    run = Run(*STAGES, retry=tries(2))
    run.finish("plan")
    run.fail("text")
    assert shown(run).percent == 0
    run.progress("plan", 50)
    assert shown(run).percent == 10


def test_steps_that_do_not_say_share_the_whole_equally_in_the_order_they_are_done() -> None:
    run = Run(step("last", "first"), step("first"))
    run.finish("first")
    assert shown(run).percent == 50


def test_beside_those_that_say_one_that_does_not_fills_nothing() -> None:
    run = Run(linear("a", progress=(0, 30)), linear("b"), linear("c", progress=(30, 100)))
    run.finish("a")
    run.progress("b", 90)
    assert shown(run).percent == 30
    run.finish("b")
    run.progress("c", 10)
    assert shown(run).percent == 37


def test_of_a_list_each_instance_that_has_ended_counts_its_share() -> None:
    run = Run(linear("a", progress=(0, 20)), linear("b", each="/a", progress=(20, 100)))
    run.finish("a", b"[1,2,3,4]")
    run.finish("b[2]")
    assert shown(run).percent == 40
    run.finish("b[0]")
    assert shown(run).percent == 60


def test_an_empty_list_has_been_worked_off() -> None:
    run = Run(linear("a"), linear("b", each="/a"), linear("c"), linear("d"))
    run.finish("a", b"[]")
    assert shown(run).percent == 50


def test_words_on_parallel_steps_wait_each_for_its_second() -> None:
    run = Run(step("a"), step("b"))
    run.progress("a", 10)
    run.progress("b", 10)
    assert run.progress("a", 20) == run.progress("b", 30) == []
    assert run.after(1) == ["progressed a", "progressed b"]
    steps = {view.name: view.percent for view in job_view(run.job).steps}
    assert steps == {"a": 20, "b": 30}


def test_a_word_that_waits_is_recorded_though_another_step_ends_meanwhile() -> None:
    run = Run(step("a", timeout_seconds=1.0), step("b"), success_when="any_step_succeeded")
    run.start("a")
    run.progress("b", 10)
    run.progress("b", 30)
    assert "progressed b" in run.after(1)
    assert run.statuses["a"] == "failed"


def test_a_word_that_waits_is_forgotten_with_its_lease() -> None:
    run = Run(step("a"), step("b"), retry=tries(2))
    run.progress("a", 10)
    run.progress("a", 20)
    run.fail("b")
    assert run.after(1) == []
