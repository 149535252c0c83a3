"""What an owner has long forgotten, and the whole log still shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from ledger.audit.whole_log import WholeLog
from ledger.domain.entries import Entry, Proven
from ledger.domain.events import ScheduleFired, StepSucceeded
from ledger.domain.ids import Fence, Micros, StepName, micros
from ledger.domain.invariants import Violation
from ledger.domain.verdict import judged
from tests.support.builders import (
    JOB,
    OK,
    QUEUE,
    Fact,
    cancelled,
    job_id,
    leased,
    requested,
    started,
    succeeded,
)
from tests.support.clock import NOON, Pause, after
from tests.support.given import at_its_time

OTHER = job_id("other")
DAY = after(86_400)
OTHERS = [requested(job_id(str(n)), order=NOON + n + 1) for n in range(8)]
"""So many entries that what is past its time is looked for."""
Step = Fact | Pause | tuple[str, Fact]


class Log:
    """An entry a fact; with a cause where one is said. Offsets are ten times the number."""

    def __init__(self, directory: Path) -> None:
        self.whole = WholeLog(directory, 0)
        self.entries: list[Proven] = []
        self.now = NOON

    def write(self, *steps: Step) -> Log:
        for step in steps:
            if isinstance(step, Pause):
                self.now = Micros(self.now + micros(step))
                continue
            cause, fact = step if isinstance(step, tuple) else ("", step)
            number = len(self.entries) + 1
            events = (at_its_time(fact, self.now),)
            entry = Entry(number, self.now, 0, 0, events, cause=cause)
            self.entries.append(Proven(entry, number * 10, number * 10, b""))
            self.whole.hear(self.entries[-1])
        return self

    @property
    def violations(self) -> list[Violation]:
        return list(self.whole.violations())

    @property
    def in_memory(self) -> set[str]:
        return {violation.rule for violation in judged(self.entries).violations}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path)
    with log.whole:
        yield log
    assert not list(tmp_path.iterdir())


def test_a_sound_log_breaks_nothing(log: Log) -> None:
    log.write(("c:one", requested()), leased(), started(), succeeded(), DAY)
    log.write(("c:two", requested(OTHER, retried_from=JOB)), cancelled("at_once", job=OTHER))
    assert log.violations == []
    assert log.in_memory == set()


def test_a_command_that_was_done_again_long_after(log: Log) -> None:
    log.write(("c:one", requested()), DAY, *OTHERS, ("a:one", requested(OTHER, order=NOON * 2)))
    assert log.in_memory == set()
    assert log.violations == [
        Violation("I4", OTHER, 10, "its command had been done before", 100, (1, 10))
    ]


def test_an_idempotency_key_may_be_used_again_once_it_is_forgotten(log: Log) -> None:
    log.write(("c:ik.key.content", requested()), DAY, ("c:ik.key.content", requested(OTHER)))
    assert log.violations == []


def test_a_job_that_was_requested_again_long_after(log: Log) -> None:
    log.write(requested(), cancelled("at_once"), DAY, *OTHERS, requested(order=NOON * 2))
    assert "I10" not in log.in_memory
    assert log.violations == [Violation("I10", JOB, 11, "requested a second time", 110, (1, 10))]


def test_a_fence_that_went_back_after_it_was_forgotten(log: Log) -> None:
    log.write(requested(), leased(fence=3), cancelled("at_once"), DAY, *OTHERS)
    log.write(requested(order=NOON * 2), leased(fence=2))
    assert "I6" not in log.in_memory
    (violation,) = [one for one in log.violations if one.rule == "I6"]
    assert (violation.offset, violation.before) == (130, (2, 20))
    assert violation.detail == "a fence that is not above the one before it, 3"


def test_an_occurrence_that_came_twice(log: Log) -> None:
    fired = ScheduleFired(QUEUE, "nightly", NOON, JOB)
    log.write(fired, replace(fired, nominal_at=Micros(NOON + 1)), DAY)
    log.write(replace(fired, manual=True), replace(fired, job_id=OTHER))
    (violation,) = log.violations
    assert (violation.rule, violation.job_id, violation.before) == ("I17", OTHER, (1, 10))
    assert violation.detail == f"an occurrence that came before: default/nightly at {NOON}"


def test_a_rerun_of_what_never_was_or_had_not_ended(log: Log) -> None:
    log.write(requested(retried_from=job_id("never")))
    log.write(requested(OTHER, retried_from=JOB), cancelled("at_once"))
    found = log.violations
    assert [(one.rule, one.job_id, one.offset) for one in found] == [
        ("I18", JOB, 10),
        ("I18", OTHER, 20),
    ]
    assert JOB in found[1].detail


def test_a_result_that_does_not_have_its_hash(log: Log) -> None:
    log.write(requested(), leased(), started())
    log.write(replace(at_its_time(succeeded(), NOON), output=Raw(b'{"ok":1}')))
    step = StepSucceeded(OTHER, StepName("a"), Fence(1), 1, "00", OK)
    log.write(step, replace(step, output=Raw(b"123456789012345678901234567890")))
    found = log.violations
    assert [(one.rule, one.job_id, one.offset) for one in found] == [
        ("I10", JOB, 40),
        ("I10", OTHER, 50),
    ]


def test_of_a_range_only_what_lies_in_it_is_told(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.whole = WholeLog(tmp_path, 1, told_from=50)
    with log.whole:
        for name in ("one", "two"):
            log.write((f"c:{name}", requested(job_id(f"{name}1"))), DAY)
            log.write((f"c:{name}", requested(job_id(f"{name}2"))), requested(job_id(f"{name}3")))
        assert [violation.offset for violation in log.violations] == [50]
