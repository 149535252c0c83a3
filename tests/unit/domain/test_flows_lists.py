"""A step over a list: one instance for each item, each leased, tried and shown by itself."""

from __future__ import annotations

import msgspec
import pytest

from ledger.domain.commands import SubmitResult
from ledger.domain.failures import EACH_NOT_A_LIST
from ledger.domain.job_view import job_view
from ledger.domain.rejections import Rejection
from tests.support.builders import BOB
from tests.support.flows import Run, back, linear, ref, step, tries

pytestmark = pytest.mark.rule("S2.5")


def run_of(items: bytes = b'["x","y"]', **said: object) -> Run:
    run = Run(linear("plan"), linear("draw", each="/plan", **said), linear("bind"))
    run.finish("plan", items)
    return run


def test_a_step_is_done_once_for_each_item() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan/pages"), linear("bind"))
    assert run.finish("plan", b'{"pages":["x",{"n":2}]}') == [
        "step_succeeded plan",
        "step_expanded draw",
        "step_queued draw[0]",
        "step_queued draw[1]",
    ]
    items = [step.part.item for step in run.job.steps if step.part and step.part.item]
    assert [bytes(item) for item in items] == [b'"x"', b'{"n":2}']


def test_the_outputs_of_its_instances_are_one_list_in_the_order_of_the_items() -> None:
    run = run_of()
    assert run.finish("draw[1]", b'"Y"') == ["step_succeeded draw[1]"]
    assert run.finish("draw[0]", b'"X"') == ["step_succeeded draw[0]", "step_queued bind"]
    assert run.inputs("bind")["draw"] == b'["X","Y"]'


def test_of_an_empty_list_nothing_is_to_be_done() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"))
    assert run.finish("plan", b"[]") == [
        "step_succeeded plan",
        "step_expanded draw",
        "succeeded draw",
    ]
    assert bytes(run.result.output or b"") == b"[]"
    empty = "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
    assert run.result.output_hash == empty


def test_of_one_item_there_is_one_instance_and_a_list_of_one() -> None:
    run = run_of(b"[7]")
    assert run.finish("draw[0]", b'{"ok":1}') == ["step_succeeded draw[0]", "step_queued bind"]
    assert run.inputs("bind")["draw"] == b'[{"ok":1}]'


def test_256_items_are_the_most() -> None:
    run = run_of(msgspec.json.encode([*range(256)]))
    assert len(run.job.steps) == 258
    assert run.statuses["draw[255]"] == "pending"


@pytest.mark.parametrize(
    "output", [msgspec.json.encode([*range(257)]), b'{"n":[1]}', b"7", b"null", b'"text"']
)
def test_what_is_no_list_or_longer_fails_the_step(output: bytes) -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"), retry=tries(3))
    assert run.finish("plan", output)[1:] == [
        f"step_failed draw {EACH_NOT_A_LIST}",
        f"failed {EACH_NOT_A_LIST}",
    ]
    error = job_view(run.job).error
    assert error is not None
    assert "256" in error.message


def test_which_its_on_fail_may_catch() -> None:
    rule = back("plan", 1, codes=(EACH_NOT_A_LIST,))
    run = Run(linear("plan"), linear("draw", each="/plan", on_fail=rule))
    assert run.finish("plan", b"{}")[1:] == [
        f"step_failed draw {EACH_NOT_A_LIST}",
        "sent_back draw plan 1",
        "step_queued plan",
    ]
    assert run.finish("plan", b"[1]")[1:] == ["step_expanded draw", "step_queued draw[0]"]


def test_the_list_may_lie_in_an_output_by_reference_that_brings_it_along() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan/pages"))
    said = SubmitResult(run.id, run.start("plan"), output_ref=ref(), extract={"/pages": [1, 2]})
    assert run.say(said)[1:] == ["step_expanded draw", "step_queued draw[0]", "step_queued draw[1]"]


def test_or_be_all_of_it() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"))
    said = SubmitResult(run.id, run.start("plan"), output_ref=ref(), extract={"": [1]})
    assert run.say(said)[1:] == ["step_expanded draw", "step_queued draw[0]"]


def test_one_that_brings_nothing_along_is_no_list() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan/pages"))
    said = SubmitResult(run.id, run.start("plan"), output_ref=ref())
    assert run.say(said)[1] == f"step_failed draw {EACH_NOT_A_LIST}"


def test_a_step_may_walk_over_what_instances_gave() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"), linear("bind", each="/draw"))
    run.finish("plan", b"[1]")
    assert run.finish("draw[0]", b'{"ok":1}')[1:] == ["step_expanded bind", "step_queued bind[0]"]
    assert bytes(run.part("bind[0]").item or b"") == b'{"ok":1}'


def test_a_condition_on_a_list_is_asked_once() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan", when="size(steps.plan.output) > 1"))
    assert run.finish("plan", b"[1]")[1] == "step_skipped draw condition"


def test_a_step_over_a_list_has_succeeded_for_conditions_when_all_its_instances_have() -> None:
    checks = {"when": "steps.draw.status == 'succeeded'"}
    for fails, expected in ((False, "step_queued bind"), (True, "step_skipped bind condition")):
        run = Run(
            linear("plan"),
            linear("draw", each="/plan", on_fail=back(then="degrade")),
            linear("bind", **checks),
        )
        run.finish("plan", b"[1,2]")
        run.finish("draw[0]")
        said = run.fail("draw[1]") if fails else run.finish("draw[1]")
        assert expected in said


# --- Instances that fail -------------------------------------------------------------------------
def test_each_instance_has_attempts_of_its_own() -> None:
    run = run_of(retry=tries(2))
    assert run.fail("draw[0]")[1] == "retry_scheduled draw[0]"
    assert run.fail("draw[1]")[1] == "retry_scheduled draw[1]"
    assert run.fail("draw[0]")[1] == "failed BROKEN"


def test_an_instance_that_is_degraded_leaves_null_in_its_place() -> None:
    run = run_of(on_fail=back(then="degrade"))
    run.finish("draw[1]", b'"Y"')
    assert run.fail("draw[0]")[1:] == ["step_degraded draw[0]", "step_queued bind"]
    assert run.inputs("bind")["draw"] == b'[null,"Y"]'


def test_one_that_fails_for_good_keeps_from_running_what_needs_the_list() -> None:
    run = Run(
        linear("plan"),
        linear("draw", each="/plan"),
        linear("bind"),
        success_when="any_step_succeeded",
    )
    run.finish("plan", b"[1,2]")
    run.finish("draw[0]")
    assert run.fail("draw[1]")[1:] == ["step_skipped bind needs_failed", "succeeded bind"]


@pytest.mark.rule("S3.3")
def test_ways_back_over_a_list_are_counted_and_come_to_an_end() -> None:
    run = run_of(on_fail=back("plan", 2))
    for count in (1, 2):
        assert run.fail("draw[1]")[1:] == [f"sent_back draw[1] plan {count}", "step_queued plan"]
        assert [*run.statuses] == ["plan", "draw", "bind"]
        run.finish("plan", b"[1,2]")
    assert run.fail("draw[0]") == ["attempt_failed draw[0] BROKEN", "failed BROKEN"]


@pytest.mark.rule("S3.3")
def test_also_where_another_step_sends_the_flow_back_over_it() -> None:
    run = Run(
        linear("plan"),
        linear("draw", each="/plan", on_fail=back("plan", 1)),
        linear("bind", on_fail=back("draw", 1)),
    )
    run.finish("plan", b"[1]")
    run.fail("draw[0]")
    run.finish("plan", b"[1]")
    run.finish("draw[0]")
    assert run.fail("bind")[1:] == [
        "sent_back bind draw 1",
        "step_expanded draw",
        "step_queued draw[0]",
    ]
    assert run.fail("draw[0]")[1] == "failed BROKEN"


def test_a_way_back_voids_the_leases_of_the_other_instances() -> None:
    run = run_of(on_fail=back("draw", 1))
    fence = run.start("draw[0]", BOB)
    assert run.fail("draw[1]")[1:] == [
        "sent_back draw[1] draw 1",
        "step_expanded draw",
        "step_queued draw[0]",
        "step_queued draw[1]",
    ]
    assert run.refused(SubmitResult(run.id, fence)).code == Rejection.LEASE_STALE


def test_a_new_pass_makes_the_list_anew() -> None:
    run = Run(step("plan"), step("draw", "plan", each="/plan"), retry=tries(2))
    run.finish("plan", b"[1,2,3]")
    run.finish("draw[0]")
    assert run.fail("draw[2]")[1:] == ["pass_restarted 2", "step_queued plan"]
    assert [*run.statuses] == ["plan", "draw"]
    run.finish("plan", b"[1]")
    assert run.finish("draw[0]") == ["step_succeeded draw[0]", "succeeded draw"]
