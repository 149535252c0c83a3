"""The templates of examples/ai_runtime_jobs say what S1 asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from ledger.client.requests import checked_command
from ledger.domain.commands import PutTemplate, Template
from ledger.domain.ids import CommandId

FILES = sorted((Path(__file__).parents[3] / "examples/ai_runtime_jobs/templates").glob("*.json"))


def test_the_five_types_are_there() -> None:
    assert [file.stem for file in FILES] == [
        "flashcard_generation",
        "learning_state_analysis",
        "next_action_planning",
        "quiz_generation",
        "weak_point_analysis",
    ]


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def content(request: pytest.FixtureRequest) -> dict[str, Any]:
    template: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    assert template.pop("type") == request.param.stem
    assert template.pop("queue") == "ai"
    return template


def test_the_owner_takes_it(content: dict[str, Any]) -> None:
    body = {"queue": "ai", "type": "x", "template": content}
    checked_command(PutTemplate.TYPE, body, CommandId("c"), source="tests")


def test_it_says_what_s1_says(content: dict[str, Any]) -> None:
    template = msgspec.convert({k: v for k, v in content.items() if "schema" not in k}, Template)
    assert template.idempotency_scope == (
        "/labels/user",
        "/type",
        "/labels/target_type",
        "/labels/target_id",
    )
    assert (template.timeout_seconds, template.lease_seconds, template.priority) == (120, 60, 0)
    assert template.retry.max_attempts == 4
    assert template.retry.retryable_codes == (
        "MODEL_TIMEOUT",
        "MODEL_RATE_LIMIT",
        "NETWORK_ERROR",
        "TEMPORARY_PROVIDER_ERROR",
        "JOB_TIMEOUT",
    )
    assert template.retry.fatal_codes == (
        "INVALID_SNAPSHOT",
        "INVALID_SCHEMA",
        "INVALID_CREDENTIAL",
    )


def test_its_schemas_are_schemas(content: dict[str, Any]) -> None:
    for name in ("payload_schema", "output_schema"):
        Draft202012Validator.check_schema(content[name])
    inputs = Draft202012Validator(content["payload_schema"])
    assert not inputs.is_valid({})
    assert inputs.is_valid({"snapshot_id": "s", "snapshot": {}, "params": {"count": 1}})
