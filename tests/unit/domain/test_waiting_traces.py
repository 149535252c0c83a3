"""Nobody is passed over: steps of flows among plain jobs, sessions and claims over HTTP (I16)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from ledger.domain.commands import Beat, Claim, LockJob, RequestJob
from ledger.domain.events import LeaseGranted
from ledger.domain.flow_plan import StepPlan
from ledger.domain.ids import MAIN, Fence, JobId, Micros, Session, StepName, micros
from ledger.domain.ready import Place, Ready
from tests.support.builders import (
    ADA,
    JOB,
    QUEUE,
    Fact,
    cancelled,
    job_id,
    leased,
    requested,
    runtime_started,
)
from tests.support.clock import after
from tests.support.flows import TYPE, Run, step
from tests.unit.domain.test_flow_traces import asked, queued
from tests.unit.domain.test_flow_traces import leased as step_leased
from tests.unit.domain.test_invariants import Log

A, B = StepName("a"), StepName("b")
OTHER, THIRD = job_id("other"), job_id("third")
S1 = Session("s1")
EARLY = (asked(StepPlan(A, "draw"), StepPlan(B, "read")), queued(A), queued(B))
"""JOB, two steps that wait: for a runtime that draws, and for one that reads."""


def granted(job: JobId, step: StepName = MAIN, fence: int = 1, session: Session = S1) -> Fact:
    """The first attempt at it."""
    return lambda now: LeaseGranted(
        job, step, ADA, Fence(fence), 1, Micros(now + micros(60)), session, fence if session else 0
    )


def test_a_step_that_was_there_before_is_not_passed_over_for_a_job() -> None:
    log = Log().write(runtime_started(types=("draw",)), EARLY, after(1))
    log.write(requested(OTHER, type="draw"), after(1), granted(OTHER))
    (violation,) = log.violations
    assert (violation.rule, violation.job_id, violation.position) == ("I16", OTHER, 4)
    assert violation.detail == f"leased while {JOB} (a) waited before it"


def test_a_job_that_was_there_before_is_not_passed_over_for_a_step() -> None:
    log = Log().write(runtime_started(types=("read",)), requested(OTHER, type="read", order=5))
    log.write(after(1), EARLY, after(1), granted(JOB, B))
    assert log.rules == {"I16"}
    assert log.violations[0].detail == f"leased while {OTHER} (main) waited before it"


def test_steps_wait_by_their_worker_type_not_by_their_jobs() -> None:
    log = Log().write(runtime_started(types=("read",)), EARLY, after(1))
    log.write(requested(OTHER, type="draw"), after(1), step_leased(B)).write(
        granted(OTHER, fence=2)
    )
    assert log.rules == set()


def test_of_one_flow_the_first_by_name_comes_first() -> None:
    both = (asked(StepPlan(A, "read"), StepPlan(B, "read")), queued(A), queued(B))
    log = Log().write(runtime_started(types=("read",)), both, granted(JOB, B))
    assert log.rules == {"I16"}
    fair = Log().write(runtime_started(types=("read",)), both)
    fair.write((granted(JOB, A), granted(JOB, B, 2)))
    assert fair.rules == set()


def test_a_step_that_is_leased_or_whose_flow_has_ended_waits_no_more() -> None:
    log = Log().write(runtime_started(types=("draw",)), EARLY, step_leased(A), after(1))
    log.write(requested(OTHER, type="draw"), after(1), granted(OTHER))
    assert log.rules == set()
    ended = Log().write(runtime_started(types=("draw",)), EARLY, cancelled("at_once"), after(1))
    ended.write(requested(OTHER, type="draw"), after(1), granted(OTHER))
    assert ended.rules == set()


# --- Over HTTP -----------------------------------------------------------------------------------
CLAIMED: dict[str, tuple[bool, tuple[Fact, ...]]] = {
    "in order": (True, (leased(job=JOB), leased(job=OTHER))),
    "not in order": (False, (leased(job=OTHER), leased(job=JOB))),
    "over the first": (False, (leased(job=OTHER), leased(job=THIRD))),
    "over the second": (False, (leased(job=JOB), leased(job=THIRD))),
    "one alone may be a lock's": (True, (leased(job=THIRD),)),
}


@pytest.mark.parametrize("name", CLAIMED)
def test_a_claim_of_several_gets_the_best_of_the_types_that_it_shows(name: str) -> None:
    sound, grants = CLAIMED[name]
    log = Log().write(requested(), after(1), requested(OTHER), after(1), requested(THIRD))
    log.write(grants, cause="a:claim")
    assert log.rules == (set() if sound else {"I16"})


def test_of_a_claim_nothing_is_known_of_types_that_it_does_not_show() -> None:
    log = Log().write(requested(type="draw"), after(1), requested(OTHER), after(1))
    log.write(requested(THIRD))
    log.write((leased(job=OTHER), leased(job=THIRD)), cause="a:claim")
    assert log.rules == set()


# --- A bug that is planted -----------------------------------------------------------------------
@pytest.fixture
def worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal priority, who came last is given first."""
    best = Ready.best

    def worst(self: Ready, types: Iterable[str]) -> Iterator[Place]:
        return iter(sorted(best(self, types), reverse=True))

    monkeypatch.setattr(Ready, "best", worst)


def two_flows() -> Run:
    run = Run(step("a"), step("b", "a"))
    run.after(1)
    run.say(RequestJob(TYPE, QUEUE))
    return run


@pytest.mark.usefixtures("worst_first")
def test_steps_assigned_in_the_wrong_order_are_seen() -> None:
    run = two_flows()
    run.say(Beat(ADA, S1, QUEUE, 1, (TYPE,)))
    with pytest.raises(AssertionError, match=r"I16.*waited before it"):
        run.owner.assign(ADA, S1, 1)


@pytest.mark.usefixtures("worst_first")
def test_steps_claimed_in_the_wrong_order_are_seen() -> None:
    with pytest.raises(AssertionError, match=r"I16.*waited before it"):
        two_flows().say(Claim(ADA, (QUEUE,), (TYPE,), 2))


def test_who_locks_a_job_chooses_it() -> None:
    run = two_flows()
    assert run.say(LockJob(run.id, ADA)) == ["lease_granted a"]
