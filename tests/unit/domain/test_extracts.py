"""What rules see of a payload or output that lies in the object store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from ledger.domain.commands import Limit, RequestJob, StepAsk, Template
from ledger.domain.dedupe import dedupe_digest
from ledger.domain.events import Ref
from ledger.domain.extracts import (
    EXTRACT_BYTES_MAX,
    extract_of_output,
    extract_of_payload,
    pointers_into_outputs,
)
from ledger.domain.flow_design import flow_of
from ledger.domain.ids import StepName
from ledger.domain.pointers import point
from ledger.domain.wrong import Wrong

HASH = "ab" * 32
PAYLOAD = {"text": "long", "n": [1, {"a/b": 2}], "other": "x"}
ONE, TWO = StepName("one"), StepName("two")


def moved(template: Template, payload: Any = PAYLOAD, *limits: Limit) -> RequestJob:
    found = extract_of_payload(payload, HASH, template, limits)
    assert not isinstance(found, Wrong)
    return RequestJob("t", payload_ref=Ref("k", 70_000, HASH), extract=found)


@pytest.mark.rule("S2.2")
def test_what_its_equals_are_told_by_is_as_if_it_lay_in_the_request() -> None:
    template = Template(dedupe_keys=("/payload/text", "/payload/n/1/a~1b"))
    here = RequestJob("t", payload=Raw(msgspec.json.encode(PAYLOAD)))
    assert dedupe_digest(moved(template), template) == dedupe_digest(here, template) is not None


def test_keys_scope_and_limits_come_along_and_nothing_else() -> None:
    template = Template(dedupe_keys=("/payload/text",), idempotency_scope=("/type", "/payload/n/0"))
    request = moved(template, PAYLOAD, Limit(("/payload/other", "/labels/x"), 1))
    assert request.extract == {"/payload/text": "long", "/payload/n/0": 1, "/payload/other": "x"}
    assert point(request, "/payload/n") is UNSET


def test_a_pointer_that_finds_nothing_finds_nothing() -> None:
    template = Template(dedupe_keys=("/payload/missing",))
    assert dedupe_digest(moved(template), template) is None


@pytest.mark.rule("S3.5")
def test_for_a_whole_payload_its_hash_stands() -> None:
    template = Template(dedupe_keys=("/payload",))
    same = dedupe_digest(moved(template), template)
    other = RequestJob("t", payload_ref=Ref("k", 1, HASH), extract={"/payload": {"sha256": "cd"}})
    assert same == dedupe_digest(moved(template, {"other": "payload"}), template)
    assert same != dedupe_digest(other, template)


def test_a_key_that_does_not_fit_is_named() -> None:
    template = Template(dedupe_keys=("/payload/text",))
    fits = {"text": "x" * (EXTRACT_BYTES_MAX - 2)}
    assert moved(template, fits).extract == {"/payload/text": fits["text"]}
    wrong = extract_of_payload({"text": fits["text"] + "x"}, HASH, template, ())
    assert isinstance(wrong, Wrong)
    assert wrong.pointer == "/payload/text"


def test_what_conditions_look_at_comes_along_if_it_fits() -> None:
    steps = (StepAsk(ONE), StepAsk(TWO, when="payload.n[0] > 0 && payload.text != ''"))
    template = Template(dedupe_keys=(), steps=steps, success_when="payload.other == 'x'")
    assert moved(template).extract == {
        "/payload/n": [1, {"a/b": 2}],
        "/payload/text": "long",
        "/payload/other": "x",
    }
    large = {**PAYLOAD, "text": "x" * EXTRACT_BYTES_MAX}
    assert "/payload/text" not in (moved(template, large).extract or {})


def test_of_an_output_conditions_and_lists_see_what_they_name() -> None:
    steps = (
        StepAsk(ONE),
        StepAsk(TWO, each="/one/items"),
        StepAsk(StepName("three"), when="steps.one.output.score > 3 && steps.two.status != 'x'"),
    )
    flow = flow_of("t", Template(steps=steps))
    output = {"items": [1, 2], "score": 4, "text": "long"}
    pointers = pointers_into_outputs(flow)
    assert extract_of_output(output, pointers) == {"/items": [1, 2], "/score": 4}
    assert extract_of_output({**output, "items": ["x" * EXTRACT_BYTES_MAX]}, pointers) == {
        "/score": 4
    }


def test_a_plain_job_has_no_rules_on_its_output() -> None:
    assert pointers_into_outputs(None) == ()
