"""Reruns of flows: from the start, or from where it failed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain import bulk
from ledger.domain.commands import (
    CancelPart,
    RequestJob,
    RerunJob,
    SubmitResult,
    Where,
    WithdrawResult,
)
from ledger.domain.events import Ref
from ledger.domain.flows import inputs_of
from ledger.domain.ids import CommandId, StepName
from ledger.domain.job import objects_of
from ledger.domain.job_view import job_view
from ledger.domain.object_keys import carried_key
from ledger.domain.rejections import Rejection
from tests.support.builders import JOB, QUEUE, requested
from tests.support.clock import after
from tests.support.flows import TYPE, Run, back, linear, ref, step, told
from tests.support.given import When, at_its_time, given

pytestmark = pytest.mark.rule("S1.9")


def failed_run() -> Run:
    run = Run(linear("plan"), linear("text"), linear("print"))
    run.finish("plan", b'{"pages":2}')
    run.fail("text")
    return run


def test_a_rerun_does_all_again() -> None:
    run = failed_run()
    before = run.id
    assert run.rerun() == ["requested", "step_queued plan"]
    assert run.id != before
    assert job_view(run.job).retried_from == before


def test_from_where_it_failed_what_succeeded_is_taken_over() -> None:
    run = failed_run()
    assert run.rerun(from_failed=True) == ["requested", "step_carried plan", "step_queued text"]
    assert run.statuses == {"plan": "succeeded", "text": "pending", "print": "pending"}
    assert run.inputs("text") == {"plan": b'{"pages":2}'}
    run.finish("text")
    assert run.finish("print") == ["step_succeeded print", "succeeded print"]


# --- Outputs in the object store: an object belongs to one job -----------------------------------
def stored_run() -> Run:
    run = Run(linear("a"), linear("b", when="steps.a.output.ok"))
    run.say(SubmitResult(run.id, run.start("a"), output_ref=ref(), extract={"/ok": True}))
    run.fail("b")
    return run


def copy_for(command_id: str, step: str = "a", labels: dict[str, str] | None = None) -> Ref:
    """Of the output of that step of a `stored_run`, as the rerun brings it."""
    key = carried_key(QUEUE, labels or {}, CommandId(command_id), StepName(step))
    return replace(ref(), key=key)


def rerun_with(**fields: Any) -> When:
    run = stored_run()
    return run.when(RerunJob(run.id, from_failed=True, **fields), "again")


def test_a_copy_of_an_output_in_the_object_store_is_taken_over() -> None:
    run, copy = stored_run(), copy_for("again")
    rerun = RerunJob(run.id, from_failed=True, output_refs={StepName("a"): copy})
    decided = run.when(rerun, "again").decided()
    assert told(decided.events) == ["requested", "step_carried a", "step_queued b"]
    assert decided.job_id is not None
    job = run.known(decided.job_id)
    assert inputs_of(job, job.steps[1])[1] == {"a": copy}
    assert objects_of(job) == (copy.key,)
    assert copy.key not in objects_of(run.job)


def test_without_one_it_is_refused_until_whoever_asks_has_copied_or_says_there_is_none() -> None:
    assert rerun_with().then(Rejection.VALIDATION_FAILED).refusal.pointer == "/output_refs"
    assert told(rerun_with(output_refs={}).decided().events)[1:] == ["step_queued a"]


def test_copies_go_with_a_rerun_from_where_it_failed_only() -> None:
    run = stored_run()
    rerun = RerunJob(run.id, output_refs={StepName("a"): copy_for("again")})
    refused = run.when(rerun, "again").then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer == "/output_refs"


def test_of_withdrawn_objects_nothing_is_left_to_copy() -> None:
    run = stored_run()
    run.say(WithdrawResult(run.id, "owner_removed"))
    assert run.rerun(from_failed=True)[1:] == ["step_queued a"]


@pytest.mark.parametrize(
    ("step", "copy", "pointer"),
    [
        ("b", copy_for("again", "b"), "/output_refs/b"),
        ("a", copy_for("another"), "/output_refs/a/key"),
        ("a", copy_for("again", "b"), "/output_refs/a/key"),
        ("a", copy_for("again", labels={"user": "bob"}), "/output_refs/a/key"),
        ("a", ref(), "/output_refs/a/key"),
        ("a", replace(copy_for("again"), size=1), "/output_refs/a"),
        ("a", replace(copy_for("again"), sha256="cd" * 32), "/output_refs/a"),
    ],
)
def test_what_is_no_copy_of_the_commands_own_is_refused(step: str, copy: Ref, pointer: str) -> None:
    refused = (
        rerun_with(output_refs={StepName(step): copy}).then(Rejection.VALIDATION_FAILED).refusal
    )
    assert refused.pointer == pointer


def test_of_a_list_the_instances_that_have_a_copy() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"))
    run.finish("plan", b'["x","y","z"]')
    for name in ("draw[0]", "draw[1]"):
        fence = run.start(name)
        run.say(SubmitResult(run.id, fence, output_ref=ref(fence)))
    run.fail("draw[2]")
    copies = {StepName("draw[1]"): copy_for("again", "draw[1]")}
    rerun = RerunJob(run.id, from_failed=True, output_refs=copies)
    assert told(run.when(rerun, "again").decided().events)[1:] == [
        "step_carried plan",
        "step_expanded draw",
        "step_carried draw[1]",
        "step_queued draw[0]",
        "step_queued draw[2]",
    ]


# --- Lists ---------------------------------------------------------------------------------------


def test_of_a_list_the_instances_that_succeeded() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"))
    run.finish("plan", b'["x","y","z"]')
    run.finish("draw[2]", b"3")
    run.fail("draw[0]")
    assert run.rerun(from_failed=True) == [
        "requested",
        "step_carried plan",
        "step_expanded draw",
        "step_carried draw[2]",
        "step_queued draw[0]",
        "step_queued draw[1]",
    ]
    assert bytes(run.part("draw[1]").item or b"") == b'"y"'
    run.finish("draw[0]", b"1")
    run.finish("draw[1]", b"2")
    assert bytes(run.result.output or b"") == b"[1,2,3]"


def test_a_list_of_which_nothing_succeeded_is_made_anew() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"))
    run.finish("plan", b"[1]")
    run.fail("draw[0]")
    assert run.rerun(from_failed=True)[1:] == [
        "step_carried plan",
        "step_expanded draw",
        "step_queued draw[0]",
    ]


def test_an_empty_list_is_taken_over_as_one() -> None:
    run = Run(linear("plan"), linear("draw", each="/plan"), linear("bind"))
    run.finish("plan", b"[]")
    run.fail("bind")
    run.rerun(from_failed=True)
    assert run.inputs("bind") == {"draw": b"[]"}


def test_what_was_degraded_or_skipped_is_decided_again() -> None:
    run = Run(
        step("a", on_fail=back(then="degrade")),
        step("b", when="payload.x == 1"),
        step("c", "a", "b"),
        payload=b'{"x":2}',
    )
    run.fail("a")
    run.fail("c")
    assert run.rerun(from_failed=True, payload=Raw(b'{"x":1}')) == [
        "requested",
        "step_queued a",
        "step_queued b",
    ]


def test_of_a_flow_that_succeeded_nothing_is_left_to_do() -> None:
    run = Run(linear("a"))
    run.finish("a", b"7")
    assert run.rerun(from_failed=True) == ["requested", "step_carried a", "succeeded a"]
    assert bytes(run.result.output or b"") == b"7"


def test_a_rerun_of_a_rerun_takes_over_what_that_one_took_over() -> None:
    run = failed_run()
    run.rerun(from_failed=True)
    run.fail("text")
    assert run.rerun(from_failed=True)[1] == "step_carried plan"


# --- Of a job that its owner has forgotten -------------------------------------------------------
def brought(run: Run) -> Raw:
    """Its request, as the read model has it."""
    return Raw(msgspec.json.encode(run.job.request))


def test_what_a_forgotten_flow_gave_cannot_be_taken_over() -> None:
    run, owner = failed_run(), given()
    command = RerunJob(run.id, original=brought(run), from_failed=True)
    assert owner.when(command).refused().code == Rejection.VIEW_BEHIND
    again = RerunJob(run.id, original=brought(run))
    owner.also(after(1))
    assert told(owner.when(again).decided().events) == ["requested", "step_queued plan"]


def test_a_forgotten_plain_job_has_nothing_to_take_over() -> None:
    owner = given()
    original = Raw(msgspec.json.encode(at_its_time(requested(), owner.now)))
    decided = owner.when(RerunJob(JOB, original=original, from_failed=True)).decided()
    assert told(decided.events) == ["requested"]


# --- Withdrawn before it began -------------------------------------------------------------------
def test_a_bulk_cancel_covers_a_flow_that_would_be_done_at_once() -> None:
    run = Run(linear("a", when="payload.x == 1"))
    partition = run.owner.partition
    part = CancelPart("op_1", 0, Where(types=(TYPE,)), "why")
    run.owner.append(*bulk.start_part(partition, part, partition.requests + 1))
    said = run.say(RequestJob(TYPE, QUEUE))
    assert said[:2] == ["requested", "cancelled at_once"]
