"""Templates: what a put checks, and what payloads and outputs are checked against."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET, Raw

from ledger.domain.commands import (
    CancelPolicy,
    Limit,
    PutTemplate,
    Report,
    ReportedResult,
    RequestJob,
    SubmitResult,
    Template,
)
from ledger.domain.events import Ref
from ledger.domain.ids import CommandId, Fence, JobId, Session
from ledger.domain.object_keys import payload_key
from ledger.domain.rejections import Rejection
from tests.support.builders import ADA, QUEUE, lock
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S2.1")

NEEDS_X = Raw(b'{"type":"object","required":["x"],"properties":{"x":{"type":"integer"}}}')


def put(**fields: Any) -> PutTemplate:
    return PutTemplate(QUEUE, "report", Template(**fields))


def running(**fields: Any) -> tuple[Given, JobId]:
    story = given()
    story.when(put(**fields)).decided()
    job_id = story.when(RequestJob("report")).decided().job_id
    assert job_id is not None
    story.when(lock(ADA, job_id)).decided()
    return story, job_id


# --- What a put checks ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"dedupe_keys": ("/scope", "scope")}, "/dedupe_keys/1"),
        ({"dedupe_keys": ("",)}, "/dedupe_keys/0"),
        ({"limits": (Limit(("/scope", "x"), 1),)}, "/limits/0/key/1"),
        ({"payload_schema": Raw(b'{"type":"nothing"}')}, "/payload_schema"),
        ({"output_schema": Raw(b"[]")}, "/output_schema"),
        ({"output_schema": Raw(b'{"$ref":"https://elsewhere.example"}')}, "/output_schema"),
        (
            {"concurrency_policy": "replace_existing", "cancel": CancelPolicy(supported=False)},
            "/concurrency_policy",
        ),
        ({"overridable": ("colour",)}, "/overridable/0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(
    fields: dict[str, Any], pointer: str
) -> None:
    refused = given().when(put(**fields)).then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer is not None
    assert refused.pointer.startswith(pointer)


@pytest.mark.parametrize(
    ("before", "after", "version"),
    [
        (b'{"const":1}', b'{ "const" : 1.0 }', 1),
        (b'{"const":1,"type":"integer"}', b'{"type":"integer","const":1}', 1),
        (b'{"const":1}', b'{"const":true}', 2),
        (b'{"enum":["a","b"]}', b'{"enum":["b","a"]}', 2),
    ],
)
def test_equal_content_is_equal_json(before: bytes, after: bytes, version: int) -> None:
    story = given()
    story.when(put(payload_schema=Raw(before))).decided()
    decided = story.when(put(payload_schema=Raw(after))).decided()
    assert decided.template_version == version


# --- Payloads ------------------------------------------------------------------------------------
def test_a_payload_must_meet_the_schema_and_hears_all_that_is_wrong() -> None:
    story = given()
    schema = b'{"properties":{"x":{"type":"integer"},"y":{"type":"string"}}}'
    story.when(put(payload_schema=Raw(schema))).decided()
    refused = story.when(RequestJob("report", payload=Raw(b'{"x":"1","y":2}'))).refused()
    assert refused.code == Rejection.VALIDATION_FAILED
    assert {error.pointer for error in refused.errors} == {"/payload/x", "/payload/y"}
    assert story.when(RequestJob("report", payload=Raw(b'{"x":1,"y":"2"}'))).decided().job_id


def test_an_absent_payload_is_an_empty_object() -> None:
    story = given()
    story.when(put(payload_schema=NEEDS_X)).decided()
    assert story.when(RequestJob("report")).refused().pointer == "/payload/x"


def test_one_that_lies_elsewhere_was_checked_by_who_moved_it() -> None:
    story = given()
    story.when(put(payload_schema=NEEDS_X)).decided()
    ref = Ref(payload_key(QUEUE, {}, CommandId("moved")), 100_000, "ab" * 32)
    assert story.when(RequestJob("report", payload_ref=ref), "moved").decided().job_id


def test_a_request_of_an_older_version_meets_that_ones_schema() -> None:
    story = given()
    story.when(put()).decided()
    story.when(RequestJob("report")).decided()
    story.when(put(payload_schema=NEEDS_X)).decided()
    assert story.when(RequestJob("report", template_version=1)).decided().job_id
    assert story.when(RequestJob("report", template_version=2)).refused().pointer == "/payload/x"


# --- Outputs -------------------------------------------------------------------------------------
@pytest.mark.parametrize("output", [Raw(b'{"x":"1"}'), Raw(b"1"), UNSET])
def test_an_output_that_does_not_meet_the_schema_is_refused_and_the_attempt_goes_on(
    output: Any,
) -> None:
    story, job_id = running(output_schema=NEEDS_X)
    refused = story.when(SubmitResult(job_id, Fence(1), output)).refused()
    assert refused.code == Rejection.VALIDATION_FAILED
    assert refused.pointer is not None
    assert refused.pointer.startswith("/output")
    assert story.when(SubmitResult(job_id, Fence(1), Raw(b'{"x":1}'))).decided().events


def test_in_a_report_it_stops_no_other_word() -> None:
    story, job_id = running(output_schema=NEEDS_X)
    words = (ReportedResult(job_id, Fence(1), Raw(b"1")),)
    decided = story.when(Report(ADA, Session("s1"), QUEUE, words)).decided()
    assert [refused.code for refused in decided.refused] == [Rejection.VALIDATION_FAILED]


def test_the_output_meets_the_schema_of_the_jobs_own_version() -> None:
    story, job_id = running()
    story.when(put(output_schema=NEEDS_X)).decided()
    assert story.when(SubmitResult(job_id, Fence(1), Raw(b"1"))).decided().events


def test_under_a_stale_fence_the_fence_is_what_is_wrong() -> None:
    story, job_id = running(output_schema=NEEDS_X)
    refused = story.when(SubmitResult(job_id, Fence(7), Raw(b"1"))).refused()
    assert refused.code == Rejection.LEASE_STALE
