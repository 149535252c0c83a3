"""A secret is shown nowhere by accident."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest
import structlog
from pydantic import BaseModel

from ledger.sealing.secret import Secret

CANARY = "canary-77aa"


class Settings(BaseModel):
    key: Secret


@pytest.mark.parametrize(
    "show",
    [str, repr, "{}".format, "{!r:>20}".format, "%s".__mod__, lambda s: f"{s:>9}", lambda s: [s]],
)
def test_a_secret_shows_as_stars(show: Callable[[Secret], Any]) -> None:
    shown = str(show(Secret(CANARY)))
    assert "***" in shown
    assert CANARY not in shown


@pytest.mark.parametrize("encode", [json.dumps, orjson.dumps, msgspec.json.encode, pickle.dumps])
def test_an_encoder_that_does_not_know_it_refuses_it(encode: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError) as raised:
        encode({"key": Secret(CANARY)})
    assert CANARY not in str(raised.value)


def test_a_copy_is_the_secret_itself() -> None:
    secret = Secret(CANARY)
    assert copy.deepcopy([secret])[0] is secret
    assert copy.copy(secret) is secret


def test_a_log_line_shows_stars() -> None:
    line = structlog.processors.JSONRenderer()(None, "info", {"event": "x", "key": Secret(CANARY)})
    assert json.loads(line)["key"] == "***"


def test_a_pydantic_model_takes_a_secret_and_shows_stars() -> None:
    for model in (
        Settings(key=Secret(CANARY)),
        Settings.model_validate({"key": CANARY}),
        Settings.model_validate_json(json.dumps({"key": CANARY})),
    ):
        assert model.key.reveal() == CANARY
        assert model.model_dump_json() == '{"key":"***"}'
        assert CANARY not in repr(model) + str(model) + str(model.model_dump())
    assert Settings.model_json_schema()["properties"]["key"]["type"] == "string"


def test_secrets_are_equal_by_their_text() -> None:
    assert Secret(CANARY) == Secret(CANARY)
    assert len({Secret(CANARY), Secret(CANARY)}) == 1
    assert Secret(CANARY) != Secret("other")
    assert Secret(CANARY) != CANARY
    assert Secret("\ud800") == Secret("\ud800")
