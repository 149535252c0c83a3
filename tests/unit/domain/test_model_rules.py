"""Models as they are told: put, put anew, called, deleted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledger.domain.commands import (
    Claim,
    DeleteModel,
    Model,
    PutModel,
    RequestJob,
    RerunJob,
    RetryAsk,
)
from ledger.domain.events import ModelDeleted, ModelPut, TemplatePut
from ledger.domain.ids import MODELS_QUEUE, JobId
from ledger.domain.rejections import Rejection
from tests.support.builders import ADA
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S4.1")


def put(**fields: Any) -> PutModel:
    return PutModel("gpt", Model("https://models.example", **fields))


def held(story: Given) -> Model:
    return story.owner.partition.queue(MODELS_QUEUE).models["gpt"]


def call(story: Given, **fields: Any) -> JobId:
    job_id = story.when(RequestJob("gpt", MODELS_QUEUE, **fields)).decided().job_id
    assert job_id is not None
    return job_id


def test_a_model_is_the_template_of_its_calls() -> None:
    story = given()
    model, template = (
        story.when(put(start_timeout_seconds=7.0, result_ttl_seconds=60.0)).decided().events
    )
    assert isinstance(model, ModelPut)
    assert isinstance(template, TemplatePut)
    job = story.known(call(story))
    assert (job.request.start_timeout_us, job.request.result_ttl_us) == (7_000_000, 60_000_000)
    assert job.request.template_version == 1


def test_equal_content_is_no_news() -> None:
    story = given()
    story.when(put(api_key="sealed")).decided()
    assert story.when(put(api_key="sealed")).decided().events == ()
    assert story.when(put()).decided().events == ()


def test_what_calls_do_not_depend_on_makes_no_version() -> None:
    story = given()
    story.when(put()).decided()
    (model,) = story.when(put(route="/v2")).decided().events
    assert isinstance(model, ModelPut)
    assert held(story).route == "/v2"


@pytest.mark.parametrize(
    ("said", "kept"), [({}, "sealed"), ({"api_key": None}, None), ({"api_key": "new"}, "new")]
)
def test_a_key_is_kept_until_it_is_replaced_or_removed(
    said: dict[str, Any], kept: str | None
) -> None:
    story = given()
    story.when(put(api_key="sealed")).decided()
    story.when(put(route="/v2", **said)).decided()
    assert held(story).api_key == kept


@pytest.mark.rule("S4.6")
@pytest.mark.parametrize(
    ("retry", "position"),
    [
        (None, "tail"),
        (RetryAsk(max_attempts=2), "tail"),
        (RetryAsk(max_attempts=2, position="keep"), "keep"),
    ],
)
def test_a_call_is_tried_again_at_the_tail_unless_the_model_says_otherwise(
    retry: RetryAsk | None, position: str
) -> None:
    story = given()
    story.when(put() if retry is None else put(retry=retry)).decided()
    assert story.known(call(story)).request.retry.position == position


@pytest.mark.rule("S4.2")
def test_calls_are_limited_per_tenant_and_model_and_those_of_nobody_together() -> None:
    story = given()
    story.when(put(max_concurrency=1)).decided()
    story.when(PutModel("other", Model("https://other.example"))).decided()
    mine = call(story, labels={"tenant": "1"})
    call(story, labels={"tenant": "1"})
    theirs = call(story, labels={"tenant": "2"})
    nobodys = call(story)
    call(story)
    others = story.when(RequestJob("other", MODELS_QUEUE, labels={"tenant": "1"})).decided().job_id
    said = Claim(ADA, (MODELS_QUEUE,), ("gpt", "other"), 10)
    granted = [grant.job_id for grant in story.when(said).decided().grants]
    assert granted == [mine, theirs, nobodys, others]


def test_a_call_of_no_model_is_refused() -> None:
    given().when(RequestJob("gpt", MODELS_QUEUE)).then(Rejection.MODEL_NOT_FOUND)


def test_deleted_it_takes_no_call_and_no_rerun() -> None:
    story = given()
    story.when(put()).decided()
    job_id = call(story)
    story.when(DeleteModel("gpt")).decided()
    assert story.when(RequestJob("gpt", MODELS_QUEUE)).refused().code == Rejection.MODEL_NOT_FOUND
    assert story.known(job_id).end is None
    assert story.when(DeleteModel("gpt")).refused().code == Rejection.MODEL_NOT_FOUND
    assert story.when(RerunJob(job_id)).refused().code == Rejection.JOB_NOT_CLOSED


def test_put_again_it_goes_on_with_the_next_version() -> None:
    story = given()
    story.when(put(api_key="sealed")).decided()
    deleted, closed = story.when(DeleteModel("gpt")).decided().events
    assert isinstance(deleted, ModelDeleted)
    assert isinstance(closed, TemplatePut)
    _, template = story.when(put()).decided().events
    assert isinstance(template, TemplatePut)
    assert (template.version, msgspec.json.decode(template.template).get("enabled", True)) == (
        3,
        True,
    )
    assert held(story).api_key is None
    assert call(story)


@pytest.mark.parametrize("address", ["models.example", "ftp://models.example", "https://a:b@c.d"])
def test_an_address_must_be_one(address: str) -> None:
    said = PutModel("gpt", Model(address))
    assert given().when(said).then(Rejection.VALIDATION_FAILED).refusal.pointer == "/base_url"
