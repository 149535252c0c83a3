"""Which jobs may be beside their equals: repeatable, concurrency policies, dedupe keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.commands import (
    CancelJob,
    CancelPolicy,
    FailAttempt,
    LockJob,
    PutQueue,
    PutTemplate,
    QueueSettings,
    RequestJob,
    RerunJob,
    SubmitResult,
    Template,
)
from ledger.domain.decide import Decided
from ledger.domain.events import (
    CancelRequested,
    CommandDuplicated,
    CommandRejected,
    JobCancelled,
    JobRequested,
)
from ledger.domain.ids import Fence, JobId
from ledger.domain.job import status
from ledger.domain.partition import Bounds
from ledger.domain.rejections import Rejection
from tests.support.builders import ADA, OK, QUEUE
from tests.support.clock import after
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S2.2", "S3.5")

REQUEST = RequestJob("report", scope="s")


def under(policy: str = "allow_parallel", **fields: Any) -> Given:
    return put(given(), concurrency_policy=policy, **fields)


def put(story: Given, **fields: Any) -> Given:
    story.when(PutTemplate(QUEUE, "report", Template(**fields))).decided()
    return story


def ask(story: Given, request: Any = REQUEST) -> JobId:
    job_id = story.when(request).decided().job_id
    assert job_id is not None
    return job_id


def lease(story: Given, job_id: JobId) -> Fence:
    story.when(LockJob(job_id, ADA)).decided()
    return story.known(job_id).fence


def end(story: Given, job_id: JobId, how: str) -> None:
    match how:
        case "succeeded":
            story.when(SubmitResult(job_id, lease(story, job_id), OK)).decided()
        case "failed":
            fence = lease(story, job_id)
            story.when(FailAttempt(job_id, fence, "BROKEN", retryable=False)).decided()
        case "cancelled":
            story.when(CancelJob(job_id)).decided()
        case _:
            story.owner.clock.pass_seconds(11)
            story.owner.fire()
    assert story.known(job_id).end == how


# --- reject_same_scope ---------------------------------------------------------------------------
def test_an_equal_of_an_open_job_is_refused_and_told_its_id() -> None:
    story = under("reject_same_scope")
    first = ask(story)
    refused = story.when(REQUEST).then(Rejection.DUPLICATE_ACTIVE).refusal
    assert refused.job_id == first


def test_the_refusal_is_recorded_with_the_id_of_the_one_that_stands() -> None:
    story = under("reject_same_scope")
    first = ask(story)
    story.when(REQUEST, "again").refused()
    assert story.when(REQUEST, "again").refused().job_id == first
    entry = story.owner.entries[-1]
    event = entry.events[0]  # type: ignore[union-attr]
    assert isinstance(event, CommandRejected)
    assert event.job_id == first


def test_other_values_are_other_jobs() -> None:
    story = under("reject_same_scope")
    assert ask(story) != ask(story, RequestJob("report", scope="t"))


def test_other_types_have_keys_of_their_own() -> None:
    story = under("reject_same_scope")
    story.when(
        PutTemplate(QUEUE, "quiz", Template(concurrency_policy="reject_same_scope"))
    ).decided()
    assert ask(story) != ask(story, RequestJob("quiz", scope="s"))


def test_a_pointer_that_finds_nothing_never_matches() -> None:
    story = under("reject_same_scope", dedupe_keys=("/scope", "/labels/user"))
    assert ask(story) != ask(story)


@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled", "expired"])
def test_a_winner_that_has_ended_frees_the_key(how: str) -> None:
    fields = {"start_timeout_seconds": 10.0, "exhausted_as": "expired"} if how == "expired" else {}
    story = under("reject_same_scope", **fields)
    first = ask(story)
    end(story, first, how)
    assert ask(story) != first


def test_one_that_is_cancelling_has_not_ended() -> None:
    story = under("reject_same_scope")
    first = ask(story)
    lease(story, first)
    story.when(CancelJob(first)).decided()
    assert story.when(REQUEST).refused().code == Rejection.DUPLICATE_ACTIVE
    story.when(after(31)).owner.fire()
    assert ask(story) != first


def test_a_retry_does_not_meet_its_own_key() -> None:
    story = under("reject_same_scope")
    first = ask(story)
    story.when(FailAttempt(first, lease(story, first), "BROKEN")).decided()
    story.owner.clock.pass_seconds(10)
    story.owner.fire()
    assert lease(story, first) == 2
    assert story.when(REQUEST).refused().code == Rejection.DUPLICATE_ACTIVE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"x":{"a":1,"b":2.0}}', b'{ "x": {"b":2, "a":1.0} }'),
        (b'{"x":"\\u00e9"}', b'{"x":"\xc3\xa9"}'),
    ],
)
def test_values_are_compared_in_their_canonical_form(one: bytes, other: bytes) -> None:
    story = under("reject_same_scope", dedupe_keys=("/payload/x",))
    ask(story, RequestJob("report", payload=Raw(one)))
    refused = story.when(RequestJob("report", payload=Raw(other))).refused()
    assert refused.code == Rejection.DUPLICATE_ACTIVE


def test_a_number_without_a_canonical_form_is_refused_with_its_place() -> None:
    story = under("reject_same_scope", dedupe_keys=("/payload/x",))
    asked = RequestJob("report", payload=Raw(b'{"x":9007199254740993}'))
    refused = story.when(asked).then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer is not None
    assert refused.pointer.startswith("/payload")


def test_an_instant_may_be_a_key() -> None:
    asked = RequestJob("report", run_at=datetime(2027, 1, 1, tzinfo=UTC))
    story = under("reject_same_scope", dedupe_keys=("/run_at",))
    first = ask(story, asked)
    assert story.when(asked).refused().job_id == first


# --- replace_existing ----------------------------------------------------------------------------
def test_a_pending_one_is_cancelled_in_the_entry_of_the_one_that_replaces_it() -> None:
    story = under("replace_existing")
    first = ask(story)
    decided = story.when(REQUEST).decided()
    requested, cancelled = decided.events
    assert isinstance(requested, JobRequested)
    assert isinstance(cancelled, JobCancelled)
    assert (cancelled.job_id, cancelled.replaced_by) == (first, requested.job_id)
    assert story.known(first).replaced_by == decided.job_id


def test_a_running_one_is_asked_to_stop_and_the_new_one_is_pending_beside_it() -> None:
    story = under("replace_existing")
    first = ask(story)
    lease(story, first)
    decided = story.when(REQUEST).decided()
    assert isinstance(decided.events[1], CancelRequested)
    assert decided.job_id is not None
    assert [status(story.known(job_id)) for job_id in (first, decided.job_id)] == [
        "cancelling",
        "pending",
    ]


def test_one_that_is_cancelling_already_is_not_asked_again() -> None:
    story = under("replace_existing")
    lease(story, ask(story))
    second = ask(story)
    decided = story.when(REQUEST).decided()
    assert [type(event) for event in decided.events] == [JobRequested, JobCancelled]
    assert decided.events[1].job_id == second  # type: ignore[union-attr]


def test_a_copy_of_a_request_that_replaced_another_makes_no_third_job() -> None:
    story = under("replace_existing")
    ask(story)
    second = story.when(REQUEST, "same").decided().job_id
    again = story.when(REQUEST, "same").decided()
    assert (again.events, again.job_id) == ((), second)


def test_a_keyed_rerun_that_replaces_another_is_answered_with_its_own_job() -> None:
    story = under("replace_existing")
    first = ask(story)
    end(story, first, "failed")
    ask(story)
    rerun = story.when(RerunJob(first), "ik.key.content").decided()
    again = story.when(RerunJob(first), "ik.key.content").decided()
    assert again.job_id == rerun.job_id


def test_what_cannot_be_cancelled_is_not_replaced() -> None:
    """The open one holds an older version, which allows no cancel."""
    story = put(given(), cancel=CancelPolicy(supported=False))
    first = ask(story)
    put(story, concurrency_policy="replace_existing")
    refused = story.when(REQUEST).then(Rejection.CANCEL_NOT_SUPPORTED).refusal
    assert refused.job_id == first
    assert len(story.owner.partition.jobs) == 1


def test_replacing_needs_no_room_for_one_more() -> None:
    story = under("replace_existing")
    story.when(PutQueue(QUEUE, QueueSettings(depth_max=1))).decided()
    first = ask(story)
    assert ask(story) != first
    assert story.when(RequestJob("report")).refused().code == Rejection.QUEUE_FULL


# --- share_in_flight -----------------------------------------------------------------------------
def test_an_open_job_answers_for_its_equals() -> None:
    story = under("share_in_flight")
    first = ask(story)
    decided = story.when(REQUEST).decided()
    assert (decided.events, decided.job_id, decided.deduplicated) == ((), first, True)


def test_once_it_has_ended_the_same_may_run_again() -> None:
    story = under("share_in_flight")
    first = ask(story)
    end(story, first, "succeeded")
    assert ask(story) != first


def test_a_key_that_was_answered_by_a_shared_job_stands_for_it_after_its_end() -> None:
    story = under("share_in_flight")
    first = ask(story)
    keyed = msgspec.structs.replace(REQUEST, idempotency_key="k")
    shared = story.when(keyed).decided()
    assert isinstance(shared.events[0], CommandDuplicated)
    end(story, first, "succeeded")
    again = story.when(keyed).decided()
    assert (again.job_id, again.deduplicated, again.replayed) == (first, True, True)
    other = msgspec.structs.replace(keyed, priority=1)
    assert story.when(other).refused().code == Rejection.IDEMPOTENCY_KEY_REUSED


def test_a_copy_of_a_request_that_was_answered_by_another_makes_no_job_later() -> None:
    story = under("share_in_flight")
    first = ask(story)
    story.when(REQUEST, "same").decided()
    end(story, first, "succeeded")
    again = story.when(REQUEST, "same").decided()
    assert (again.events, again.job_id) == ((), first)


def test_one_that_is_being_cancelled_is_shared_no_more() -> None:
    story = under("share_in_flight")
    first = ask(story)
    lease(story, first)
    story.when(CancelJob(first)).decided()
    second = ask(story)
    assert second != first
    assert ask(story) == second


def test_sharing_needs_no_room() -> None:
    story = under("share_in_flight")
    story.when(PutQueue(QUEUE, QueueSettings(depth_max=1))).decided()
    assert ask(story) == ask(story)


# --- repeatable ----------------------------------------------------------------------------------
def test_what_is_done_once_is_refused_once_an_equal_has_succeeded() -> None:
    story = under(repeatable=False)
    first = ask(story)
    end(story, first, "succeeded")
    refused = story.when(REQUEST).then(Rejection.NOT_REPEATABLE).refusal
    assert refused.job_id == first


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_one_that_did_not_succeed_may_be_done_again(how: str) -> None:
    story = under(repeatable=False)
    first = ask(story)
    end(story, first, how)
    assert ask(story) != first


def test_it_is_refused_for_ever() -> None:
    story = put(given(bounds=Bounds(closed_max=0)), repeatable=False)
    first = ask(story)
    end(story, first, "succeeded")
    story.owner.clock.pass_seconds(100 * 86_400)
    for _ in range(10):
        ask(story, RequestJob("report"))
    assert story.owner.partition.job(first) is None
    assert story.when(REQUEST).refused().job_id == first


def test_an_open_equal_stands_in_nobodys_way_unless_the_policy_says_so() -> None:
    story = under(repeatable=False)
    assert ask(story) != ask(story)


# --- Which version speaks ------------------------------------------------------------------------
def test_the_policy_is_the_newest_ones_also_for_a_request_of_an_older_version() -> None:
    story = under("allow_parallel")
    first = ask(story)
    put(story, concurrency_policy="reject_same_scope")
    old = RequestJob("report", scope="s", template_version=1)
    assert story.when(old).refused().job_id == first


def test_the_keys_are_those_of_the_version_that_a_job_holds() -> None:
    story = under("reject_same_scope", dedupe_keys=("/scope",))
    first = ask(story)
    put(story, concurrency_policy="reject_same_scope", dedupe_keys=("/labels/user",))
    assert ask(story) != first
    old = RequestJob("report", scope="s", template_version=1)
    assert story.when(old).refused().job_id == first


def test_equals_that_one_policy_let_in_are_all_replaced_by_the_next() -> None:
    story = under("allow_parallel")
    both = {ask(story), ask(story)}
    put(story, concurrency_policy="replace_existing")
    events = story.when(REQUEST).decided().events[1:]
    assert {event.job_id for event in events} == both  # type: ignore[union-attr]


# --- Reruns --------------------------------------------------------------------------------------
@pytest.mark.rule("S1.9")
def test_a_rerun_obeys_the_policy() -> None:
    story = under("reject_same_scope")
    first = ask(story)
    end(story, first, "failed")
    second = ask(story)
    assert story.when(RerunJob(first)).then(Rejection.DUPLICATE_ACTIVE).refusal.job_id == second


@pytest.mark.rule("S1.9")
def test_a_rerun_with_other_labels_is_compared_by_those() -> None:
    story = under("reject_same_scope", dedupe_keys=("/labels/user",))
    first = ask(story, RequestJob("report", labels={"user": "1"}))
    end(story, first, "failed")
    second = ask(story, RequestJob("report", labels={"user": "2"}))
    refused = story.when(RerunJob(first, labels={"user": "2"})).refused()
    assert refused.job_id == second
    assert isinstance(story.when(RerunJob(first)).decided(), Decided)


@pytest.mark.rule("S1.9", "S2.1")
def test_a_reruns_payload_meets_the_schema() -> None:
    story = put(given(), payload_schema=Raw(b'{"required":["x"]}'))
    first = ask(story, RequestJob("report", payload=Raw(b'{"x":1}')))
    end(story, first, "failed")
    story.when(RerunJob(first, payload=Raw(b"{}"))).then(Rejection.VALIDATION_FAILED)
    story.when(RerunJob(first, payload=Raw(b'{"x":2}'))).decided()


@pytest.mark.rule("S1.9")
def test_a_rerun_of_what_is_done_once_is_refused() -> None:
    story = under(repeatable=False)
    first = ask(story)
    end(story, first, "succeeded")
    assert story.when(RerunJob(first)).then(Rejection.NOT_REPEATABLE).refusal.job_id == first


def test_without_a_template_nothing_is_equal() -> None:
    story = given()
    assert ask(story) != ask(story)
