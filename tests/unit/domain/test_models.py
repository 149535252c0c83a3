"""Models: what one is the template of, and how many there may be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.commands import SECONDS_MAX, Limit, Model, PutModel, RetryAsk, Template
from ledger.domain.events import ModelPut
from ledger.domain.ids import MODELS_QUEUE
from ledger.domain.models import AROUND_CALL_SECONDS, MODELS_MAX, template_of
from ledger.domain.rejections import Rejection
from tests.support.given import given

URL = "http://model.example"


def model(**fields: Any) -> Model:
    return Model(base_url=URL, **fields)


def put(name: str) -> ModelPut:
    return ModelPut(MODELS_QUEUE, name, Raw(msgspec.json.encode(model(api_key=None))))


@pytest.mark.rule("S4.1", "S4.6")
def test_a_model_is_the_template_of_its_calls() -> None:
    template = template_of(model(timeout_seconds=5.0, failed_ttl_seconds=1.0))
    assert template == Template(
        timeout_seconds=5.0 + AROUND_CALL_SECONDS,
        retry=RetryAsk(position="tail"),
        failed_ttl_seconds=1.0,
    )


@pytest.mark.rule("S4.2")
def test_calls_at_once_are_limited_by_tenant() -> None:
    assert template_of(model(max_concurrency=2)).limits == (Limit(("/labels/tenant",), 2),)


@pytest.mark.parametrize("seconds", [0.0, SECONDS_MAX - 1.0, float(SECONDS_MAX)])
def test_the_template_of_any_model_can_be_read_again(seconds: float) -> None:
    content = msgspec.json.encode(template_of(model(timeout_seconds=seconds)))
    assert msgspec.json.decode(content, type=Template).timeout_seconds >= seconds


def test_there_may_be_so_many_models_and_no_more() -> None:
    told = given(*(put(f"m{n}") for n in range(MODELS_MAX)))
    refused = told.when(PutModel("one-more", model())).refused()
    assert (refused.code, refused.pointer) == (Rejection.VALIDATION_FAILED, "/name")
    decided = told.when(PutModel("m0", model(route="/v2"))).decided()
    assert len(decided.events) == 2
