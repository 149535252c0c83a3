"""Leases on the steps of a flow: each step is given by itself, to whoever can do its kind."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.commands import (
    Beat,
    Claim,
    Heartbeat,
    HeldLease,
    Limit,
    LockJob,
    ProgressSaid,
    Report,
    ReportedFailure,
    ReportedResult,
    RequestJob,
)
from ledger.domain.decide import Decided
from ledger.domain.failures import JOB_TIMEOUT, LEASE_EXPIRED, RELEASED, START_TIMEOUT
from ledger.domain.ids import Session, StepName
from ledger.domain.job import status
from ledger.domain.job_view import job_view
from ledger.domain.rejections import Rejection
from tests.support.builders import ADA, BOB, OK, QUEUE
from tests.support.flows import TYPE, Run, back, linear, step, tries

S1 = Session("s1")


def beat_of(*held: HeldLease, number: int = 1) -> Beat:
    return Beat(ADA, S1, QUEUE, number, (TYPE,), leases=held)


# --- Lock and claim ------------------------------------------------------------------------------
@pytest.mark.rule("S1.4")
def test_lock_without_a_step_takes_the_first_that_is_due() -> None:
    run = Run(step("a"), step("b"), step("c", "a"))
    assert [run.lock(), run.lock()] == [1, 2]
    assert [job_step.status for job_step in job_view(run.job).steps] == [
        "leased",
        "leased",
        "pending",
    ]
    refused = run.refused(LockJob(run.id, BOB))
    assert refused.code == Rejection.JOB_ALREADY_LOCKED


@pytest.mark.rule("S1.4")
def test_lock_with_a_step_takes_that_one() -> None:
    run = Run(step("a"), step("b"))
    run.lock("b")
    assert run.statuses == {"a": "pending", "b": "leased"}
    assert run.refused(LockJob(run.id, BOB, StepName("b"))).code == Rejection.JOB_ALREADY_LOCKED


@pytest.mark.parametrize(
    ("name", "detail"),
    [("c", "waits for those that it needs"), ("a", "is succeeded"), ("b", "is waiting")],
)
def test_a_step_that_is_not_due_cannot_be_locked(name: str, detail: str) -> None:
    run = Run(step("a"), step("b"), step("c", "b"))
    run.finish("a")
    run.wait("b")
    refused = run.refused(LockJob(run.id, ADA, StepName(name)))
    assert (refused.code, refused.detail) == (
        Rejection.JOB_NOT_PENDING,
        f"the step {name} {detail}",
    )


def test_a_step_that_there_is_not_is_named() -> None:
    run = Run(linear("a"))
    refused = run.refused(LockJob(run.id, ADA, StepName("z")))
    assert (refused.code, refused.pointer) == (Rejection.VALIDATION_FAILED, "/step")


@pytest.mark.rule("S2.5")
def test_a_runtime_is_given_only_the_steps_of_its_kind() -> None:
    run = Run(step("a", worker_type="draw"), step("b"))
    assert (run.ready("draw"), run.ready(TYPE), run.ready("report")) == (["a"], ["b"], [])


@pytest.mark.rule("S1.4")
def test_one_claim_may_take_several_steps_of_a_flow_each_under_its_own_fence() -> None:
    run = Run(step("a"), step("b"), step("c"))
    decided = run.owner.hear(run.owner.asked(Claim(ADA, (QUEUE,), (TYPE,), 2)))
    assert isinstance(decided, Decided)
    assert [(grant.step, grant.fence) for grant in decided.grants] == [("a", 1), ("b", 2)]
    lease = job_view(run.job).lease
    assert lease is not None
    assert (lease.step, lease.fence) == ("a", 1)
    assert run.finish("b") == ["attempt_started b", "step_succeeded b"]


@pytest.mark.rule("S2.8")
def test_fences_grow_over_all_steps_and_one_of_another_step_is_no_good() -> None:
    run = Run(linear("a"), linear("b"))
    first = run.start("a")
    run.finish("a")
    second = run.start("b")
    assert second > first
    assert run.refused(Heartbeat(run.id, first)).code == Rejection.LEASE_STALE


# --- Time ----------------------------------------------------------------------------------------
@pytest.mark.rule("S1.5")
def test_each_step_has_its_own_time_else_the_jobs() -> None:
    run = Run(step("a", timeout_seconds=5.0), step("b"), timeout_seconds=30.0, lease_seconds=99.0)
    run.start("a")
    run.start("b")
    assert run.step("a").phase.deadline - run.now == 5_000_000  # type: ignore[union-attr]
    assert run.step("b").phase.deadline - run.now == 30_000_000  # type: ignore[union-attr]
    assert run.after(5)[0] == f"attempt_expired a {JOB_TIMEOUT}"


@pytest.mark.rule("S4.7")
def test_the_start_timeout_counts_only_until_the_first_start() -> None:
    run = Run(linear("a"), linear("b"), start_timeout_seconds=10.0)
    run.finish("a")
    assert run.after(100) == []
    late = Run(linear("a"), linear("b"), start_timeout_seconds=10.0)
    late.lock("a")
    assert late.after(10) == [f"expired {START_TIMEOUT}"]
    assert late.statuses == {"a": "cancelled", "b": "skipped"}
    error = job_view(late.job).error
    assert error is not None
    assert error.code == START_TIMEOUT


def test_a_take_over_gives_every_lease_of_a_flow_a_full_period() -> None:
    run = Run(step("a"), step("b"), lease_seconds=10.0)
    run.start("a")
    run.after(5)
    run.start("b")
    run.after(4)
    run.owner.take_over()
    assert run.after(9) == []
    assert status(run.job) == "running"
    assert run.after(1)[0] == f"attempt_expired a {LEASE_EXPIRED}"


def test_two_leases_that_lapse_at_once_both_do() -> None:
    run = Run(step("a"), step("b"), success_when="any_step_succeeded")
    run.start("a")
    run.start("b")
    assert run.after(60) == [
        f"attempt_expired a {LEASE_EXPIRED}",
        f"attempt_expired b {LEASE_EXPIRED}",
        f"failed {LEASE_EXPIRED}",
    ]


# --- Given back, given up ------------------------------------------------------------------------
@pytest.mark.rule("S2.8")
def test_a_step_that_is_released_spends_no_attempt() -> None:
    run = Run(linear("a"))
    assert run.release("a") == ["lease_released a"]
    assert (run.step("a").attempt, run.ready()) == (0, ["a"])


def test_after_a_hundred_releases_each_spends_one_and_the_last_fails_the_step() -> None:
    run = Run(linear("a", retry=tries(2), on_fail=back(then="degrade")), linear("b"))
    for _ in range(100):
        run.release("a")
    assert (run.release("a"), run.step("a").attempt) == (["lease_released a"], 1)
    assert run.release("a") == [
        "lease_released a",
        f"step_failed a {RELEASED}",
        "step_degraded a",
        "step_queued b",
    ]


def test_a_step_that_waits_holds_no_lease_and_its_fence_is_good_for_the_result() -> None:
    run = Run(linear("a"), linear("b"))
    fence = run.start("a")
    run.wait("a", 600)
    assert (status(run.job), job_view(run.job).lease) == ("waiting", None)
    assert run.refused(Heartbeat(run.id, fence)).code == Rejection.LEASE_STALE
    assert run.finish("a") == ["step_succeeded a", "step_queued b"]


# --- Beats and reports ---------------------------------------------------------------------------
def test_a_beat_prolongs_each_lease_that_a_runtime_holds_of_one_flow() -> None:
    run = Run(step("a"), step("b"))
    run.say(beat_of())
    grants = run.owner.assign(ADA, "s1", 2)
    held = tuple(HeldLease(run.id, grant.fence, ProgressSaid(50)) for grant in grants)
    run.owner.clock.pass_seconds(30)
    assert run.say(beat_of(*held, *held, number=2)) == [
        "attempt_started a",
        "progressed a",
        "attempt_started b",
        "progressed b",
        "runtime.leases_extended",
    ]
    assert run.after(59) == []


def test_a_beat_that_comes_with_a_report_prolongs_the_other_leases_of_the_flow() -> None:
    run = Run(step("a"), step("b"))
    run.say(beat_of())
    first, second = run.owner.assign(ADA, "s1", 2)
    run.owner.clock.pass_seconds(30)
    held = (HeldLease(run.id, first.fence), HeldLease(run.id, second.fence))
    said = (ReportedResult(run.id, first.fence, OK),)
    assert run.say(Report(ADA, S1, QUEUE, said, beat_of(*held, number=2))) == [
        "attempt_started a",
        "step_succeeded a",
        "runtime.leases_extended",
    ]
    assert run.step("b").phase.lease.until == run.now + 60_000_000  # type: ignore[union-attr]


def test_but_not_those_that_the_report_makes_void() -> None:
    run = Run(step("a"), step("b"), retry=tries(2))
    run.say(beat_of())
    first, second = run.owner.assign(ADA, "s1", 2)
    run.owner.clock.pass_seconds(30)
    held = (HeldLease(run.id, second.fence, ProgressSaid(9)),)
    said = (ReportedFailure(run.id, first.fence, "BROKEN"),)
    words = run.say(Report(ADA, S1, QUEUE, said, beat_of(*held, number=2)))
    assert words[-3:] == ["pass_restarted 2", "step_queued a", "step_queued b"]


# --- Limits --------------------------------------------------------------------------------------
LIMITED: dict[str, Any] = {"limits": (Limit(("/type",), 2),)}


def test_a_limit_counts_the_leases_of_all_steps() -> None:
    run = Run(step("a"), step("b"), step("c"), **LIMITED)
    run.lock("a")
    run.lock("b")
    assert run.ready() == []
    refused = run.refused(LockJob(run.id, ADA, StepName("c")))
    assert refused.code == Rejection.LIMIT_REACHED
    assert run.refused(LockJob(run.id, ADA, StepName("b"))).code == Rejection.JOB_ALREADY_LOCKED
    run.wait("a")
    assert run.ready() == ["c"]


def test_who_waits_for_a_limit_gets_the_place_of_a_step_while_another_is_held() -> None:
    run = Run(step("a"), step("b"), **LIMITED)
    other = run.owner.hear(run.owner.asked(RequestJob(TYPE, QUEUE)))
    assert isinstance(other, Decided)
    run.lock("a")
    run.lock("b")
    assert run.owner.partition.best(QUEUE, (TYPE,), 9, run.now) == []
    run.finish("a")
    found = run.owner.partition.best(QUEUE, (TYPE,), 9, run.now)
    assert [job.id for job, _ in found] == [other.job_id]


def test_leases_that_a_new_pass_makes_void_free_their_limits() -> None:
    run = Run(step("a"), step("b"), retry=tries(2, 60), **LIMITED)
    other = run.owner.hear(run.owner.asked(RequestJob(TYPE, QUEUE)))
    assert isinstance(other, Decided)
    run.lock("a")
    run.lock("b")
    assert run.owner.partition.best(QUEUE, (TYPE,), 9, run.now) == []
    run.fail("a")
    found = run.owner.partition.best(QUEUE, (TYPE,), 9, run.now)
    assert [(job.id, one.name) for job, one in found] == [
        (other.job_id, "a"),
        (other.job_id, "b"),
    ]


def test_one_that_waited_for_a_limit_and_has_ended_takes_nobodys_turn() -> None:
    run = Run(linear("a"), limits=(Limit(("/type",), 1),), start_timeout_seconds=10.0)
    run.start("a")
    waiting = []
    for _ in range(2):
        decided = run.owner.hear(run.owner.asked(RequestJob(TYPE, QUEUE)))
        assert isinstance(decided, Decided)
        waiting.append(decided.job_id)
        assert run.owner.partition.best(QUEUE, (TYPE,), 9, run.now) == []
        run.owner.clock.pass_seconds(5)
    assert run.after(0) == [f"expired {START_TIMEOUT}"]
    run.finish("a")
    found = run.owner.partition.best(QUEUE, (TYPE,), 9, run.now)
    assert [job.id for job, _ in found] == waiting[1:]


def test_a_limit_that_is_free_keeps_no_kind_of_runtime_waiting_for_another() -> None:
    run = Run(
        step("a"),
        step("b", worker_type="draw"),
        step("c", worker_type="read"),
        limits=(Limit(("/type",), 1),),
    )
    run.start("a")
    assert run.ready("draw", "read") == []
    run.finish("a")
    assert (run.ready("draw"), run.ready("read")) == (["b"], ["c"])
