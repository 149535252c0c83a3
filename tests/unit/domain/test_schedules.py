"""Schedules: a job at each of their times, exactly once, whatever is said of them meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.commands import (
    CancelPolicy,
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    PutQueue,
    PutSchedule,
    PutTemplate,
    QueueSettings,
    RunSchedule,
    Schedule,
    Template,
)
from ledger.domain.decide import decide
from ledger.domain.events import (
    CancelRequested,
    JobRequested,
    ScheduleDeleted,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
)
from ledger.domain.ids import Micros, micros, new_job_id
from ledger.domain.rejections import Rejection
from tests.support.builders import ADA, QUEUE, instant, lock
from tests.support.clock import NOON
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S2.6")

HOUR = 3600.0


def put(cron: str = "* * * * *", **fields: Any) -> PutSchedule:
    return PutSchedule(QUEUE, "nightly", Schedule(cron, "report", **fields))


def scheduled(cron: str = "* * * * *", **fields: Any) -> Given:
    story = given()
    story.when(put(cron, **fields), "the-put").decided()
    return story


def passing(story: Given, seconds: float) -> list[Any]:
    story.owner.clock.pass_seconds(seconds)
    return list(story.owner.fire_schedules())


def fired(events: list[Any]) -> list[Micros]:
    return [e.nominal_at for e in events if isinstance(e, ScheduleFired)]


def its(story: Given) -> Any:
    return story.owner.partition.queue(QUEUE).schedules.get("nightly")


# --- An occurrence -------------------------------------------------------------------------------
def test_an_occurrence_is_a_job_with_what_the_schedule_says() -> None:
    story = scheduled(payload=Raw(b'{"x":1}'), labels={"user": "1"}, scope="s")
    requested, event = passing(story, 60)
    assert isinstance(requested, JobRequested)
    assert (requested.type, requested.payload, requested.labels, requested.scope) == (
        "report",
        Raw(b'{"x":1}'),
        {"user": "1"},
        "s",
    )
    assert requested.schedule == "nightly"
    assert event == ScheduleFired(
        QUEUE, "nightly", instant(60), requested.job_id, next_at=instant(120)
    )


def test_its_id_derives_from_the_put_and_the_nominal_time() -> None:
    requested = passing(scheduled(), 75)[0]
    assert requested.job_id == new_job_id(QUEUE, instant(60), f"the-put@{instant(60)}".encode())


def test_each_time_comes_once_however_often_one_looks() -> None:
    story = scheduled()
    events = [*passing(story, 60), *passing(story, 0), *passing(story, 30), *passing(story, 30)]
    assert fired(events) == [instant(60), instant(120)]


def test_a_take_over_neither_loses_nor_doubles_one() -> None:
    story = scheduled()
    first = passing(story, 60)
    story.owner.partition = story.owner.folded_anew()
    story.owner.invariants.partition = story.owner.partition
    story.owner.take_over()
    assert fired([*first, *passing(story, 0), *passing(story, 60)]) == [instant(60), instant(120)]


def test_what_the_rules_refuse_is_an_event_and_counts_as_its_run() -> None:
    story = scheduled(scope="s")
    story.when(
        PutTemplate(QUEUE, "report", Template(concurrency_policy="reject_same_scope"))
    ).decided()
    job_id = passing(story, 60)[0].job_id
    (event,) = passing(story, 60)
    assert (event.job_id, event.code) == (None, Rejection.DUPLICATE_ACTIVE)
    assert (its(story).last_job_id, its(story).last_run_at) == (job_id, instant(120))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (PutTemplate(QUEUE, "report", Template(enabled=False)), Rejection.TEMPLATE_DISABLED),
        (PutTemplate(QUEUE, "report", Template(schedulable=False)), Rejection.NOT_SCHEDULABLE),
        (PutQueue(QUEUE, QueueSettings(depth_max=0)), Rejection.QUEUE_FULL),
        (
            PutTemplate(QUEUE, "report", Template(payload_schema=Raw(b'{"required":["x"]}'))),
            Rejection.VALIDATION_FAILED,
        ),
    ],
)
def test_each_rule_for_requests_holds_for_occurrences(said: Any, code: Rejection) -> None:
    story = scheduled()
    story.when(said).decided()
    (event,) = passing(story, 60)
    assert (event.code, event.next_at) == (code, instant(120))


def test_an_occurrence_shares_the_job_that_is_in_flight() -> None:
    story = scheduled(scope="s")
    story.when(
        PutTemplate(QUEUE, "report", Template(concurrency_policy="share_in_flight"))
    ).decided()
    job_id = passing(story, 60)[0].job_id
    (event,) = passing(story, 60)
    assert (event.job_id, event.code) == (job_id, None)


def test_one_that_replaces_another_gives_it_its_whole_grace() -> None:
    """Also where it is noticed late, before an edit that was appended long ago."""
    story = given()
    template = Template(concurrency_policy="replace_existing", cancel=CancelPolicy(True, 20.0))
    story.when(PutTemplate(QUEUE, "report", template)).decided()
    story.when(put(scope="s", catch_up="all")).decided()
    first = passing(story, 60)[0].job_id
    story.when(lock(ADA, first)).decided()
    story.owner.clock.pass_seconds(62)
    edit = story.owner.asked(DisableSchedule(QUEUE, "nightly"))
    story.owner.clock.pass_seconds(30)
    events = story.owner.before(edit)
    (asked,) = [e for e in events if isinstance(e, CancelRequested)]
    assert asked.deadline == story.now + micros(20)


# --- What was missed -----------------------------------------------------------------------------
@pytest.mark.parametrize(("catch_up", "hours"), [("none", []), ("last", [3]), ("all", [1, 2, 3])])
def test_what_was_missed_is_made_up_for_as_the_policy_says(catch_up: Any, hours: list[int]) -> None:
    story = scheduled("0 * * * *", catch_up=catch_up)
    events = passing(story, 3.5 * HOUR)
    assert fired(events) == [instant(hour * HOUR) for hour in hours]
    assert its(story).next_at == instant(4 * HOUR)


def test_what_is_passed_over_is_an_event() -> None:
    (skipped,) = passing(scheduled("0 * * * *", catch_up="none"), 3.5 * HOUR)
    assert isinstance(skipped, ScheduleSkipped)
    assert (skipped.count, skipped.first_at, skipped.next_at) == (
        3,
        instant(HOUR),
        instant(4 * HOUR),
    )


# --- Edits ---------------------------------------------------------------------------------------
def test_the_first_occurrence_comes_after_the_put() -> None:
    story = scheduled("0 12 * * *")
    assert its(story).next_at == instant(24 * HOUR)


def test_an_equal_put_is_no_news() -> None:
    story = scheduled(payload=Raw(b'{"x":1}'))
    assert story.when(put(payload=Raw(b'{"x":1}'))).decided().events == ()


@pytest.mark.parametrize(
    "edit",
    [
        put("0 0 1 1 *"),
        DeleteSchedule(QUEUE, "nightly"),
        DisableSchedule(QUEUE, "nightly"),
    ],
)
def test_an_edit_read_late_loses_no_occurrence_before_it_and_leaves_none_after_it(
    edit: Any,
) -> None:
    story = scheduled()
    story.owner.clock.pass_seconds(90)
    asked = story.owner.asked(edit)
    story.owner.clock.pass_seconds(50)
    before = story.owner.before(asked)
    assert fired(list(before)) == [instant(60)]
    story.owner.record(asked, decide(story.owner.partition, asked, story.now))
    assert passing(story, 0) == []


def test_a_backlog_of_edits_does_not_defeat_the_policy() -> None:
    """How late an occurrence is noticed is told by the clock, not by the edit's append."""
    story = scheduled("0 * * * *", catch_up="none")
    story.owner.clock.pass_seconds(HOUR + 10)
    asked = story.owner.asked(put("0 * * * *", catch_up="none", scope="s"))
    story.owner.clock.pass_seconds(5 * HOUR)
    assert fired(list(story.owner.before(asked))) == []


def test_deleted_and_put_again_it_does_not_repeat_a_time() -> None:
    """Both were appended before the time, and are read after it."""
    story = scheduled()
    story.owner.clock.pass_seconds(59)
    asked = [story.owner.asked(DeleteSchedule(QUEUE, "nightly")), story.owner.asked(put())]
    assert fired(passing(story, 2)) == [instant(60)]
    for one in asked:
        story.owner.hear(one)
    assert its(story).next_at == instant(120)


def test_a_disabled_one_misses_nothing_and_goes_on_when_it_is_enabled() -> None:
    story = scheduled()
    story.when(DisableSchedule(QUEUE, "nightly")).decided()
    assert passing(story, 600) == []
    story.when(EnableSchedule(QUEUE, "nightly")).decided()
    assert passing(story, 0) == []
    assert fired(passing(story, 60)) == [instant(660)]


def test_twice_enabled_or_disabled_is_no_news() -> None:
    story = scheduled()
    assert story.when(EnableSchedule(QUEUE, "nightly")).decided().events == ()
    story.when(DisableSchedule(QUEUE, "nightly")).decided()
    assert story.when(DisableSchedule(QUEUE, "nightly")).decided().events == ()


def test_put_disabled_it_has_no_next_time() -> None:
    story = scheduled(enabled=False)
    assert its(story).next_at is None
    assert passing(story, 600) == []


def test_deleted_it_is_not_found_any_more() -> None:
    story = scheduled()
    story.when(DeleteSchedule(QUEUE, "nightly")).then(
        ScheduleDeleted(QUEUE, "nightly"), again=Rejection.SCHEDULE_NOT_FOUND
    )
    for said in (EnableSchedule, DisableSchedule, RunSchedule, DeleteSchedule):
        assert story.when(said(QUEUE, "nightly")).refused().code == Rejection.SCHEDULE_NOT_FOUND


# --- By hand -------------------------------------------------------------------------------------
@pytest.mark.parametrize("enabled", [True, False])
def test_a_run_by_hand_is_beside_the_occurrences(enabled: bool) -> None:
    story = scheduled(enabled=enabled, scope="s")
    next_at = its(story).next_at
    story.owner.clock.pass_seconds(10)
    decided = story.when(RunSchedule(QUEUE, "nightly")).decided()
    assert decided.job_id is not None
    job = story.known(decided.job_id)
    assert (job.request.schedule, job.request.scope) == ("nightly", "s")
    known = its(story)
    assert (known.last_job_id, known.last_run_at) == (decided.job_id, instant(10))
    assert known.next_at == next_at


def test_a_run_by_hand_that_is_refused_is_a_refusal() -> None:
    story = scheduled()
    story.when(PutTemplate(QUEUE, "report", Template(enabled=False))).decided()
    story.when(RunSchedule(QUEUE, "nightly")).then(Rejection.TEMPLATE_DISABLED)


def test_a_copy_of_a_run_by_hand_makes_no_second_job_ever() -> None:
    story = scheduled("0 0 1 1 *")
    asked = story.owner.asked(RunSchedule(QUEUE, "nightly"))
    first = story.owner.hear(asked)
    again = story.owner.hear(asked)
    assert (again.job_id, getattr(again, "events", None)) == (first.job_id, ())
    story.owner.clock.pass_seconds(10 * HOUR)
    for _ in range(10):
        story.when(lock()).refused()
    late = story.owner.asked(RunSchedule(QUEUE, "nightly"), asked.command_id)

    refused = story.owner.hear(replace(late, sent_at=asked.sent_at))
    assert getattr(refused, "code", None) == Rejection.COMMAND_EXPIRED


# --- What makes no sense -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"cron": "60 * * * *"}, "/cron"),
        ({"cron": "@daily"}, "/cron"),
        ({"cron": "0 0 31 2 *"}, "/cron"),
        ({"timezone": "Mars/Phobos"}, "/timezone"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_place(
    fields: dict[str, Any], pointer: str
) -> None:
    refused = given().when(put(**fields)).then(Rejection.INVALID_SCHEDULE).refusal
    assert refused.pointer == pointer


def test_a_type_that_allows_none_is_refused() -> None:
    story = given()
    story.when(PutTemplate(QUEUE, "report", Template(schedulable=False))).decided()
    assert story.when(put()).then(Rejection.NOT_SCHEDULABLE).refusal.pointer == "/type"


def test_one_that_cannot_be_understood_any_more_is_parked_and_stops_no_other() -> None:
    story = scheduled()
    gone = Raw(b'{"cron":"* * * * *","type":"report","timezone":"Gone/Zone"}')
    story.also(
        SchedulePut(QUEUE, "another", gone, story.owner.asked(put()).command_id, instant(60))
    )
    events = passing(story, 60)
    assert fired(events) == [instant(60)]
    (stopped,) = [e for e in events if isinstance(e, ScheduleStopped)]
    assert stopped.name == "another"
    assert fired(passing(story, 60)) == [instant(120)]
    story.when(PutSchedule(QUEUE, "another", Schedule("* * * * *", "report"))).decided()
    assert len(fired(passing(story, 60))) == 2


def test_noon_is_a_whole_minute() -> None:
    """What the times above count from."""
    assert NOON % micros(60) == 0
