"""What a flow comes to, and results that are said again."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET, Raw

from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import SubmitResult
from ledger.domain.ids import INLINE_BYTES_MAX, Fence
from ledger.domain.rejections import Rejection
from tests.support.flows import Run, back, linear, ref, step, tries

pytestmark = pytest.mark.rule("S1.8")


def output_of(run: Run) -> object:
    return msgspec.json.decode(run.result.output or b"null")


# --- The flow's result ---------------------------------------------------------------------------
def test_the_result_is_the_output_of_the_last_step() -> None:
    run = Run(linear("a"), linear("b"))
    run.finish("a", b"1")
    run.finish("b", b'{"n":2}')
    assert (output_of(run), run.result.output_hash) == ({"n": 2}, sha256_hex({"n": 2}))
    assert run.result.attempt == 1


def test_of_several_that_nothing_needs_an_object_by_name() -> None:
    run = Run(step("a"), step("b", "a"), step("c", "a"))
    run.finish("a")
    run.finish("c", b"3")
    run.finish("b", b"2")
    assert output_of(run) == {"b": 2, "c": 3}
    assert run.result.output_hash == sha256_hex({"b": 2, "c": 3})


def test_one_that_was_skipped_or_degraded_is_null_in_it() -> None:
    run = Run(step("a", on_fail=back(then="degrade")), step("b", when="payload.x == 1"), step("c"))
    run.fail("a")
    run.finish("c", b"3")
    assert output_of(run) == {"a": None, "b": None, "c": 3}


def test_a_last_step_that_was_skipped_gives_null() -> None:
    run = Run(linear("a"), linear("b", when="payload.x == 1"))
    run.finish("a")
    assert (output_of(run), run.result.output_hash) == (None, sha256_hex(None))


def test_a_result_by_reference_stays_one() -> None:
    run = Run(linear("a"))
    run.say(SubmitResult(run.id, run.start("a"), output_ref=ref()))
    assert (run.result.output, run.result.output_ref) == (UNSET, ref())
    assert run.result.output_hash == ref().sha256


def test_among_several_a_reference_is_told_as_one() -> None:
    run = Run(step("a"), step("b"))
    run.finish("a", b"1")
    run.say(SubmitResult(run.id, run.start("b"), output_ref=ref(2)))
    its = msgspec.to_builtins(ref(2))
    assert output_of(run) == {"a": 1, "b": {"output_ref": its}}


def test_of_what_would_not_fit_together_only_the_hashes_are_told() -> None:
    half = msgspec.json.encode("x" * (INLINE_BYTES_MAX // 2))
    run = Run(step("a"), step("b"))
    run.finish("a", half)
    run.finish("b", half)
    its = sha256_hex(msgspec.json.decode(half))
    assert output_of(run) == {"output_hashes": {"a": its, "b": its}}


def test_a_number_without_a_canonical_form_hinders_no_flow() -> None:
    run = Run(step("a"), step("b"))
    large = b"[123456789012345678901]"
    run.finish("a", large, output_hash="cd" * 32)
    assert run.finish("b") == ["step_succeeded b", "succeeded b"]
    assert len(run.result.output_hash) == 64


def test_an_output_schema_is_about_the_result_of_the_flow() -> None:
    schema = Raw(b'{"type":"object"}')
    run = Run(linear("a"), linear("b"), output_schema=schema)
    run.finish("a", b"1")
    fence = run.start("b")
    refused = run.refused(SubmitResult(run.id, fence, Raw(b"1")))
    assert (refused.code, refused.pointer) == (Rejection.VALIDATION_FAILED, "/output")
    assert run.finish("b", b"{}")[-1] == "succeeded b"


def test_not_about_what_one_of_many_instances_gives() -> None:
    run = Run(linear("a"), linear("b", each="/a"), output_schema=Raw(b'{"type":"array"}'))
    run.finish("a", b"[1]")
    assert run.finish("b[0]", b"1")[-1] == "succeeded b"


# --- Said again ----------------------------------------------------------------------------------
def submit(run: Run, fence: Fence, output: bytes = b"1") -> SubmitResult:
    return SubmitResult(run.id, fence, Raw(output))


def test_the_same_result_of_a_step_again_is_no_news_and_another_comes_too_late() -> None:
    run = Run(linear("a"), linear("b"))
    fence = run.start("a")
    run.finish("a")
    assert run.say(submit(run, fence)) == []
    assert run.refused(submit(run, fence, b"2")).code == Rejection.RESULT_ALREADY_EXISTS


def test_also_when_the_flow_has_ended() -> None:
    run = Run(linear("a"), linear("b"))
    fence = run.start("a")
    run.finish("a")
    run.fail("b")
    assert run.say(submit(run, fence)) == []
    assert run.refused(submit(run, fence, b"2")).code == Rejection.RESULT_ALREADY_EXISTS


def test_also_while_the_step_is_done_anew() -> None:
    run = Run(linear("a"), linear("b", on_fail=back("a")))
    fence = run.start("a")
    run.finish("a")
    run.fail("b")
    assert run.statuses["a"] == "pending"
    assert run.say(submit(run, fence)) == []
    assert run.refused(submit(run, fence, b"2")).code == Rejection.RESULT_ALREADY_EXISTS
    run.start("a")
    assert run.say(submit(run, fence)) == []


def test_of_an_attempt_that_never_had_a_result_it_is_stale() -> None:
    run = Run(linear("a", retry=tries(2)), linear("b"))
    fence = run.start("a")
    run.after(60)
    run.finish("a")
    assert run.refused(submit(run, fence)).code == Rejection.LEASE_STALE


def test_of_a_step_that_failed_it_is_closed_with_the_flow() -> None:
    run = Run(linear("a"))
    fence = run.start("a")
    run.fail("a")
    assert run.refused(submit(run, fence)).code == Rejection.JOB_CLOSED
