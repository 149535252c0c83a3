from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from ledger.client.held import AskToStop, Stop, Why
from ledger.client.runtime_session import HELD_MAX, LISTED_SECONDS, PERIOD_SECONDS_MIN
from ledger.client.words import FACTS_MAX, INVALID_OUTPUT, PROGRESS_BYTES_MAX, WORDS_BYTES_MAX
from ledger.domain.commands import (
    ProgressSaid,
    Report,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedStart,
)
from ledger.log.connection import COMMAND_BYTES_MAX
from ledger.log.inbox import OwnerChanged
from tests.unit.client.scripted_owner import (
    LEASE_SECONDS,
    PERIOD_SECONDS,
    QUEUE,
    World,
    beat_of,
    job_id,
    leases_of,
    result,
    words_of,
)


@pytest.fixture
def world() -> World:
    return World()


# --- Beats ----------------------------------------------------------------------------------------
def test_no_slot_is_offered_until_the_inbox_is_read() -> None:
    world = World(opens=False)
    assert beat_of(world.speak()).slots == 0
    assert not world.is_due
    world.session.open_inbox()
    assert world.is_due
    assert beat_of(world.speak()).slots == 10
    assert not world.session.is_served
    world.answer()
    assert world.session.is_served


def test_other_types_are_offered_with_the_next_beat_which_is_due(world: World) -> None:
    assert not world.is_due
    world.session.offer(("echo",))
    assert not world.is_due
    world.session.offer(("echo", "write"))
    assert world.is_due
    assert beat_of(world.speak()).types == ("echo", "write")


def test_a_job_of_a_type_that_is_not_offered_any_more_is_given_back(world: World) -> None:
    [running] = world.assign(1)
    world.session.offer(("write",))
    assert world.assign(2) == []
    said = world.speak()
    assert beat_of(said).types == ("write",)
    assert [type(word) for word in words_of(said)] == [ReportedRelease]
    assert running.runs


def test_beats_are_numbered_within_the_session() -> None:
    world = World(opens=False)
    assert [beat_of(world.speak()).beat for _ in range(3)] == [1, 2, 3]


def test_an_answered_beat_is_repeated_once_a_period(world: World) -> None:
    assert world.session.due_at() == world.now + PERIOD_SECONDS


def test_an_unanswered_beat_is_repeated_sooner_then_less_and_less(world: World) -> None:
    pauses = []
    for _ in range(5):
        world.speak()
        pauses.append(world.session.due_at() - world.now)
        world.later(pauses[-1])
    assert pauses == [1, 2, 4, 5, 5]


def test_a_new_owner_hears_a_beat_at_once(world: World) -> None:
    assert not world.is_due
    world.session.take(OwnerChanged(QUEUE, 0), world.now)
    assert world.is_due


def test_a_short_lease_shortens_the_period() -> None:
    world = World(lease_seconds=1.5)
    world.assign(1)
    assert beat_of(world.speak()).period_seconds == pytest.approx(0.5)
    world.lease_seconds = 0.05
    world.assign(2)
    assert beat_of(world.speak()).period_seconds == PERIOD_SECONDS_MIN


def test_slots_and_received_are_told_as_they_stand(world: World) -> None:
    first, _ = world.assign(1, 2)
    beat = beat_of(world.speak())
    assert (beat.received, beat.slots) == (2, 8)
    world.finish(first)
    assert beat_of(world.speak()).slots == 9


# --- Assignments ----------------------------------------------------------------------------------
def test_only_the_next_number_is_taken(world: World) -> None:
    assert len(world.assign(1, 2)) == 2
    assert world.assign(1, 2) == []
    assert world.assign(4, 5) == []
    assert world.is_due  # The owner is told at once what is missing.
    assert beat_of(world.speak()).received == 2
    assert [held.job_id for held in world.assign(3, 4, 5)] == [job_id(3), job_id(4), job_id(5)]


def test_a_void_assignment_only_fills_its_number(world: World) -> None:
    assert world.assign(1, void=True) == []
    assert [held.job_id for held in world.assign(2)] == [job_id(2)]
    world.later(LISTED_SECONDS)
    assert leases_of(world.speak()) == [2]


def test_another_sessions_assignments_and_answers_are_nobodys(world: World) -> None:
    other = world.session.session.replace("-7", "-8")
    assert world.assign(1, session=type(world.session.session)(other)) == []
    world.assign(1)
    world.answer(drop=(1,), session=type(world.session.session)(other))
    world.later(LISTED_SECONDS)
    assert leases_of(world.speak()) == [1]


def test_a_job_without_a_handler_is_given_back(world: World) -> None:
    assert world.assign(1, type="unheard_of") == []
    (word,) = words_of(world.speak())
    assert isinstance(word, ReportedRelease)
    assert "unheard_of" in word.reason
    assert world.session.occupied == 0


def test_a_draining_runtime_gives_back_what_still_arrives(world: World) -> None:
    (running,) = world.assign(1)
    world.session.drain()
    assert beat_of(world.speak()).slots == 0
    assert world.assign(2) == []
    assert [type(word) for word in words_of(world.speak())] == [ReportedRelease]
    world.later(LISTED_SECONDS)
    assert leases_of(world.speak()) == [1, 2]  # Of the second one the answer is not there yet.
    assert running.word is None


# --- The words of a job ---------------------------------------------------------------------------
def test_a_quick_job_is_one_word_in_one_record(world: World) -> None:
    (held,) = world.assign(1)
    assert not world.is_due
    world.finish(held)
    assert world.is_due
    said = world.speak()
    assert isinstance(said, Report)
    assert words_of(said) == (result(held),)
    assert beat_of(said).received == 1
    world.answer()
    assert world.session.settled
    assert not world.is_due


def test_a_job_that_runs_on_is_said_to_have_started_once(world: World) -> None:
    (held,) = world.assign(1)
    assert world.session.due_at() == pytest.approx(world.now + 0.05)
    world.later(0.05)
    assert words_of(world.speak()) == (ReportedStart(held.job_id, held.fence),)
    world.later(PERIOD_SECONDS)
    assert words_of(world.speak()) == ()


def test_a_job_whose_handler_waits_for_a_busy_loop_has_not_started(world: World) -> None:
    world.enters = False
    (held,) = world.assign(1)
    world.later(0.05)
    assert words_of(world.speak()) == ()
    assert world.session.due_at() > world.now + 0.5
    held.entered = True
    world.later(1.0)
    assert words_of(world.speak()) == (ReportedStart(held.job_id, held.fence),)


def test_starts_of_jobs_begun_later_are_said_in_their_time(world: World) -> None:
    first, second = world.assign(1)[0], None
    world.later(0.03)
    (second,) = world.assign(2)
    world.later(0.02)
    assert [word.job_id for word in words_of(world.speak())] == [first.job_id]
    assert world.session.due_at() == pytest.approx(world.now + 0.03)
    world.later(0.03)
    assert [word.job_id for word in words_of(world.speak())] == [second.job_id]


def test_a_lease_is_held_until_its_report_is_acknowledged(world: World) -> None:
    (held,) = world.assign(1)
    world.finish(held)
    reported = beat_of(world.speak()).beat
    world.later(LISTED_SECONDS)
    assert leases_of(world.speak()) == [1]
    world.answer(reported - 1)
    assert not world.session.settled
    world.answer(reported)
    assert world.session.settled


def test_a_report_that_was_not_appended_is_said_again(world: World) -> None:
    (held,) = world.assign(1)
    world.finish(held)
    lost = world.speak(lost=True)
    assert world.is_due
    assert words_of(world.speak()) == words_of(lost)


def test_a_report_that_nobody_acknowledges_is_said_again_less_and_less(world: World) -> None:
    (held,) = world.assign(1)
    world.finish(held)
    world.speak()
    began, gaps = world.now, list[float]()
    while len(gaps) < 4:
        world.later(0.5)
        if world.is_due and words_of(world.speak()):
            gaps.append(world.now - began)
            began = world.now
    assert gaps == [10, 20, 40, 60]


def test_starts_are_said_again_only_if_their_record_was_lost(world: World) -> None:
    world.assign(1)
    world.later(0.05)
    world.speak(lost=True)
    world.later(0.05)
    assert len(words_of(world.speak())) == 1
    world.answer()
    world.later(0.05)
    world.speak(lost=True)
    world.later(0.05)
    assert words_of(world.speak()) == ()


def test_a_refused_result_fails_the_attempt(world: World) -> None:
    (held,) = world.assign(1)
    world.finish(held)
    world.speak()
    world.answer(refused={1: "VALIDATION_FAILED"})
    (word,) = words_of(world.speak())
    assert isinstance(word, ReportedFailure)
    assert (word.code, word.retryable) == (INVALID_OUTPUT, False)
    world.answer(refused={1: "VALIDATION_FAILED"})
    assert world.session.settled


def test_a_word_refused_for_its_fence_is_over(world: World) -> None:
    (held,) = world.assign(1)
    world.finish(held)
    world.speak()
    world.answer(refused={1: "LEASE_STALE"})
    assert world.session.settled
    assert [refusal.code for refusal in world.session.refusals] == ["LEASE_STALE"]


def test_a_report_is_as_large_as_an_entry_and_a_record_allow() -> None:
    world = World(slots=600)
    helds = world.assign(*range(1, 601))
    for held in helds[:300]:
        world.finish(held)
    for held in helds[300:]:
        world.session.finish(held, result(held, b'"' + b"x" * 60_000 + b'"'))
    reported = 0
    while world.session.due_at() == float("-inf"):
        said = world.speak()
        words = words_of(said)
        reported += len(words)
        assert 2 * len(words) <= FACTS_MAX
        outputs = sum(
            len(memoryview(word.output))
            for word in words
            if isinstance(word, ReportedResult) and isinstance(word.output, Raw)
        )
        assert outputs <= WORDS_BYTES_MAX
        assert len(msgspec.json.encode(said)) < COMMAND_BYTES_MAX
        world.answer()
    assert reported == 600
    assert world.session.settled


def test_the_longest_record_of_a_full_runtime_fits() -> None:
    world = World(slots=HELD_MAX)
    helds = world.assign(*range(1, HELD_MAX + 1))
    progress = ProgressSaid(50.0, "\x01" * 2048, "\x01" * 2048)
    for held in helds:
        world.session.progress(held, progress, world.now)
    world.finish(helds[0])
    said = world.speak()
    assert beat_of(said).slots == 0
    assert len(msgspec.json.encode(said)) < COMMAND_BYTES_MAX
    told = [held for held in beat_of(said).leases if held.progress is not None]
    assert 1 <= len(told) <= PROGRESS_BYTES_MAX // 2048
    assert world.session.due_at() <= world.now + 0.2


# --- Leases ---------------------------------------------------------------------------------------
def test_a_lease_counts_from_when_it_was_asked_for(world: World) -> None:
    asked_at = world.now
    world.later(2.0)  # The answer takes its time.
    (held,) = world.assign(1)
    assert asked_at < held.stops_at < asked_at + LEASE_SECONDS
    asked_at = world.now
    world.speak()
    world.later(1.0)
    world.answer(left={1: LEASE_SECONDS})
    assert held.stops_at == pytest.approx(asked_at + LEASE_SECONDS - 2.0)


def test_an_answer_never_shortens_a_lease(world: World) -> None:
    (held,) = world.assign(1)
    before = held.stops_at
    world.speak()
    world.answer(left={1: 1.0})
    assert held.stops_at == before


def test_work_stops_before_its_lease_ends_and_is_given_back(world: World) -> None:
    (held,) = world.assign(1)
    world.later(LEASE_SECONDS - 2.5)
    assert world.orders[-1] != Stop(held, Why.RAN_OUT)
    world.later(0.6)
    assert world.orders[-1] == Stop(held, Why.RAN_OUT)
    told = len(world.orders)
    world.later(10.0)
    assert len(world.orders) == told
    world.session.finish(held, ReportedRelease(held.job_id, held.fence, "late"))
    assert [type(word) for word in words_of(world.speak())] == [ReportedRelease]


def test_a_result_that_was_ready_is_said_even_after_the_lease(world: World) -> None:
    (held,) = world.assign(1)
    world.later(LEASE_SECONDS)
    world.finish(held)
    assert words_of(world.speak()) == (result(held),)


def test_a_dropped_lease_is_stopped_and_its_result_is_nobodys(world: World) -> None:
    (held,) = world.assign(1)
    world.later(0.05)
    world.speak()
    world.answer(drop=(1,))
    assert world.orders[-1] == Stop(held, Why.LOST)
    assert world.session.occupied == 1  # Until its handler has come back.
    world.finish(held)
    said = world.speak()
    assert words_of(said) == ()
    assert leases_of(said) == []
    assert beat_of(said).slots == 10


def test_a_drop_after_the_result_was_said_changes_nothing(world: World) -> None:
    (held,) = world.assign(1)
    world.finish(held)
    reported = beat_of(world.speak()).beat
    world.session.hurry()
    world.speak()
    world.answer(drop=(1,))
    assert reported < world.session.beat
    assert world.session.settled
    assert world.session.occupied == 0
    assert not [order for order in world.orders if isinstance(order, Stop)]


def test_too_little_is_left_so_the_owner_is_asked_before_work_begins(world: World) -> None:
    world.later(4.0)
    assert world.assign(1, lease_left=3.0) == []
    assert world.is_due
    said = world.speak()
    assert leases_of(said) == [1]
    assert beat_of(said).slots == 9
    (held,) = world.answer(left={1: 30.0})
    assert held.job_id == job_id(1)


def test_what_never_has_enough_left_is_given_back(world: World) -> None:
    world.later(4.0)
    world.assign(1, lease_left=3.0)
    world.speak()
    world.later(1.0)
    assert world.answer(left={1: 0.5}) == []
    assert [type(word) for word in words_of(world.speak())] == [ReportedRelease]


# --- Cancel ---------------------------------------------------------------------------------------
def test_a_cancel_is_told_once_and_enforced_at_the_end_of_its_grace(world: World) -> None:
    (held,) = world.assign(1)
    world.later(0.05)
    asked_at = world.now
    world.speak()
    world.later(1.0)
    world.answer(left={1: 60.0}, cancel={1: 10.0})
    told = len(world.orders)
    assert world.orders[told - 1 :] == [AskToStop(held, "why", asked_at + 9.0)]
    world.speak()
    world.answer(left={1: 60.0}, cancel={1: 9.0})
    assert len(world.orders) == told
    world.later(8.0)
    assert world.orders[told:] == [Stop(held, Why.GRACE_ENDED)]
    word = ReportedCancel(held.job_id, held.fence)
    world.session.finish(held, word)
    assert words_of(world.speak()) == (word,)


def test_a_job_cancelled_before_it_began_is_acknowledged(world: World) -> None:
    world.later(4.0)
    world.assign(1, lease_left=3.0)
    world.speak()
    world.answer(cancel={1: 30.0})
    assert [type(word) for word in words_of(world.speak())] == [ReportedCancel]
    assert world.session.occupied == 0


# --- What is held ---------------------------------------------------------------------------------
def test_a_busy_runtime_lists_what_it_holds_once_a_second(world: World) -> None:
    many = world.assign(*range(1, 101))
    world.later(LISTED_SECONDS)
    assert len(leases_of(world.speak())) == 100
    listed = 0
    for held in many[:50]:
        world.finish(held)
        world.later(LISTED_SECONDS / 100)
        listed += len(leases_of(world.speak()))
    assert listed == 0
    world.later(LISTED_SECONDS)
    assert len(leases_of(world.speak())) == 100


def test_a_new_owner_hears_at_once_what_is_held(world: World) -> None:
    world.assign(1, 2)
    world.later(LISTED_SECONDS)
    world.speak()
    assert leases_of(world.speak()) == []
    world.session.take(OwnerChanged(QUEUE, 0), world.now)
    assert leases_of(world.speak()) == [1, 2]


def test_a_short_period_lists_twice_in_it(world: World) -> None:
    """A lease of 0.3 s is prolonged in time, however busy its runtime is."""
    world.session.period = 0.1
    world.assign(1)
    world.later(0.05)
    assert leases_of(world.speak()) == [1]
    world.later(0.05)
    assert leases_of(world.speak()) == [1]


# --- Progress -------------------------------------------------------------------------------------
def test_progress_is_said_at_once_then_at_most_five_times_a_second(world: World) -> None:
    (held,) = world.assign(1)
    world.session.progress(held, ProgressSaid(10.0), world.now)
    assert world.is_due
    (lease,) = beat_of(world.speak()).leases
    assert lease.progress == ProgressSaid(10.0)
    world.session.progress(held, ProgressSaid(20.0), world.now)
    world.session.progress(held, ProgressSaid(30.0), world.now)
    assert world.session.due_at() == pytest.approx(world.now + 0.05)  # Its start is due then.
    world.later(0.05)
    (lease,) = beat_of(world.speak()).leases
    assert lease.progress == ProgressSaid(30.0)


def test_progress_is_repeated_until_a_beat_with_it_is_answered(world: World) -> None:
    (held,) = world.assign(1)
    world.session.progress(held, ProgressSaid(10.0), world.now)
    world.speak()
    (lease,) = beat_of(world.speak()).leases
    assert lease.progress == ProgressSaid(10.0)
    world.answer()
    world.later(LISTED_SECONDS)
    (lease,) = beat_of(world.speak()).leases
    assert lease.progress is None


# --- Silence and endings --------------------------------------------------------------------------
def test_after_a_long_silence_a_new_session_begins_with_what_is_held(world: World) -> None:
    first, second = world.assign(1, 2)
    world.finish(first)
    world.speak(lost=True)
    before = world.session.session
    world.later(3 * PERIOD_SECONDS)
    said = world.speak()
    assert world.session.session > before
    beat = beat_of(said)
    assert (beat.beat, beat.received, beat.slots) == (1, 0, 9)
    assert result(first) in words_of(said)
    assert leases_of(said) == [2]
    world.answer()
    world.finish(second)
    world.speak()
    world.answer()
    assert world.session.settled


def test_assignments_of_the_session_before_are_still_taken(world: World) -> None:
    before, beat = world.session.session, world.session.beat
    world.assign(1)
    world.later(3 * PERIOD_SECONDS)
    world.speak()
    assert world.session.session != before
    (held,) = world.assign(2, session=before, beat=beat)
    assert held.job_id == job_id(2)
    assert [held.job_id for held in world.assign(1)] == []  # Job 1 is held already.
    world.later(LISTED_SECONDS)
    assert leases_of(world.speak()) == [1, 2]


def test_a_runtime_that_leaves_gives_back_what_runs(world: World) -> None:
    (held,) = world.assign(1)
    world.session.drain()
    world.session.abandon()
    assert [type(word) for word in words_of(world.speak())] == [ReportedRelease]
    world.answer()
    world.finish(held)  # Its handler comes back too late.
    assert words_of(world.speak()) == ()
    last = world.session.last_beat(world.now)
    assert (last.leaving, last.slots) == (True, 0)


def test_offers_are_outstanding_until_less_was_answered(world: World) -> None:
    assert world.session.outstanding == 10
    world.assign(1)
    assert world.session.outstanding == 9
    world.slots = 3
    world.speak()
    assert world.session.outstanding == 9
    world.answer()
    assert world.session.outstanding == 2


def test_a_session_is_idle_once_its_beat_is_answered_and_it_holds_nothing(world: World) -> None:
    assert world.session.is_idle
    world.speak()
    assert not world.session.is_idle
    world.answer()
    assert world.session.is_idle
    [held] = world.assign(1)
    world.speak()
    world.answer()
    assert not world.session.is_idle
    world.finish(held)
    world.speak()
    assert not world.session.is_idle
    world.answer()
    assert world.session.is_idle
