"""Limits: how many leases there may be among equal jobs, and who waits for one to end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from ledger.domain.commands import (
    CancelJob,
    Claim,
    FailAttempt,
    Limit,
    LockJob,
    PutQueue,
    PutTemplate,
    QueueSettings,
    ReleaseLease,
    RequestJob,
    SubmitResult,
    Template,
    WaitForCompletion,
)
from ledger.domain.ids import JobId, QueueName
from ledger.domain.ready import Lane
from ledger.domain.rejections import Rejection
from tests.support.builders import ADA, BOB, OK, QUEUE, job_id, requested
from tests.support.given import Given, at_its_time, given

pytestmark = pytest.mark.rule("S4.2", "S3.6")

TENANT = Limit(("/labels/tenant",), 1)
MODEL = Limit(("/labels/model",), 1)


def under(*limits: Limit, queue: tuple[Limit, ...] = ()) -> Given:
    story = given()
    declare(story, *limits)
    story.when(PutQueue(QUEUE, QueueSettings(limits=queue))).decided()
    return story


def declare(story: Given, *limits: Limit, kind: str = "report") -> None:
    story.when(PutTemplate(QUEUE, kind, Template(limits=limits))).decided()


def ask(story: Given, kind: str = "report", *, priority: int = 5, **labels: str) -> JobId:
    asked = RequestJob(kind, labels=labels, priority=priority)
    job_id = story.when(asked).decided().job_id
    assert job_id is not None
    return job_id


def claim(story: Given, many: int = 10, *types: str) -> list[JobId]:
    said = Claim(ADA, (QUEUE,), types or ("report", "quiz"), many)
    return [grant.job_id for grant in story.when(said).decided().grants]


def end(story: Given, job_id: JobId) -> None:
    story.when(SubmitResult(job_id, story.known(job_id).fence, OK)).decided()


def test_no_more_than_max_hold_a_lease_among_equals() -> None:
    story = under(Limit(("/labels/tenant",), 2))
    jobs = [ask(story, tenant="1") for _ in range(3)]
    other = ask(story, tenant="2")
    assert claim(story) == [*jobs[:2], other]
    assert claim(story) == []
    end(story, jobs[0])
    assert claim(story) == [jobs[2]]


def test_what_a_pointer_does_not_find_is_under_no_limit() -> None:
    story = under(TENANT)
    jobs = [ask(story) for _ in range(3)]
    assert claim(story) == jobs


def test_a_limit_of_no_pointers_counts_all_jobs_of_the_type() -> None:
    story = under(Limit((), 1))
    first, _ = ask(story), ask(story)
    quiz = ask(story, "quiz")
    assert claim(story) == [first, quiz]


def test_a_queues_limit_counts_all_its_types() -> None:
    story = under(queue=(Limit((), 1),))
    first, quiz = ask(story), ask(story, "quiz")
    assert claim(story) == [first]
    assert claim(story) == []
    end(story, first)
    assert claim(story) == [quiz]


@pytest.mark.parametrize("pointer", ["/payload/a/0", "/scope", "/type", "/labels/x~1y"])
def test_any_pointer_into_the_request_may_be_a_limits(pointer: str) -> None:
    story = under(Limit((pointer,), 1))
    asked = RequestJob("report", payload=Raw(b'{"a":[1.0]}'), scope="s", labels={"x/y": "1"})
    first = story.when(asked).decided().job_id
    story.when(asked).decided()
    assert claim(story) == [first]


def test_every_limit_of_a_job_counts() -> None:
    story = under(TENANT, MODEL)
    first = ask(story, tenant="1", model="m")
    same_tenant = ask(story, tenant="1", model="n")
    same_model = ask(story, tenant="2", model="m")
    assert claim(story) == [first]
    end(story, first)
    assert claim(story) == [same_tenant, same_model]


def test_max_zero_lets_none_through_until_it_is_raised() -> None:
    story = under(Limit((), 0))
    first = ask(story)
    assert claim(story) == []
    declare(story, Limit((), 1))
    assert claim(story) == [first]


# --- How a lease ends ----------------------------------------------------------------------------
def released(story: Given, job: JobId) -> None:
    story.when(ReleaseLease(job, story.known(job).fence)).decided()


def failed(story: Given, job: JobId) -> None:
    story.when(FailAttempt(job, story.known(job).fence, "BROKEN")).decided()


def waiting(story: Given, job: JobId) -> None:
    story.when(WaitForCompletion(job, story.known(job).fence, 600)).decided()


def lapsed(story: Given, job: JobId) -> None:
    story.owner.clock.pass_seconds(61)
    story.owner.fire()


def lapsed_after_a_take_over(story: Given, job: JobId) -> None:
    story.owner.clock.pass_seconds(30)
    story.owner.take_over()
    lapsed(story, job)


def cancelled(story: Given, job: JobId) -> None:
    story.when(CancelJob(job)).decided()
    story.owner.clock.pass_seconds(31)
    story.owner.fire()


@pytest.mark.parametrize(
    "ends", [end, failed, waiting, lapsed, lapsed_after_a_take_over, cancelled]
)
def test_whatever_ends_a_lease_frees_its_place(ends: Any) -> None:
    story = under(Limit((), 1))
    first, second = ask(story), ask(story)
    assert claim(story) == [first]
    assert claim(story) == []
    ends(story, first)
    assert claim(story) == [second]
    assert len(story.owner.partition.queue(QUEUE).limits.holders) == 1


def test_who_was_given_back_comes_again_before_those_behind_it() -> None:
    story = under(Limit((), 1))
    first, second = ask(story), ask(story)
    assert claim(story) == [first]
    assert claim(story) == []
    released(story, first)
    assert claim(story) == [first]
    end(story, first)
    assert claim(story) == [second]


def test_a_result_given_while_waiting_needs_no_place() -> None:
    story = under(Limit((), 1))
    first, second = ask(story), ask(story)
    claim(story)
    waiting(story, first)
    assert claim(story) == [second]
    end(story, first)
    assert story.known(first).end == "succeeded"


# --- Nobody starves ------------------------------------------------------------------------------
def test_a_job_that_was_cancelled_while_it_waited_keeps_nobody_from_its_turn() -> None:
    story = under(Limit((), 1))
    first, second, third = ask(story), ask(story), ask(story)
    assert claim(story) == [first]
    assert claim(story) == []
    story.when(CancelJob(second)).decided()
    end(story, first)
    assert claim(story) == [third]


def test_nor_does_one_that_is_cancelled_once_its_turn_has_come() -> None:
    story = under(TENANT, queue=(Limit((), 1),))
    first, second, third = (ask(story, tenant=name) for name in "123")
    assert claim(story) == [first]
    assert claim(story) == []
    end(story, first)
    story.when(CancelJob(second)).decided()
    assert claim(story) == [third]


def test_one_for_whom_no_runtime_comes_keeps_no_other_type_waiting() -> None:
    story = under(queue=(Limit((), 1),))
    first, _, quiz = ask(story), ask(story), ask(story, "quiz")
    assert claim(story, 10) == [first]
    assert claim(story, 10) == []
    end(story, first)
    assert claim(story, 10, "quiz") == [quiz]


def test_one_whom_another_limit_holds_back_keeps_nobody_waiting() -> None:
    story = under(TENANT, MODEL)
    holders = [ask(story, tenant="1", model="a"), ask(story, tenant="2", model="m")]
    assert claim(story) == holders
    ask(story, tenant="1", model="m")
    free = ask(story, tenant="1", model="b")
    assert claim(story) == []
    end(story, holders[0])
    assert claim(story) == [free]


def test_a_lock_takes_one_that_waits_and_another_comes_after_it() -> None:
    story = under(Limit((), 1))
    first, second, third = ask(story), ask(story), ask(story)
    claim(story)
    assert claim(story) == []
    end(story, first)
    story.when(LockJob(third, BOB)).decided()
    assert claim(story) == []
    end(story, third)
    assert claim(story) == [second]


def test_those_who_waited_come_by_priority_then_by_age() -> None:
    story = under(Limit((), 1))
    first = ask(story)
    assert claim(story) == [first]
    low, old, new = ask(story, priority=9), ask(story), ask(story)
    assert claim(story) == []
    high = ask(story, priority=0)
    done = first
    for following in (high, old, new, low):
        end(story, done)
        assert claim(story, 1) == [following]
        done = following


def test_one_search_finds_all_that_fit_together() -> None:
    """The first one found fills what the second needs: the third is looked for all the same."""
    story = under(TENANT, MODEL)
    holders = [ask(story, tenant="1", model="m"), ask(story, tenant="2", model="x")]
    claim(story)
    waits = ask(story, tenant="1", model="m")
    ask(story, tenant="2", model="m")
    free = ask(story, tenant="2", model="n")
    assert claim(story) == []
    for holder in holders:
        end(story, holder)
    assert claim(story) == [waits, free]


# --- Changes -------------------------------------------------------------------------------------
def test_a_raised_limit_is_of_effect_on_all_that_wait_at_once() -> None:
    story = under(Limit((), 1))
    jobs = [ask(story) for _ in range(3)]
    assert claim(story) == jobs[:1]
    assert claim(story) == []
    declare(story, Limit((), 3))
    assert claim(story) == jobs[1:]


def test_a_lowered_limit_takes_nothing_away_and_gives_nothing_more() -> None:
    story = under(Limit((), 3))
    jobs = [ask(story) for _ in range(4)]
    assert claim(story, 2) == jobs[:2]
    declare(story, Limit((), 1))
    assert claim(story) == []
    end(story, jobs[0])
    assert claim(story) == []
    end(story, jobs[1])
    assert claim(story) == [jobs[2]]


def test_a_limit_that_is_no_more_keeps_nobody() -> None:
    story = under(queue=(Limit((), 1),))
    jobs = [ask(story) for _ in range(2)]
    assert claim(story) == jobs[:1]
    assert claim(story) == []
    story.when(PutQueue(QUEUE, QueueSettings())).decided()
    assert claim(story) == jobs[1:]


def test_leases_from_before_a_limit_count_under_it() -> None:
    story = under()
    first = ask(story)
    claim(story)
    second = ask(story)
    declare(story, Limit((), 1))
    assert claim(story) == []
    end(story, first)
    assert claim(story) == [second]


def test_limits_are_the_newest_versions_for_jobs_of_older_ones() -> None:
    story = under(Limit((), 1))
    jobs = [ask(story), ask(story)]
    declare(story)
    assert claim(story) == jobs


# --- What is told --------------------------------------------------------------------------------
def test_a_lock_beyond_a_limit_is_refused_and_binds_no_key() -> None:
    story = under(Limit((), 1))
    first, second = ask(story), ask(story)
    claim(story)
    story.when(LockJob(second, BOB), "ik.key.content").refused()
    assert story.when(LockJob(second, BOB)).refused().code == Rejection.LIMIT_REACHED
    end(story, first)
    assert story.when(LockJob(second, BOB), "ik.key.content").decided().grants


def test_a_lock_of_one_that_is_leased_says_so_though_the_limit_is_full() -> None:
    story = under(Limit((), 1))
    first = ask(story)
    claim(story)
    assert story.when(LockJob(first, BOB)).refused().code == Rejection.JOB_ALREADY_LOCKED
    waiting(story, first)
    ask(story)
    claim(story)
    assert story.when(LockJob(first, BOB)).refused().code == Rejection.JOB_NOT_PENDING


@pytest.mark.parametrize("declared", ["template", "queue"])
def test_a_limits_pointer_must_be_one(declared: str) -> None:
    wrong = (TENANT, Limit(("/scope", "labels"), 1))
    said: Any = PutQueue(QUEUE, QueueSettings(limits=wrong))
    if declared == "template":
        said = PutTemplate(QUEUE, "report", Template(limits=wrong))
    refused = given().when(said).then(Rejection.VALIDATION_FAILED).refusal
    assert refused.pointer == "/limits/1/key/1"


def test_each_queue_counts_for_itself() -> None:
    other = QueueName("other")
    story = under(queue=(Limit((), 1),))
    first = ask(story)
    theirs = story.when(RequestJob("report", queue=other)).decided().job_id
    said = Claim(ADA, (QUEUE, other), ("report",), 5)
    assert [grant.job_id for grant in story.when(said).decided().grants] == [first, theirs]


# --- What it costs -------------------------------------------------------------------------------
def test_a_full_limit_is_looked_at_once_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    story = under(Limit((), 1))
    partition, clock = story.owner.partition, story.owner.clock
    now = clock.now
    jobs = [requested(job_id(f"j{n}"), order=now + n + 1) for n in range(10_000)]
    story.owner.append(*(at_its_time(job, now) for job in jobs))
    [(first, _)] = partition.best(QUEUE, ("report",), 1, clock.now)
    story.when(LockJob(first.id, ADA)).decided()
    assert partition.best(QUEUE, ("report",), 1, clock.now) == []
    looked = counted(monkeypatch, partition.queue(QUEUE).limits)
    assert partition.best(QUEUE, ("report",), 1, clock.now) == []
    end(story, first.id)
    [(second, _)] = partition.best(QUEUE, ("report",), 1, clock.now)
    assert second.order > first.order
    assert len(looked) < 20


def counted(monkeypatch: pytest.MonkeyPatch, limits: Any) -> list[object]:
    """Every place that is asked about from here on."""
    looked: list[object] = []
    parked = limits._parked
    is_live = parked._is_live

    def asked(place: Any) -> bool:
        looked.append(place)
        return bool(is_live(place))

    parked._is_live = asked
    in_lanes = Lane.__iter__

    def read(lane: Lane) -> Any:
        for place in in_lanes(lane):
            looked.append(place)
            yield place

    monkeypatch.setattr(Lane, "__iter__", read)
    return looked
