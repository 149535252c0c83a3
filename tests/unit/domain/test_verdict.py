"""What is right with a partition's entries, in numbers, and what is wrong, with its places."""

from __future__ import annotations

from ledger.domain.commands import CancelJob
from ledger.domain.entries import Entry, Proven, TakeOver
from ledger.domain.events import CommandDuplicated, CommandRejected, Unknown
from ledger.domain.ids import CommandId
from ledger.domain.verdict import VIOLATIONS_MAX, Judge, judged
from tests.support.builders import BOB, JOB, QUEUE, job_id, leased, requested, runtime_started
from tests.support.clock import NOON
from tests.support.given import at_its_time
from tests.support.written_log import a_few_jobs

OTHER = job_id("other")


def entry(number: int, *facts: object, cause: str = "") -> Entry:
    events = tuple(at_its_time(fact, NOON) for fact in facts)  # type: ignore[arg-type]
    return Entry(number, NOON, 0, 0, events, cause=cause)


def test_a_sound_history_is_counted() -> None:
    verdict = judged(a_few_jobs(6))
    assert verdict.violations == []
    assert verdict.violation_count == 0
    assert verdict.take_overs == 2
    assert verdict.jobs == {
        "requested": 6,
        "succeeded": 5,
        "failed": 0,
        "expired": 0,
        "cancelled": 1,
        "open": 0,
    }
    assert verdict.types["ledger.job.lease_granted.v1"] == 5
    assert verdict.events == sum(verdict.types.values())
    # Of the beat, six requests, five reports, the cancel.
    assert verdict.commands == {"accepted": 13, "duplicate": 0, "rejected": 0, "quarantined": 0}


def test_what_was_refused_or_said_again_is_counted_by_itself() -> None:
    refused = CommandRejected(QUEUE, CommandId("b"), CancelJob.TYPE, "JOB_NOT_FOUND")
    verdict = judged(
        [
            entry(1, requested(), cause="c:a"),
            entry(2, refused, cause="a:b"),
            entry(3, CommandDuplicated(QUEUE, CommandId("a"), "t", JOB), cause="c:a"),
            entry(4, Unknown("ledger.job.teleported.v1", JOB, b"")),
        ]
    )
    assert verdict.commands == {"accepted": 1, "duplicate": 1, "rejected": 1, "quarantined": 0}
    assert verdict.types["ledger.job.teleported.v1"] == 1
    assert verdict.jobs["open"] == 1


def test_a_violation_has_the_places_of_both_entries() -> None:
    found = judged(
        [
            Proven(entry(1, requested(order=1)), 100, 100, b""),
            Proven(entry(2, requested(OTHER, order=2)), 105, 105, b""),
            Proven(entry(3, leased()), 110, 110, b""),
            Proven(entry(4, leased(BOB, fence=2, attempt=2)), 120, 120, b""),
        ]
    )
    violation = found.violations[0]
    assert (violation.rule, violation.job_id) == ("I6", JOB)
    assert (violation.position, violation.offset, violation.before) == (4, 120, (3, 110))


def test_who_was_passed_over_is_where_it_came_to_wait() -> None:
    found = judged(
        [
            Proven(entry(1, runtime_started()), 1, 1, b""),
            Proven(entry(2, requested(order=1)), 2, 2, b""),
            Proven(entry(3, requested(OTHER, order=2)), 3, 3, b""),
            Proven(entry(4, leased(job=OTHER, session="s1", number=1)), 4, 4, b""),
        ],
        patience_us=0,
    )
    (violation,) = found.violations
    assert (violation.rule, violation.offset, violation.before) == ("I16", 4, (2, 2))


def test_a_command_that_was_done_twice_has_the_places_of_both_jobs() -> None:
    found = judged(
        [
            Proven(entry(1, requested(order=1), cause="c:one"), 10, 10, b""),
            Proven(entry(2, requested(OTHER, order=2), cause="c:one"), 20, 20, b""),
        ]
    )
    (violation,) = found.violations
    assert (violation.rule, violation.offset, violation.before) == ("I4", 20, (1, 10))


def test_of_very_many_violations_the_first_are_kept() -> None:
    found = judged(
        entry(2 * number, requested(job_id(str(number)), order=1)) for number in range(1, 700)
    )
    assert found.violation_count > VIOLATIONS_MAX
    assert len(found.violations) == VIOLATIONS_MAX


def test_what_was_heard_silently_counts_for_what_follows_only() -> None:
    judge = Judge(patience_us=0)
    judge.hear(TakeOver("n", NOON, "l", 1), silently=True)
    judge.hear(entry(1, requested(), cause="c:one"), silently=True)
    judge.hear(entry(1, requested(), cause="c:one"), silently=True)
    judge.hear(entry(2, requested(OTHER, order=NOON + 1), cause="c:one"))
    verdict = judge.verdict()
    assert (verdict.entries, verdict.take_overs, verdict.events) == (1, 0, 1)
    assert [violation.rule for violation in verdict.violations] == ["I4"]
