"""Queues as a whole: paused and resumed, and how many jobs may be pending."""

from __future__ import annotations

import pytest

from ledger.domain.commands import (
    CancelJob,
    Claim,
    LockJob,
    PauseQueue,
    PutQueue,
    QueueSettings,
    RequestJob,
    RerunJob,
    ResumeQueue,
    SubmitResult,
)
from ledger.domain.events import QueuePaused, QueuePut, QueueResumed
from ledger.domain.ids import QueueName
from ledger.domain.rejections import Rejection
from tests.support.builders import ADA, JOB, OK, QUEUE, leased, requested, runtime_started
from tests.support.clock import after
from tests.support.given import given

pytestmark = pytest.mark.rule("S3.6")

OTHER = QueueName("other")
PAUSED = QueuePaused(QUEUE, "repairs", "tester")


def claim(*queues: QueueName) -> Claim:
    return Claim(ADA, queues, ("report",))


# --- Pauses --------------------------------------------------------------------------------------
def test_a_pause_says_why_and_by_whom() -> None:
    given().when(PauseQueue(QUEUE, "repairs")).then(PAUSED)


def test_it_is_paused_once_and_resumed_once() -> None:
    story = given(PAUSED)
    assert story.when(PauseQueue(QUEUE, "again")).decided().events == ()
    story.when(ResumeQueue(QUEUE, "done")).then(QueueResumed(QUEUE, "done", "tester"))
    assert story.when(ResumeQueue(QUEUE)).decided().events == ()


def test_a_paused_queue_takes_jobs() -> None:
    assert given(PAUSED).when(RequestJob("report")).decided().job_id


def test_a_claim_passes_over_a_paused_queue() -> None:
    story = given(PAUSED, requested())
    theirs = story.when(RequestJob("report", queue=OTHER)).decided().job_id
    grants = story.when(claim(QUEUE, OTHER)).decided().grants
    assert [grant.job_id for grant in grants] == [theirs]


def test_a_claim_is_refused_only_if_all_its_queues_are_paused() -> None:
    story = given(PAUSED, requested())
    story.when(claim(QUEUE)).then(Rejection.QUEUE_PAUSED)
    assert story.when(claim(QUEUE, OTHER)).decided().grants == ()


def test_a_lock_is_refused_and_binds_no_key() -> None:
    story = given(PAUSED, requested())
    story.when(LockJob(JOB, ADA), "ik.key.content").refused()
    story.when(LockJob(JOB, ADA)).then(Rejection.QUEUE_PAUSED)
    story.when(ResumeQueue(QUEUE)).decided()
    assert story.when(LockJob(JOB, ADA), "ik.key.content").decided().grants


def test_nothing_of_it_is_assigned() -> None:
    story = given(PAUSED, requested(), runtime_started())
    assert story.owner.assign(ADA, "s1", 5) == []
    story.when(ResumeQueue(QUEUE)).decided()
    assert len(story.owner.assign(ADA, "s1", 5)) == 1


def test_who_holds_a_lease_goes_on() -> None:
    story = given(requested(), leased(), PAUSED)
    assert story.when(SubmitResult(JOB, story.job.fence, OK)).decided().events


def test_timers_go_on() -> None:
    story = given(requested(), leased(), PAUSED)
    story.when(after(60)).owner.fire()
    assert story.job.steps[0].failure is not None


# --- Depth ---------------------------------------------------------------------------------------
def test_settings_are_put_whole_and_equal_ones_are_no_news() -> None:
    story = given()
    put = PutQueue(QUEUE, QueueSettings(depth_max=1))
    assert isinstance(story.when(put).decided().events[0], QueuePut)
    assert story.when(put).decided().events == ()
    story.when(PutQueue(QUEUE, QueueSettings())).decided()
    assert story.owner.partition.queue(QUEUE).settings.depth_max is None


def test_a_full_queue_takes_no_more_and_its_refusal_binds_no_key() -> None:
    story = given(requested())
    story.when(PutQueue(QUEUE, QueueSettings(depth_max=1))).decided()
    keyed = RequestJob("report", idempotency_key="k")
    story.when(keyed, "same").then(Rejection.QUEUE_FULL)
    story.when(CancelJob(JOB)).decided()
    assert story.when(keyed, "same").decided().job_id


def test_delayed_jobs_count_and_leased_ones_do_not() -> None:
    story = given()
    story.when(PutQueue(QUEUE, QueueSettings(depth_max=1))).decided()
    job_id = story.when(RequestJob("report", delay_seconds=60.0)).decided().job_id
    assert job_id is not None
    assert story.when(RequestJob("report")).refused().code == Rejection.QUEUE_FULL
    story.owner.clock.pass_seconds(60)
    story.owner.fire()
    story.when(LockJob(job_id, ADA)).decided()
    assert story.when(RequestJob("report")).decided().job_id


def test_a_key_that_came_before_is_answered_by_a_full_queue_too() -> None:
    story = given()
    keyed = RequestJob("report", idempotency_key="k")
    first = story.when(keyed).decided().job_id
    story.when(PutQueue(QUEUE, QueueSettings(depth_max=0))).decided()
    assert story.when(keyed).decided().job_id == first


def test_a_rerun_needs_room_too() -> None:
    story = given(requested())
    story.when(CancelJob(JOB)).decided()
    story.when(PutQueue(QUEUE, QueueSettings(depth_max=0))).decided()
    story.when(RerunJob(JOB)).then(Rejection.QUEUE_FULL)


def test_a_bad_request_is_told_what_is_wrong_and_not_that_there_is_no_room() -> None:
    story = given()
    story.when(PutQueue(QUEUE, QueueSettings(depth_max=0))).decided()
    both = RequestJob("report", template_version=7)
    assert story.when(both).refused().code == Rejection.TEMPLATE_NOT_FOUND
