"""Idempotency: keys of requests, keys of other writes, and ids of commands that come twice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ledger.domain.commands import Asked, Claim, Command, PutTemplate, RequestJob, Template
from ledger.domain.decide import Decided, decide
from ledger.domain.events import CommandRejected, JobRequested
from ledger.domain.ids import CommandId, Micros, QueueName, micros
from ledger.domain.job import status
from ledger.domain.rejections import Rejected, Rejection
from tests.support.builders import (
    ADA,
    BOB,
    JOB,
    QUEUE,
    cancel,
    extended,
    fail,
    heartbeat,
    job_id,
    keyed,
    leased,
    lock,
    request,
    requested,
    result,
    started,
    succeeded,
)
from tests.support.clock import after
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S1.7")

DAY = 86_400


def ask(told: Given, command_id: str | None = None, **fields: Any) -> Decided | Rejected:
    """A request under the key `k`, unless told otherwise."""
    fields = {"idempotency_key": "k", **fields}
    payload = fields.pop("payload", None)
    return told.owner.hear(told.owner.asked(request(payload, **fields), command_id))


def made(decision: Decided | Rejected) -> JobRequested:
    assert isinstance(decision, Decided)
    [event] = decision.events
    assert isinstance(event, JobRequested)
    return event


def template(told: Given, **fields: Any) -> None:
    told.when(PutTemplate(QUEUE, "report", Template(**fields))).decided()


# --- Of requests ---------------------------------------------------------------------------------
def test_the_same_key_again_returns_the_first_job_whatever_has_become_of_it() -> None:
    told = given()
    first = made(ask(told, payload=b'{"a":1,"b":2}'))
    told.when(lock(ADA, first.job_id)).decided()
    again = ask(told, payload=b'{ "b":2, "a":1.0 }')
    assert again == Decided(job_id=first.job_id, deduplicated=True, replayed=True)
    told.when(type(cancel())(first.job_id)).decided()
    assert status(told.known(first.job_id)) == "cancelling"
    assert ask(told, payload=b'{"a":1,"b":2}') == again


@pytest.mark.parametrize(
    "other",
    [{"payload": b'{"a":2}'}, {"labels": {"user": "u"}}, {"priority": 1}, {"delay_seconds": 1.0}],
)
def test_the_same_key_with_other_content_is_an_error(other: dict[str, Any]) -> None:
    told = given()
    first = made(ask(told, payload=b'{"a":1}'))
    refused = ask(told, **{"payload": b'{"a":1}', **other})
    assert isinstance(refused, Rejected)
    assert refused.code is Rejection.IDEMPOTENCY_KEY_REUSED
    assert (refused.job_id, refused.pointer) == (first.job_id, "/idempotency_key")


def test_a_conflict_does_not_spoil_the_key() -> None:
    told = given()
    first = made(ask(told, payload=b'{"a":1}'))
    ask(told, payload=b'{"a":2}')
    again = ask(told, payload=b'{"a":1}')
    assert isinstance(again, Decided)
    assert again.job_id == first.job_id


def test_without_a_key_duplicates_are_allowed() -> None:
    told = given()
    first = made(ask(told, idempotency_key=None))
    second = made(ask(told, idempotency_key=None))
    assert first.job_id != second.job_id


def test_without_a_template_queue_and_type_belong_to_the_key() -> None:
    told = given()
    asks = [
        RequestJob(kind, queue, idempotency_key="k")
        for kind in ("a", "b")
        for queue in (QUEUE, QueueName("other"))
    ]
    jobs = {made(told.owner.hear(told.owner.asked(ask))).job_id for ask in asks}
    assert len(jobs) == 4


@pytest.mark.rule("S1.3")
def test_a_template_says_what_else_belongs_to_the_key() -> None:
    told = given()
    template(told, idempotency_scope=("/labels/user", "/payload/target/id"))
    first = made(ask(told, labels={"user": "1"}, payload=b'{"target":{"id":1}}'))
    made(ask(told, labels={"user": "2"}, payload=b'{"target":{"id":1}}'))
    made(ask(told, labels={"user": "1"}, payload=b'{"target":{"id":2}}'))
    again = ask(told, labels={"user": "1"}, payload=b'{"target":{"id":1}}')
    assert isinstance(again, Decided)
    assert again.job_id == first.job_id


def test_what_a_pointer_does_not_find_is_no_null_and_equals_itself() -> None:
    told = given()
    template(told, idempotency_scope=("/payload/user",))
    absent = made(ask(told))
    null = made(ask(told, payload=b'{"user":null}'))
    assert absent.job_id != null.job_id
    again = ask(told)
    assert isinstance(again, Decided)
    assert again.job_id == absent.job_id


@pytest.mark.parametrize(
    "pointer",
    [
        "/__class__",
        "/TYPE",
        "/payload/\u00b2",
        "/payload/0",
        "/payload/" + "9" * 200,
        "/retry/jitter",
    ],
)
def test_a_pointer_to_anything_at_all_raises_nothing(pointer: str) -> None:
    told = given()
    template(told, idempotency_scope=(pointer,))
    first = made(ask(told, payload=b"[1,2]"))
    again = ask(told, payload=b"[1,2]")
    assert isinstance(again, Decided)
    assert again.job_id == first.job_id


def test_a_key_is_remembered_for_a_week() -> None:
    told = given()
    first = made(ask(told))
    told.when(after(7 * DAY - 1)).then()
    again = ask(told)
    assert isinstance(again, Decided)
    assert again.job_id == first.job_id
    told.when(after(1)).then()
    assert made(ask(told)).job_id != first.job_id


def test_a_template_says_for_how_long() -> None:
    told = given()
    template(told, idempotency_seconds=1)
    first = made(ask(told))
    told.when(after(1)).then()
    assert made(ask(told)).job_id != first.job_id


def test_a_key_outlives_the_template_version_that_it_came_with() -> None:
    told = given()
    template(told)
    first = made(ask(told, template_version=1))
    told.when(type(cancel())(first.job_id)).decided()
    template(told, enabled=False)
    again = ask(told, template_version=1)
    assert isinstance(again, Decided)
    assert again.job_id == first.job_id


def test_an_integer_without_canonical_form_is_an_error_with_its_place() -> None:
    refused = ask(given(), payload=b'{"n":{"m":9007199254740993}}')
    assert isinstance(refused, Rejected)
    assert (refused.code, refused.pointer) == (Rejection.VALIDATION_FAILED, "/payload/n/m")


# --- What is too old to be known -----------------------------------------------------------------
def sent_before(told: Given, seconds: float, asked: Command) -> Decided | Rejected:
    """A copy that was sent so long ago, and was taken by the broker only now."""
    now = told.now
    copy = Asked(
        asked,
        CommandId("cmd-copy"),
        sent_at=Micros(now - micros(seconds)),
        appended_at=now,
        offset=told.owner.partition.requests,
    )
    return told.owner.hear(copy)


def test_a_keyed_request_older_than_its_window_is_refused() -> None:
    refused = sent_before(given(), 7 * DAY + 61, request(idempotency_key="k"))
    assert isinstance(refused, Rejected)
    assert refused.code is Rejection.COMMAND_EXPIRED


def test_a_request_without_a_key_is_refused_after_an_hour() -> None:
    refused = sent_before(given(), 3_661, request())
    assert isinstance(refused, Rejected)
    assert refused.code is Rejection.COMMAND_EXPIRED
    made(sent_before(given(), 3_600, request()))


def test_a_keyed_request_younger_than_its_template_is_known_by_its_id_alone() -> None:
    """Under another idempotency scope its key is another one: a copy would make a second job."""
    told = given()
    made(ask(told, "cmd-copy", labels={"user": "1"}))
    told.owner.clock.pass_seconds(2 * 3_600)
    for _ in range(20):
        told.when(request()).decided()
    template(told, idempotency_scope=("/labels/user",))
    refused = sent_before(told, 2 * 3_600, request(idempotency_key="k", labels={"user": "1"}))
    assert isinstance(refused, Rejected)
    assert refused.code is Rejection.COMMAND_EXPIRED
    made(ask(told, labels={"user": "1"}))


def test_a_keyed_request_that_comes_late_under_the_same_template_is_taken() -> None:
    told = given()
    template(told)
    told.owner.clock.pass_seconds(3 * DAY)
    made(sent_before(told, 2 * DAY, request(idempotency_key="k")))


@pytest.mark.parametrize("taking", [lock(BOB), Claim(BOB, (QUEUE,), ("report",))])
def test_an_old_copy_takes_no_lease_once_more(taking: Command) -> None:
    told = given(requested())
    refused = sent_before(told, 3_661, taking)
    assert isinstance(refused, Rejected)
    assert refused.code is Rejection.COMMAND_EXPIRED
    assert status(told.job) == "pending"
    assert isinstance(sent_before(given(requested()), 3_600, taking), Decided)


def test_a_request_that_waited_in_the_intake_is_not_old() -> None:
    told = given()
    asked = Asked(request(), CommandId("c"), sent_at=told.now, appended_at=told.now)
    told.owner.clock.pass_seconds(3 * DAY)
    assert isinstance(decide(told.owner.partition, asked, told.now), Decided)


@pytest.mark.parametrize("late", [0, 59, 119])
@pytest.mark.parametrize("key", ["k", None])
def test_no_copy_falls_between_being_remembered_and_being_too_old(
    late: int, key: str | None
) -> None:
    window = 7 * DAY if key else 3_600
    told = given()
    first = told.owner.asked(request(idempotency_key=key), "cmd-copy")
    told.owner.hear(first)
    job = next(iter(told.owner.partition.jobs))
    told.owner.clock.pass_seconds(window + late)
    for _ in range(20):
        told.when(request()).decided()
    copy = Asked(first.command, first.command_id, sent_at=first.sent_at, appended_at=told.now)
    decided = decide(told.owner.partition, copy, told.now)
    if isinstance(decided, Rejected):
        assert decided.code is Rejection.COMMAND_EXPIRED
    else:
        assert decided.job_id == job


# --- Of commands that come twice -----------------------------------------------------------------
def test_a_request_under_the_same_id_is_the_same_job() -> None:
    told = given()
    first = made(ask(told, "cmd-1", idempotency_key=None))
    again = ask(told, "cmd-1", idempotency_key=None)
    assert again == Decided(job_id=first.job_id, deduplicated=True, replayed=True)


def test_a_key_of_a_short_window_does_not_take_the_ids_place() -> None:
    told = given()
    template(told, idempotency_seconds=0)
    first = made(ask(told, "cmd-1"))
    told.owner.clock.pass_seconds(60)
    again = ask(told, "cmd-1")
    assert isinstance(again, Decided)
    assert again.job_id == first.job_id


def test_a_template_that_sees_another_key_in_it_does_not_make_it_another_command() -> None:
    told = given()
    first = made(ask(told, "cmd-1"))
    template(told, idempotency_scope=("/labels/user",))
    again = ask(told, "cmd-1")
    assert isinstance(again, Decided)
    assert again.job_id == first.job_id


def test_a_request_that_an_earlier_job_answered_is_answered_by_it_for_good() -> None:
    told = given()
    template(told, idempotency_seconds=1)
    first = made(ask(told, "cmd-1"))
    assert ask(told, "cmd-2") == Decided(job_id=first.job_id, deduplicated=True, replayed=True)
    told.when(after(1)).then()
    assert ask(told, "cmd-2") == Decided(job_id=first.job_id, deduplicated=True, replayed=True)
    assert made(ask(told, "cmd-3")).job_id != first.job_id


def test_two_jobs_of_one_key_in_one_millisecond_have_two_ids() -> None:
    told = given()
    template(told, idempotency_seconds=0)
    jobs = {made(ask(told)).job_id for _ in range(3)}
    assert len(jobs) == 3


def test_a_refused_request_stays_refused_under_its_id() -> None:
    told = given()
    template(told, enabled=False)
    told.when(request(), "cmd-1").then(Rejection.TEMPLATE_DISABLED)
    template(told, enabled=True)
    told.when(request(), "cmd-1").then(Rejection.TEMPLATE_DISABLED)
    made(ask(told, "cmd-2"))


# --- Under an Idempotency-Key on other routes ----------------------------------------------------
def test_a_keyed_write_has_the_same_answer_again() -> None:
    told = given(requested()).when(lock(), keyed("lock", "a")).then(leased())
    ended = told.when(result(), keyed("result", "a")).then(started(), succeeded())
    again = ended.when(lock(), keyed("lock", "a")).decided()
    assert again.replayed
    assert [grant.fence for grant in again.grants] == [1]
    assert ended.when(result(), keyed("result", "a")).decided().replayed


def test_a_keyed_heartbeat_still_speaks_of_its_job() -> None:
    told = given(requested(), leased(), started(), after(20))
    told.when(heartbeat(), keyed("beat", "a")).then(extended())
    assert told.when(heartbeat(), keyed("beat", "a")).decided() == Decided(
        job_id=JOB, replayed=True
    )


def test_the_answer_stays_however_often_it_is_asked_for() -> None:
    told = given(requested()).when(lock(), keyed("lock", "a")).then(leased())
    answers = [told.when(lock(), keyed("lock", "a")).decided() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]


def test_another_body_under_the_key_is_an_error_and_does_not_spoil_it() -> None:
    told = given(requested()).when(lock(ADA), keyed("lock", "a")).then(leased())
    told.when(lock(BOB), keyed("lock", "b")).then(Rejection.IDEMPOTENCY_KEY_REUSED)
    again = told.when(lock(ADA), keyed("lock", "a")).decided()
    assert [grant.runtime_id for grant in again.grants] == [ADA]


def test_a_keyed_refusal_is_the_same_again() -> None:
    told = given(requested(), leased(BOB)).when(lock(), keyed("lock", "a"))
    refused = told.then(Rejection.JOB_ALREADY_LOCKED)
    refused.when(result()).decided()
    later = refused.when(lock(), keyed("lock", "a")).refused()
    assert later == replace(refused.refusal, replayed=True)


def test_a_passing_refusal_binds_no_key() -> None:
    told = given(requested())
    full = CommandRejected(QUEUE, keyed("lock", "a"), lock().TYPE, "QUEUE_FULL")
    told.owner.append(full, cause=f"a:{keyed('lock', 'a')}")
    told.when(lock(), keyed("lock", "a")).then(leased())


def test_a_refusal_of_a_later_version_binds_nothing_here() -> None:
    told = given(requested())
    odd = CommandRejected(QUEUE, keyed("lock", "a"), lock().TYPE, "MOON_IN_RETROGRADE")
    told.owner.append(odd, cause=f"a:{keyed('lock', 'a')}")
    told.when(lock(), keyed("lock", "a")).then(leased())


def test_a_keyed_template_keeps_its_version_after_others() -> None:
    told = given()
    first = PutTemplate(QUEUE, "report", Template(title="one"))
    other = PutTemplate(QUEUE, "report", Template(title="two"))
    assert told.when(first, keyed("put", "a")).decided().template_version == 1
    assert told.when(other).decided().template_version == 2
    again = told.when(first, keyed("put", "a")).decided()
    assert (again.events, again.template_version) == ((), 1)


def test_a_claim_again_has_the_same_jobs() -> None:
    told = given(requested(), after(1), requested(job_id("second")))
    claim = Claim(ADA, (QUEUE,), ("report",), limit=2)
    first = told.when(claim, "cmd-claim").decided()
    assert [grant.job_id for grant in first.grants] == [JOB, job_id("second")]
    told.when(fail()).decided()
    again = told.when(claim, "cmd-claim").decided()
    assert again == Decided(grants=first.grants, replayed=True)


def test_an_outcome_is_forgotten_after_its_hour() -> None:
    told = given()
    ask(told, "cmd-1", idempotency_key=None)
    told.owner.clock.pass_seconds(3_600 + 300)
    for _ in range(20):
        told.when(request(payload=b"{}")).decided()
    assert told.owner.partition.outcomes.get("cmd-1") is None
