"""Templates: versions, equal content, and what makes no sense."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.commands import PutTemplate, RequestJob, Template
from ledger.domain.events import TemplatePut
from ledger.domain.ids import QueueName
from ledger.domain.pointers import is_pointer, point
from ledger.domain.rejections import Rejection
from tests.support.builders import QUEUE, template_put
from tests.support.given import given

pytestmark = pytest.mark.rule("S1.1")


def put(queue: QueueName = QUEUE, **fields: Any) -> PutTemplate:
    return PutTemplate(queue, "report", Template(**fields))


def test_the_first_put_makes_version_one() -> None:
    told = given().when(put(title="x")).then(template_put(b'{"title":"x"}'))
    assert told.decision.template_version == 1  # type: ignore[union-attr]


def test_each_other_content_makes_the_next_version() -> None:
    told = given(template_put(b'{"title":"x"}'))
    more = told.when(put(title="y")).then(template_put(b'{"title":"y"}', version=2))
    more.when(put(title="x")).then(template_put(b'{"title":"x"}', version=3))


def test_equal_content_makes_none() -> None:
    told = given().when(put(payload_schema=Raw(b'{"type":"object","a":[1]}'))).decided()
    assert told.template_version == 1
    history = template_put(b'{"payload_schema":{"type":"object","a":[1]}}')
    again = given(history).when(put(payload_schema=Raw(b'{ "a": [1], "type":"object"}')))
    decided = again.decided()
    assert (decided.events, decided.template_version) == ((), 1)


def test_what_is_said_as_the_default_is_equal_to_what_is_not_said() -> None:
    decided = given(template_put()).when(put(priority=5, enabled=True)).decided()
    assert decided.events == ()


def test_each_queue_has_its_own() -> None:
    other = QueueName("other")
    decided = given(template_put()).when(put(other)).decided()
    assert decided.events == (TemplatePut(other, "report", 1, Raw(b"{}")),)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"idempotency_scope": ("/labels/user", "labels/user")}, "/idempotency_scope/1"),
        ({"idempotency_scope": ("",)}, "/idempotency_scope/0"),
        ({"idempotency_scope": ("/a~2",)}, "/idempotency_scope/0"),
        ({"idempotency_scope": ("/" + "a" * 300,)}, "/idempotency_scope/0"),
        ({"idempotency_scope": ("/type",) * 21}, "/idempotency_scope"),
        ({"overridable": ("labels", "colour")}, "/overridable/1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(
    fields: dict[str, Any], pointer: str
) -> None:
    assert given().when(put(**fields)).then(Rejection.VALIDATION_FAILED).refusal.pointer == pointer


def test_the_newest_and_those_of_open_jobs_are_held() -> None:
    told = given(template_put(b'{"title":"1"}'))
    job = told.when(RequestJob("report")).decided().job_id
    told.also(template_put(b'{"title":"2"}', version=2), template_put(version=3))
    held = told.owner.partition.queue(QUEUE).templates["report"]
    assert sorted(held) == [1, 3]
    assert job is not None


# --- Pointers ------------------------------------------------------------------------------------
ASKED = RequestJob(
    "report",
    payload=Raw(b'{"a":{"b~/c":[10,{"d":null}]},"":1,"0":2}'),
    labels={"user": "1", "x/y": "2"},
)


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("/type", "report"),
        ("/queue", "default"),
        ("/labels/user", "1"),
        ("/labels/x~1y", "2"),
        ("/payload/a/b~0~1c/0", 10),
        ("/payload/a/b~0~1c/1/d", None),
        ("/payload/", 1),
        ("/payload/0", 2),
    ],
)
def test_a_pointer_finds_what_it_names(pointer: str, found: object) -> None:
    assert is_pointer(pointer)
    assert point(ASKED, pointer) == found


@pytest.mark.parametrize(
    "pointer",
    [
        "/scope",
        "/run_at",
        "/labels/nobody",
        "/labels/user/0",
        "/payload/a/b~0~1c/2",
        "/payload/a/b~0~1c/-",
        "/payload/a/b~0~1c/00",
        "/payload/a/b~0~1c/\u0661",
        "/retry/max_attempts",
        "/TYPE",
        "/__class__/__name__",
        "",
        "labels",
    ],
)
def test_a_pointer_to_nothing_finds_nothing(pointer: str) -> None:
    assert point(ASKED, pointer) is msgspec.UNSET
