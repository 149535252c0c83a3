"""A turn: what is recorded, what is only answered, and who is given what."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from ledger.domain.commands import (
    Beat,
    CancelJob,
    CancelPart,
    DeclareInputLost,
    Heartbeat,
    HeldLease,
    LockJob,
    ProgressSaid,
    Report,
    ReportedResult,
    ReportedStart,
    ReportProgress,
    RequestJob,
    RerunJob,
    StartAttempt,
    SubmitResult,
    Where,
)
from ledger.domain.events import (
    BulkPartAdvanced,
    BulkPartEnded,
    BulkPartStarted,
    CommandDuplicated,
    CommandRejected,
    CommandsConsumed,
    InputLost,
    JobCancelled,
    JobRequested,
    LeaseGranted,
    LeaseReleased,
    RuntimeStarted,
)
from ledger.domain.ids import (
    SECOND,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
)
from ledger.domain.intakes import Missing
from ledger.domain.job import Job, Status, Step, status
from ledger.domain.partition import Partition
from processors.owner.turn import REFUSAL_PERIOD_US, WORDS_MAX, Turn
from tests.unit.owner.by_hand import QUEUE, Owner, events_of


@pytest.fixture
def owner() -> Owner:
    return Owner()


def beat(number: int = 1, *, slots: int = 0, runtime: str = "r1", **fields: object) -> Beat:
    return Beat(
        runtime_id=RuntimeId(runtime),
        session=Session("s1"),
        queue=QUEUE,
        beat=number,
        types=("sum",),
        slots=slots,
        **fields,  # type: ignore[arg-type]
    )


# --- What is recorded ----------------------------------------------------------------------------
def test_every_request_is_an_entry_that_says_how_far_the_requests_are_read(owner: Owner) -> None:
    turn = owner.does(RequestJob(type="sum"), RequestJob(type="sum"))
    assert [(e.number, e.requests, e.commands) for e in turn.entries] == [(1, 1, 0), (2, 2, 0)]


def offsets_of(turn: Turn) -> list[tuple[int, int]]:
    return [(entry.commands, entry.requests) for entry in turn.entries]


def test_requests_declared_lost_are_passed_over(owner: Owner) -> None:
    owner.does(RequestJob(type="sum"))
    lost = DeclareInputLost(0, "requests", 1, 40)
    turn = owner.turn()
    turn.read_lost(owner.asked(lost), lost, Missing(1, 40), ahead=False)
    assert [type(event) for event in events_of(turn)] == [InputLost]
    assert offsets_of(turn) == [(2, 40)]
    assert turn.input_lost


def test_a_declaration_behind_the_gap_counts_at_once_and_in_its_turn_is_a_duplicate(
    owner: Owner,
) -> None:
    lost = DeclareInputLost(0, "commands", 0, 40)
    asked = msgspec.structs.replace(owner.asked(lost), offset=55)
    ahead = owner.turn()
    ahead.read_lost(asked, lost, Missing(0, 40), ahead=True)
    ahead.read_lost(owner.asked(lost), lost, Missing(0, 40), ahead=True)
    assert [type(event) for event in events_of(ahead)] == [InputLost]
    assert offsets_of(ahead) == [(40, 0)], "what lies between the gap and the word is still to come"

    in_its_turn = owner.turn()
    in_its_turn.read_lost(asked, lost, None, ahead=False)
    assert [type(event) for event in events_of(in_its_turn)] == [CommandDuplicated]
    assert offsets_of(in_its_turn) == [(56, 0)]
    assert not in_its_turn.input_lost


def test_a_wrong_declaration_behind_the_gap_is_refused_and_the_gap_stays(owner: Owner) -> None:
    lost = DeclareInputLost(0, "commands", 0, 41)
    turn = owner.turn()
    turn.read_lost(
        msgspec.structs.replace(owner.asked(lost), offset=55), lost, Missing(0, 40), ahead=True
    )
    assert [type(event) for event in events_of(turn)] == [CommandRejected]
    assert offsets_of(turn) == [(0, 0)]
    assert not turn.input_lost


def test_requests_are_declared_lost_once_a_turn(owner: Owner) -> None:
    lost = DeclareInputLost(0, "requests", 0, 40)
    turn = owner.turn()
    for _ in range(2):
        turn.read_lost(owner.asked(lost), lost, Missing(0, 40), ahead=False)
    assert [type(event) for event in events_of(turn)] == [InputLost, CommandRejected]


def test_the_same_command_again_is_recorded_as_a_duplicate(owner: Owner) -> None:
    turn = owner.turn()
    first = owner.asked(RequestJob(type="sum"), command_id="same")
    turn.read_request(first)
    turn.read_request(msgspec.structs.replace(first, offset=1))
    requested, duplicated = events_of(turn)
    assert isinstance(requested, JobRequested)
    assert isinstance(duplicated, CommandDuplicated)
    assert duplicated.job_id == requested.job_id


def test_a_beat_that_changes_nothing_leaves_no_entry(owner: Owner) -> None:
    assert isinstance(events_of(owner.does(beat(1)))[0], RuntimeStarted)
    turn = owner.does(beat(2))
    assert turn.entries == []
    assert turn.unrecorded == 1
    assert owner.partition.commands == 2


def test_offsets_of_unrecorded_commands_ride_on_the_next_entry(owner: Owner) -> None:
    owner.does(beat(1))
    owner.does(beat(2), beat(3))
    turn = owner.turn()
    turn.consumed(2)
    assert turn.entries[0].commands == 3
    assert turn.entries[0].events == (CommandsConsumed(QueueName("_ledger"), 2),)


# --- Refusals ------------------------------------------------------------------------------------
def test_an_equal_refusal_is_recorded_once_a_minute_with_its_count(owner: Owner) -> None:
    [job_id] = owner.submit()
    stale = StartAttempt(job_id, Fence(7))
    assert [type(e) for e in events_of(owner.does(stale))] == [CommandRejected]
    assert events_of(owner.does(stale, stale, stale)) == []
    owner.at = Micros(owner.at + REFUSAL_PERIOD_US)
    [again] = events_of(owner.does(stale))
    assert isinstance(again, CommandRejected)
    assert again.count == 4


def test_every_refused_command_is_answered_even_where_it_is_only_counted(owner: Owner) -> None:
    [job_id] = owner.submit()
    stale = StartAttempt(job_id, Fence(7))
    turn = owner.does(stale, stale, reply_to="0/me")
    assert [w.reply.code for w in turn.effects.replies] == ["LEASE_STALE", "LEASE_STALE"]


def test_a_command_whose_entry_does_not_fit_is_refused_and_changes_nothing(owner: Owner) -> None:
    owner.does(beat(1, slots=8))
    turn = owner.does(*(RequestJob(type="sum") for _ in range(8)))
    grants = [e for e in events_of(turn) if isinstance(e, LeaseGranted)]
    owner.fits = lambda _: False
    big = msgspec.Raw(b'"' + b"x" * 60_000 + b'"')
    words = tuple(ReportedResult(g.job_id, g.fence, output=big) for g in grants)
    turn = owner.does(Report(RuntimeId("r1"), Session("s1"), QUEUE, words), reply_to="0/me")
    [refused] = events_of(turn)
    assert isinstance(refused, CommandRejected)
    assert refused.code == "ENTRY_TOO_LARGE"
    assert {status(job) for job in owner.partition.jobs.values()} == {Status.LEASED}


# --- Assigning -----------------------------------------------------------------------------------
def test_a_ready_job_goes_to_a_free_slot_at_once(owner: Owner) -> None:
    owner.does(beat(1, slots=1))
    turn = owner.does(RequestJob(type="sum"))
    requested, granted = events_of(turn)
    assert isinstance(requested, JobRequested)
    assert isinstance(granted, LeaseGranted)
    assert (granted.session, granted.number) == ("s1", 1)


def test_no_more_is_given_than_there_are_slots(owner: Owner) -> None:
    owner.does(beat(1, slots=3))
    owner.submit(5)
    pending = [j for j in owner.partition.jobs.values() if status(j) is Status.PENDING]
    assert len(pending) == 2
    turn = owner.does(beat(2, slots=3, received=0))
    assert not any(isinstance(e, LeaseGranted) for e in events_of(turn)), "all are on their way"
    turn = owner.does(beat(3, slots=1, received=3))
    assert sum(isinstance(e, LeaseGranted) for e in events_of(turn)) == 1


def test_few_jobs_spread_over_many_runtimes(owner: Owner) -> None:
    for name in ("a", "b"):
        owner.does(beat(1, slots=4, runtime=name))
    turn = owner.does(*(RequestJob(type="sum") for _ in range(4)))
    given = Counter(e.runtime_id for e in events_of(turn) if isinstance(e, LeaseGranted))
    assert given == {"a": 2, "b": 2}


def test_numbers_are_gapless_within_a_session(owner: Owner) -> None:
    owner.does(beat(1, slots=10))
    turn = owner.does(*(RequestJob(type="sum") for _ in range(10)))
    numbers = [e.number for e in events_of(turn) if isinstance(e, LeaseGranted)]
    assert numbers == list(range(1, 11))


def test_a_runtime_that_fell_silent_is_given_nothing(owner: Owner) -> None:
    owner.does(beat(1, slots=1))
    owner.at = Micros(owner.at + 16 * SECOND)
    turn = owner.does(RequestJob(type="sum"))
    assert [type(e) for e in events_of(turn)] == [JobRequested]


# --- Reports -------------------------------------------------------------------------------------
def test_a_long_report_is_recorded_in_parts_and_its_offset_moves_with_the_last(
    owner: Owner,
) -> None:
    many = WORDS_MAX
    owner.does(beat(1, slots=many))
    turn = owner.does(*(RequestJob(type="sum") for _ in range(many)))
    grants = [e for e in events_of(turn) if isinstance(e, LeaseGranted)]
    words = tuple(
        word
        for g in grants
        for word in (ReportedStart(g.job_id, g.fence), ReportedResult(g.job_id, g.fence))
    )
    report = Report(RuntimeId("r1"), Session("s1"), QUEUE, words, beat(2, slots=many))
    first, last = owner.does(report).entries
    assert last.commands == first.commands + 1
    assert owner.partition.jobs == {}
    assert len(owner.partition.closed) == many


def test_a_report_sent_again_is_a_duplicate(owner: Owner) -> None:
    owner.does(beat(1, slots=1))
    turn = owner.does(RequestJob(type="sum"))
    [grant] = [e for e in events_of(turn) if isinstance(e, LeaseGranted)]
    words = (ReportedResult(grant.job_id, grant.fence),)
    report = Report(RuntimeId("r1"), Session("s1"), QUEUE, words)
    owner.does(report)
    assert [type(e) for e in events_of(owner.does(report))] == [CommandDuplicated]


def test_what_a_runtime_says_it_holds_is_answered(owner: Owner) -> None:
    owner.does(beat(1, slots=1))
    turn = owner.does(RequestJob(type="sum"))
    [grant] = [e for e in events_of(turn) if isinstance(e, LeaseGranted)]
    held = HeldLease(grant.job_id, grant.fence)
    turn = owner.does(beat(2, received=1, leases=(held,)))
    assert [one.beat.beat for one in turn.effects.beats] == [2]


# --- Bulk ----------------------------------------------------------------------------------------
def test_a_bulk_cancel_covers_open_jobs_and_requests_that_came_before_it(owner: Owner) -> None:
    owner.submit(3, labels={"user": "ada"})
    owner.submit(1, labels={"user": "bob"})
    part = CancelPart("op_1", 0, Where(labels={"user": "ada"}), "withdrawn", "ada")
    turn = owner.turn()
    late = owner.asked(RequestJob(type="sum", labels={"user": "ada"}))
    turn.read_part(owner.asked(part), part, requests_end=late.offset + 1)
    turn.bulks()
    turn.bulks()
    assert not any(isinstance(e, BulkPartEnded) for e in events_of(turn)), "requests are unread"
    turn.read_request(late)
    turn.finish()
    turn.bulks()
    kinds = Counter(type(e) for e in events_of(turn))
    assert kinds[JobCancelled] == 4
    assert kinds[BulkPartStarted] == kinds[BulkPartEnded] == 1
    assert kinds[BulkPartAdvanced] == 2
    assert turn.effects.confirmations == {"op_1": 4}
    assert [j.request.labels for j in owner.partition.jobs.values()] == [{"user": "bob"}]


def test_a_cancel_that_is_asked_twice_is_recorded_once(owner: Owner) -> None:
    owner.does(beat(1, slots=1))
    [job_id] = owner.submit()
    first = events_of(owner.does(CancelJob(job_id, "stop")))
    again = events_of(owner.does(CancelJob(job_id, "stop")))
    assert [type(e).__name__ for e in (*first, *again)] == ["CancelRequested", "CommandDuplicated"]


@pytest.mark.parametrize(("size", "code"), [(65_536, None), (65_537, "PAYLOAD_TOO_LARGE")])
def test_a_payload_above_64_kib_does_not_enter_the_log(
    owner: Owner, size: int, code: str | None
) -> None:
    payload = msgspec.Raw(b'"' + b"x" * (size - 2) + b'"')
    turn = owner.does(RequestJob(type="sum", payload=payload), reply_to="0/me")
    assert [w.reply.code for w in turn.effects.replies] == [code]


def test_an_output_above_64_kib_does_not_enter_the_log(owner: Owner) -> None:
    [job_id] = owner.submit()
    turn = owner.does(LockJob(job_id, RuntimeId("r")))
    [grant] = [e for e in events_of(turn) if isinstance(e, LeaseGranted)]
    output = msgspec.Raw(b'"' + b"x" * 70_000 + b'"')
    turn = owner.does(SubmitResult(job_id, grant.fence, output=output), reply_to="0/me")
    assert [w.reply.code for w in turn.effects.replies] == ["PAYLOAD_TOO_LARGE"]


def test_a_cancel_is_told_to_the_runtime_at_once(owner: Owner) -> None:
    owner.does(beat(1, slots=1))
    [job_id] = owner.submit()
    turn = owner.does(CancelJob(job_id, "stop"))
    assert turn.effects.cancels == [job_id]


@pytest.mark.parametrize("received", [0, 1])
def test_what_came_to_one_who_left_goes_to_the_next_at_once(owner: Owner, received: int) -> None:
    """It was given before the last word was read. What had come is its runtime's until it says so,
    or the lease lapses."""
    owner.does(beat(1, slots=1))
    [job_id] = owner.submit()
    turn = owner.does(beat(2, received=received, leaving=True))
    released = [event for event in events_of(turn) if isinstance(event, LeaseReleased)]
    turn = owner.does(beat(1, slots=1, runtime="r2"))
    again = [event for event in events_of(turn) if isinstance(event, LeaseGranted)]
    if received:
        assert not released
        assert not again
    else:
        assert [event.job_id for event in released] == [job_id]
        assert [(event.job_id, event.runtime_id) for event in again] == [(job_id, "r2")]


def test_a_session_that_was_taken_for_silent_counts_on_from_what_it_received(owner: Owner) -> None:
    owner.does(beat(1, slots=1))
    owner.submit()
    owner.at = Micros(owner.at + 60 * SECOND)
    silent = owner.turn()
    silent.silences()
    assert owner.partition.queue(QUEUE).sessions == {}
    owner.does(beat(2, slots=1, received=1))
    turn = owner.does(RequestJob(type="sum"))
    assert [e.number for e in events_of(turn) if isinstance(e, LeaseGranted)] == [2]


@pytest.mark.parametrize("ahead", [-90 * SECOND, 0, 4 * SECOND])
def test_a_runtime_that_beats_is_given_jobs_whatever_the_owners_clock_is_apart(
    owner: Owner, ahead: int
) -> None:
    owner.ahead = ahead
    owner.does(beat(slots=1, period_seconds=0.5))
    owner.at = Micros(owner.at + SECOND // 2)
    turn = owner.does(RequestJob(type="sum"))
    assert any(isinstance(event, LeaseGranted) for event in events_of(turn))


@pytest.mark.rule("S1.9")
@pytest.mark.parametrize("command_id", ["second", "ik.second."])
def test_a_refused_rerun_stays_refused_also_the_second_within_a_minute(command_id: str) -> None:
    """A seed of the simulation: of the second one nobody remembered that it had been refused."""
    owner = Owner()
    [job_id] = owner.submit()
    owner.does(RerunJob(job_id), command_id="first")
    owner.does(RerunJob(job_id), command_id=command_id)
    owner.does(CancelJob(job_id))
    again = owner.does(RerunJob(job_id), command_id=command_id)
    assert not [event for event in events_of(again) if isinstance(event, JobRequested)]
    other = owner.does(RerunJob(job_id), command_id="third")
    assert [event for event in events_of(other) if isinstance(event, JobRequested)]


def test_an_older_session_of_a_runtime_says_nothing_of_progress_not_even_for_later() -> None:
    """What the second opinion found: its word was kept, and recorded a second later."""
    owner = Owner()
    [job_id] = owner.submit()

    def beat(session: str, number: int, percent: float | None = None) -> Beat:
        held = (HeldLease(job_id, Fence(1), ProgressSaid(percent)),) if percent else ()
        return Beat(RuntimeId("ada"), Session(session), QUEUE, number, ("sum",), 1, leases=held)

    owner.does(beat("s1", 1))
    owner.does(beat("s1", 2, 10.0))
    owner.does(beat("s2", 1))
    owner.does(beat("s1", 3, 60.0))
    assert owner.partition.deferred == {}
    [step] = owner.partition.jobs[job_id].steps
    assert step.progress is not None
    assert step.progress.percent == 10.0


# --- Keyed words that change nothing --------------------------------------------------------------
def leased(owner: Owner) -> JobId:
    [job_id] = owner.submit()
    owner.does(LockJob(job_id, RuntimeId("r")))
    owner.does(ReportProgress(job_id, Fence(1), 10.0, message="first"))
    return job_id


def word(kind: str, job_id: JobId, percent: float, message: str) -> Heartbeat | ReportProgress:
    if kind == "progress":
        return ReportProgress(job_id, Fence(1), percent, message=message)
    return Heartbeat(job_id, Fence(1), ProgressSaid(percent, message=message))


@pytest.mark.parametrize("kind", ["progress", "heartbeat"])
def test_a_keyed_word_that_comes_too_soon_to_be_recorded_is_remembered(
    owner: Owner, kind: str
) -> None:
    job_id = leased(owner)
    said = word(kind, job_id, 20.0, "second")
    first = owner.does(said, reply_to="0/me", command_id="ik.word.one")
    again = owner.does(said, reply_to="0/me", command_id="ik.word.one")
    other = owner.does(said, reply_to="0/me", command_id="ik.word.two")
    replies = [turn.effects.replies[0].reply for turn in (first, again, other)]
    assert [(one.outcome, one.code, one.replayed) for one in replies] == [
        ("accepted", None, False),
        ("accepted", None, True),
        ("rejected", "IDEMPOTENCY_KEY_REUSED", False),
    ]


@pytest.mark.parametrize("kind", ["progress", "heartbeat"])
def test_a_keyed_word_said_again_is_not_the_last_word(owner: Owner, kind: str) -> None:
    job_id = leased(owner)
    owner.does(word(kind, job_id, 20.0, "second"), command_id="ik.word.one")
    owner.does(word(kind, job_id, 20.0, "third"))
    owner.does(word(kind, job_id, 20.0, "second"), command_id="ik.word.one")
    assert owner.partition.deferred[job_id][Fence(1)].message == "third"


@pytest.mark.parametrize("kind", ["progress", "heartbeat"])
def test_without_a_key_such_a_word_leaves_no_entry(owner: Owner, kind: str) -> None:
    job_id = leased(owner)
    assert owner.does(word(kind, job_id, 20.0, "second")).entries == []


# --- What many runtimes that wait cost ------------------------------------------------------------
def searches(patch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """For which types the best jobs are looked for."""
    asked: list[tuple[str, ...]] = []
    best = Partition.best

    def counted(
        partition: Partition, queue: QueueName, types: tuple[str, ...], many: int, at: Micros
    ) -> list[tuple[Job, Step]]:
        asked.append(types)
        return best(partition, queue, types, many, at)

    patch.setattr(Partition, "best", counted)
    return asked


def test_for_runtimes_that_wait_for_nothing_nobody_searches(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = searches(monkeypatch)
    owner.does(*(beat(slots=10, runtime=f"r{number}") for number in range(300)))
    owner.does(beat(2, slots=10))
    assert asked == []


def test_what_is_left_for_nobody_is_searched_for_once_a_turn(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of jobs whose type nobody serves, and once the last one of a type is given."""
    owner.does(*(beat(slots=10, runtime=f"r{number}") for number in range(300)))
    owner.submit(2)
    asked = searches(monkeypatch)
    owner.does(RequestJob(type="unheard_of"), beat(2, slots=10))
    assert asked == [("sum",)]
