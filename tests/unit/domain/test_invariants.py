"""Each invariant says so when it is broken: by a log that no rule of ours writes."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.entries import Entry, TakeOver
from ledger.domain.events import (
    CommandDuplicated,
    JobCollected,
    LeasesExtended,
    Unknown,
)
from ledger.domain.failures import JOB_TIMEOUT, LEASE_EXPIRED, START_TIMEOUT, WAIT_TIMEOUT
from ledger.domain.ids import CommandId, Micros, micros
from ledger.domain.invariants import Invariants, Violation
from ledger.domain.partition import Bounds, Partition
from tests.support.builders import (
    BOB,
    JOB,
    QUEUE,
    Fact,
    cancel_asked,
    cancelled,
    evenly,
    expired,
    extended,
    failed,
    gave_up,
    instant,
    job_expired,
    job_failed,
    job_id,
    leased,
    progressed,
    released,
    requested,
    retried,
    runtime_started,
    started,
    succeeded,
)
from tests.support.clock import NOON, Pause, after
from tests.support.given import at_its_time

OTHER = job_id("other")
Step = Fact | Pause | tuple[Fact, ...]


class Log:
    """Entries of these facts; a tuple is one entry."""

    def __init__(self, *, patience: float = 0, bounds: Bounds | None = None) -> None:
        self.partition = Partition(0, bounds or Bounds())
        self.invariants = Invariants(self.partition, patience_us=micros(patience))
        self.now = NOON
        self.violations: list[Violation] = []

    def write(self, *steps: Step, cause: str = "") -> Log:
        for step in steps:
            if isinstance(step, Pause):
                self.now = Micros(self.now + micros(step))
                continue
            facts = step if isinstance(step, tuple) else (step,)
            events = tuple(at_its_time(fact, self.now) for fact in facts)
            self.check(Entry(self.partition.entry + 1, self.now, 0, 0, events, cause=cause))
        return self

    def check(self, entry: Entry) -> None:
        self.violations += self.invariants.check(entry)

    @property
    def rules(self) -> set[str]:
        self.violations += self.invariants.settle()
        return {violation.rule for violation in self.violations}


RUNNING: tuple[Step, ...] = (requested(), leased(), started())
TWICE = evenly(max_attempts=1, backoff_us=())


def test_a_sound_log_breaks_nothing() -> None:
    log = Log().write(*RUNNING, progressed(5), after(20), extended(), (failed(), retried(1)))
    log.write(after(1), leased(BOB, fence=2), gave_up(2), after(5), succeeded(fence=2))
    log.write(JobCollected(JOB), after(1), requested(OTHER), cancelled("at_once", job=OTHER))
    assert log.rules == set()


BROKEN: dict[str, tuple[str, tuple[Step, ...]]] = {
    "leased twice": ("I6", (requested(), leased(), leased(BOB, fence=2))),
    "a fence again": ("I6", (requested(), leased(), released(), leased(BOB, fence=1, attempt=1))),
    "no session": ("I6", (requested(), leased(session="s1", number=1))),
    "a stale start": ("I7", (requested(), leased(), started(7))),
    "a stale result": ("I7", (*RUNNING, succeeded(fence=2))),
    "progress of nobody": ("I7", (requested(), progressed(5))),
    "started twice": ("I7", (*RUNNING, started())),
    "released while waiting": ("I7", (*RUNNING, gave_up(), released())),
    "an extension that shortens": ("I8", (*RUNNING, extended(lease=5))),
    "an extension of nobodys": ("I8", (requested(), extended())),
    "an extension by another": ("I8", (*RUNNING, after(9), extended(runtime=BOB))),
    "an early lapse": ("I8", (*RUNNING, after(59), (expired(LEASE_EXPIRED), retried(1)))),
    "an early time-out": ("I8", (*RUNNING, after(9), (expired(JOB_TIMEOUT), retried(1)))),
    "an early end of a wait": ("I8", (*RUNNING, gave_up(), (expired(WAIT_TIMEOUT), retried(1)))),
    "a lapse of a wait": ("I8", (*RUNNING, gave_up(), after(900), expired(LEASE_EXPIRED))),
    "a late start that was none": ("I8", (requested(), job_expired(START_TIMEOUT))),
    "a lease of another length": ("I8", (requested(), leased(lease=61))),
    "leased before its time": ("I9", (requested(delay=9), leased())),
    "attempts that skip": ("I9", (requested(), leased(attempt=2))),
    "too many attempts": (
        "I9",
        (requested(retry=TWICE), leased(), (failed(), retried(0)), leased(fence=2)),
    ),
    "a retry before its backoff": ("I9", (*RUNNING, (failed(), retried(0.5)))),
    "a release that is spent too soon": ("I9", (requested(), leased(), released(spent=True))),
    "a second end": ("I10", (*RUNNING, succeeded(), job_failed())),
    "a lease after the end": ("I10", (requested(), cancelled("at_once"), leased())),
    "a job again": ("I10", (requested(), cancelled("at_once"), requested())),
    "a fact of nobody": ("I10", (started(),)),
    "leased while cancelling": (
        "I11",
        (requested(), leased(), cancel_asked(), released(), leased(fence=2, attempt=1)),
    ),
    "cancelled at once while running": ("I11", (*RUNNING, cancelled("at_once"))),
    "stopped without being asked": ("I11", (*RUNNING, cancelled("acknowledged"))),
    "asked to stop twice": ("I11", (*RUNNING, cancel_asked(), after(1), cancel_asked())),
    "asked to stop while pending": ("I11", (requested(), cancel_asked())),
    "a cancel that is not allowed": (
        "I11",
        (requested(cancel_supported=False), cancelled("at_once")),
    ),
    "tried again while cancelling": ("I11", (*RUNNING, cancel_asked(), (failed(), retried(1)))),
    "cut off too soon": ("I12", (*RUNNING, cancel_asked(), cancelled("grace_ended"))),
    "a grace of another length": ("I12", (*RUNNING, cancel_asked(grace=31))),
    "cancelling for ever": (
        "I12",
        (*RUNNING, cancel_asked(), after(31), requested(OTHER)),
    ),
    "tried again against its word": ("I13", (*RUNNING, (failed(retryable=False), retried(1)))),
    "failed with attempts left": ("I13", (*RUNNING, (failed(), job_failed()))),
    "nothing after a failure": ("I13", (*RUNNING, failed())),
    "failed for no reason": ("I13", (*RUNNING, job_failed())),
    "a fatal code that is retryable": (
        "I13",
        (requested(retry=evenly(fatal_codes=("BAD",))), leased(), (failed("BAD"), retried(1))),
    ),
    "expired where it fails": (
        "I13",
        (
            requested(retry=TWICE),
            leased(),
            after(60),
            (expired(LEASE_EXPIRED), job_expired(LEASE_EXPIRED)),
        ),
    ),
    "a place not kept": ("I16", (*RUNNING, (failed(), retried(1, order=NOON + 5)))),
    "a place before others": ("I16", (requested(), after(1), requested(OTHER, order=5))),
    "passed over": (
        "I16",
        (
            runtime_started(),
            requested(),
            after(1),
            requested(OTHER),
            after(1),
            leased(job=OTHER, session="s1", number=1),
        ),
    ),
    "a rerun of an open job": ("I18", (requested(), after(1), requested(OTHER, retried_from=JOB))),
    "a rerun of itself": ("I18", (requested(retried_from=JOB),)),
    "collected too soon": ("I19", (*RUNNING, JobCollected(JOB))),
    "progress that goes back": ("I25", (*RUNNING, progressed(50), after(1), progressed(49))),
    "progress twice a second": ("I30", (*RUNNING, progressed(50), after(0.9), progressed(51))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    expected, steps = BROKEN[name]
    log = Log().write(*steps)
    assert expected in log.rules, log.violations


@pytest.mark.parametrize("name", BROKEN)
def test_and_where_it_is(name: str) -> None:
    expected, steps = BROKEN[name]
    log = Log().write(*steps)
    first = next(v for v in log.violations if v.rule == expected)
    assert first.job_id in (JOB, OTHER)
    assert 1 <= first.position <= log.partition.entry
    assert first.detail


# --- Of entries as such --------------------------------------------------------------------------
def test_entries_are_numbered_without_a_gap() -> None:
    log = Log()
    log.check(Entry(2, NOON, 0, 0, ()))
    assert log.rules == {"I2"}


def test_time_does_not_go_back() -> None:
    log = Log().write(requested())
    log.check(Entry(2, Micros(NOON - 1), 0, 0, ()))
    log.violations += log.invariants.take_over(TakeOver("n", Micros(NOON - 1), "l", 1))
    assert [violation.rule for violation in log.violations] == ["I24"]


def test_what_does_not_fit_is_named() -> None:
    assert "I1" in Log().write(requested(), retried(1)).rules


def test_a_fold_that_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()

    def apply(entry: Entry) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(log.partition, "apply", apply)
    log.write(requested())
    assert "planted" in log.violations[0].detail
    assert log.violations[0].rule == "I1"


def test_a_fold_that_counts_otherwise_is_named() -> None:
    log = Log().write(*RUNNING)
    job = log.partition.jobs.pop(JOB)
    assert log.rules == {"I10"}
    log.partition.jobs[OTHER] = job
    assert "I1" in log.rules


# --- Of commands ---------------------------------------------------------------------------------
def test_a_command_makes_one_job() -> None:
    log = Log().write(requested(), cause="c:one")
    log.write(after(1), requested(OTHER), cause="c:one")
    assert log.rules == {"I4"}


def test_a_command_takes_one_lease() -> None:
    log = Log().write(requested()).write(leased(), cause="a:one").write((failed(), retried(1)))
    log.write(after(1)).write(leased(fence=2), cause="a:one")
    assert log.rules == {"I4"}


def test_a_key_makes_one_job() -> None:
    keyed: dict[str, Any] = {"key_digest": "00" * 16, "key_until": instant(9)}
    log = Log().write(requested(**keyed), after(1), requested(OTHER, **keyed))
    assert log.rules == {"I4"}
    fresh = Log().write(requested(**keyed), after(9), requested(OTHER, **keyed))
    assert fresh.rules == set()


def test_a_copy_that_is_recorded_breaks_nothing() -> None:
    copy = CommandDuplicated(QUEUE, CommandId("one"), "t", JOB)
    log = Log().write(requested(), cause="c:one").write(copy, cause="c:one")
    assert log.rules == set()


# --- What it allows ------------------------------------------------------------------------------
def test_patience_allows_what_is_late() -> None:
    late = (*RUNNING, cancel_asked(), after(35), requested(OTHER))
    assert Log(patience=10).write(*late).rules == set()
    assert Log(patience=4).write(*late).rules == {"I12"}


def test_a_take_over_puts_off_lapse_and_grace() -> None:
    log = Log().write(*RUNNING, cancel_asked(), after(20))
    log.violations += log.invariants.take_over(TakeOver("n", log.now, "l", 1))
    log.write(after(25), requested(OTHER), after(5), cancelled("grace_ended"))
    assert log.rules == set()


def test_a_job_of_a_later_version_is_left_alone() -> None:
    later = Unknown("ledger.job.teleported.v1", JOB, b"")
    log = Log().write(requested(), later, started(), LeasesExtended(QUEUE, BOB, ()))
    assert {violation.detail for violation in log.violations} == {
        "1 events do not fit what was before them"
    }
    log.write(cancelled("at_once"), after(1), requested(OTHER), cancelled("at_once", job=OTHER))
    assert not log.invariants._traces


def test_it_holds_no_more_than_the_open_jobs() -> None:
    log = Log(bounds=Bounds(closed_max=1))
    for number in range(3_000):
        job = job_id(str(number))
        log.write(after(1), requested(job), cancelled("at_once", job=job))
    assert not log.rules
    assert not log.invariants._traces
    assert sum(map(len, log.invariants._waiting.values())) < 1_100
