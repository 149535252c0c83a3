"""A template's steps: what is filled in where they do not say, and what is refused, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger.domain.commands import PutTemplate, StepAsk, Template
from ledger.domain.events import JobRequested, decoded
from ledger.domain.flow_design import flow_of
from ledger.domain.flow_plan import Flow
from ledger.domain.ids import StepName
from ledger.domain.rejections import Rejection
from tests.support.builders import QUEUE
from tests.support.flows import Run, back, linear, step, template, tries
from tests.support.given import given

pytestmark = pytest.mark.rule("S2.1")


def designed(*steps: StepAsk, **said: Any) -> Flow:
    flow = flow_of("story", template(*steps, **said))
    assert flow is not None
    return flow


# --- What is filled in ---------------------------------------------------------------------------
def test_a_template_without_steps_is_no_flow() -> None:
    assert flow_of("story", Template()) is None


def test_a_step_that_does_not_say_what_it_needs_needs_the_one_before_it() -> None:
    flow = designed(linear("a"), linear("b"), step("c"), linear("d"))
    assert [plan.needs for plan in flow.steps] == [(), ("a",), (), ("c",)]


def test_a_step_is_of_the_jobs_type_unless_it_says_otherwise() -> None:
    flow = designed(linear("a"), linear("b", worker_type="draw"))
    assert [plan.worker_type for plan in flow.steps] == ["story", "draw"]


def test_a_step_has_one_attempt_and_the_templates_backoff() -> None:
    flow = designed(linear("a"), linear("b", retry=tries(2, 9)), retry=tries(4, 7))
    assert [(plan.retry.max_attempts, plan.retry.backoff_us) for plan in flow.steps] == [
        (1, (7_000_000,)),
        (2, (9_000_000,)),
    ]


def test_a_run_keeps_the_flow_that_it_began_with() -> None:
    run = Run(linear("a"), linear("b"))
    run.say(PutTemplate(QUEUE, "story", template(linear("other"))))
    assert run.finish("a") == ["step_succeeded a", "step_queued b"]


def test_the_example_of_the_docs_is_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "flows.md").read_text(encoding="utf-8")
    body = page.split("```json\n")[1].split("```")[0].split("\n", 1)[1]
    example = msgspec.json.decode(body, type=Template)
    decided = given().when(PutTemplate(QUEUE, "story", example)).decided()
    assert decided.template_version == 1
    run = Run(*example.steps, retry=example.retry)
    run.finish("plan", b'{"pages":[1,2]}')
    for _ in range(4):
        run.finish("draw[0]")
        run.finish("draw[1]")
        run.finish("bind")
        run.fail("check", "TOO_DULL")
    assert run.result.attempt == 1
    assert run.job.degraded


# --- What is refused -----------------------------------------------------------------------------
WRONG: dict[str, tuple[str, tuple[StepAsk, ...], dict[str, Any]]] = {
    "two of one name": ("/steps/1/name", (step("a"), step("a")), {}),
    "needs what is not there": ("/steps/1/needs/1", (step("a"), step("b", "a", "z")), {}),
    "needs itself": ("/steps/1/needs", (step("a"), step("b", "b")), {}),
    "a circle": (
        "/steps/1/needs",
        (step("d", "b"), step("b", "c"), step("c", "b"), step("a")),
        {},
    ),
    "a condition that is none": ("/steps/0/when", (step("a", when="payload +"),), {}),
    "a condition on a later step": (
        "/steps/0/when",
        (linear("a", when="steps.b.output.ok"), linear("b")),
        {},
    ),
    "a condition on a step beside it": (
        "/steps/1/when",
        (step("a"), step("b", when="steps.a.output.ok")),
        {},
    ),
    "a macro": ("/steps/0/when", (step("a", when="payload.all(x, x)"),), {}),
    "a list of a step that it does not need": (
        "/steps/1/each",
        (step("a"), step("b", each="/a")),
        {},
    ),
    "a list that is no pointer": ("/steps/1/each", (step("a"), step("b", "a", each="a")), {}),
    "a way forward": (
        "/steps/0/on_fail/goto",
        (linear("a", on_fail=back("b")), linear("b")),
        {},
    ),
    "a way to nowhere": ("/steps/0/on_fail/goto", (linear("a", on_fail=back("z")),), {}),
    "a range that ends before it begins": ("/steps/0/progress", (step("a", progress=(9, 3)),), {}),
    "ranges that overlap": (
        "/steps/0/progress",
        (step("a", progress=(30, 60)), step("b", progress=(0, 40))),
        {},
    ),
    "success judged by an unknown step": (
        "/success_when",
        (step("a"),),
        {"success_when": "steps.z.output.ok"},
    ),
    "success judged by no condition": ("/success_when", (step("a"),), {"success_when": "maybe"}),
    "success of no steps": ("/success_when", (), {"success_when": "any_step_succeeded"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused_and_named(name: str) -> None:
    pointer, steps, said = WRONG[name]
    refused = given().when(PutTemplate(QUEUE, "story", template(*steps, **said))).refused()
    assert (refused.code, refused.pointer) == (Rejection.VALIDATION_FAILED, pointer), refused
    assert refused.detail


def test_a_step_named_twice_in_needs_counts_once_and_pointers_are_those_of_the_body() -> None:
    twice = StepAsk(StepName("b"), needs=(StepName("a"), StepName("a"), StepName("z")))
    refused = given().when(PutTemplate(QUEUE, "story", template(step("a"), twice))).refused()
    assert refused.pointer == "/steps/1/needs/2"


@pytest.mark.parametrize(
    "body",
    [
        b'{"steps":[{"name":"9lives"}]}',
        b'{"steps":[{"name":"a b"}]}',
        b'{"steps":[{"name":"%s"}]}' % (b"x" * 64),
        b'{"steps":[{"name":"a","on_fail":{"max":101}}]}',
        b'{"steps":[{"name":"a","wants":[]}]}',
        b'{"steps":[%s]}' % b",".join(b'{"name":"s%d"}' % n for n in range(51)),
    ],
)
def test_what_has_not_the_shape_of_steps_is_no_template(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=Template)


def test_fifty_steps_are_the_most() -> None:
    assert len(designed(*(linear(f"s{n}") for n in range(50))).steps) == 50


@pytest.mark.parametrize(
    "flow", [b'{"steps":[]}', b'{"steps":[{"name":"a[0]","worker_type":"t"}]}']
)
def test_a_request_with_a_flow_that_no_template_makes_cannot_be_read(flow: bytes) -> None:
    content = b'{"job_id":"q.1","queue":"q","type":"t","payload":{},"ready_at":1,"order":1,"flow":'
    assert decoded(msgspec.Raw(content + b"null}"), JobRequested) is not None
    assert decoded(msgspec.Raw(content + flow + b"}"), JobRequested) is None
