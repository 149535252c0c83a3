"""Each invariant of a flow says so when it is broken: by a log that no rule of ours writes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from ledger.domain.entries import Entry
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
    Event,
    Extension,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    LeasesExtended,
    PassRestarted,
    RetryScheduled,
    SentBack,
    StepCancelled,
    StepCarried,
    StepDegraded,
    StepExpanded,
    StepFailed,
    StepQueued,
    StepSkipped,
    StepSucceeded,
)
from ledger.domain.failures import LEASE_EXPIRED, RELEASED, START_TIMEOUT, SUCCESS_NOT_MET, Retry
from ledger.domain.flow_plan import Flow, OnFail, StepPlan
from ledger.domain.ids import Fence, Micros, Session, StepName, micros
from ledger.domain.invariants import Invariants, Violation
from ledger.domain.partition import Partition
from tests.support.builders import ADA, BOB, JOB, QUEUE, Fact
from tests.support.clock import NOON, Pause, after
from tests.support.given import at_its_time

A, B = StepName("a"), StepName("b")
Log = tuple[Fact | Pause | tuple[Fact, ...], ...]


def violations(*log: Fact | Pause | tuple[Fact, ...]) -> list[Violation]:
    """Of entries of these facts; a tuple is one entry."""
    partition = Partition(0)
    invariants = Invariants(partition, patience_us=0)
    now = NOON
    found: list[Violation] = []
    for item in log:
        if isinstance(item, Pause):
            now = Micros(now + micros(item))
            continue
        facts = item if isinstance(item, tuple) else (item,)
        events = tuple(at_its_time(fact, now) for fact in facts)
        found += invariants.check(Entry(partition.entry + 1, now, 0, 0, events))
    return found + invariants.settle()


# --- Facts ---------------------------------------------------------------------------------------
def asked(*plans: StepPlan, **said: Any) -> Fact:
    flow = Flow(
        plans or (StepPlan(A, "t"), StepPlan(B, "t", (A,))),
        said.pop("success", "all_steps_succeeded"),
    )
    fields: dict[str, Any] = {"retry": Retry(max_attempts=1), **said}
    return lambda now: JobRequested(JOB, QUEUE, "t", Raw(b"{}"), now, NOON, flow=flow, **fields)


def queued(step: StepName = A, *, early: int = 0) -> Fact:
    return lambda now: StepQueued(JOB, step, Micros(now - early))


def leased(step: StepName = A, fence: int = 1, attempt: int = 1, lease: float = 60) -> Fact:
    return lambda now: LeaseGranted(
        JOB, step, ADA, Fence(fence), attempt, Micros(now + micros(lease)), Session("")
    )


def started(step: StepName = A, fence: int = 1, timeout: float = 120) -> Fact:
    return lambda now: AttemptStarted(JOB, step, Fence(fence), Micros(now + micros(timeout)))


def done(step: StepName = A, fence: int = 1) -> Event:
    return StepSucceeded(JOB, step, Fence(fence), 1, "00", Raw(b"1"))


def failed(
    step: StepName = A, fence: int = 1, *, attempt: int = 1, retryable: bool = True
) -> Event:
    return AttemptFailed(JOB, step, Fence(fence), attempt, "BROKEN", "", retryable)


def retried(step: StepName = A, wait: float = 1, order: int = NOON) -> Fact:
    return lambda now: RetryScheduled(JOB, step, Micros(now + micros(wait)), order)


def restarted(number: int = 2, wait: float = 1, order: int = NOON) -> Fact:
    return lambda now: PassRestarted(JOB, number, Micros(now + micros(wait)), order)


def succeeded(*, degraded: bool = False) -> Event:
    return JobSucceeded(JOB, B, Fence(1), 1, "00", degraded=degraded)


def cancelling(grace: float = 30) -> Fact:
    return lambda now: CancelRequested(JOB, Micros(now + micros(grace)))


def prolonged(fence: int = 1, *, runtime: Any = ADA, lease: float = 60) -> Fact:
    return lambda now: LeasesExtended(
        QUEUE, runtime, (Extension(JOB, A, Fence(fence), Micros(now + micros(lease))),)
    )


def plan(name: StepName = A, *needs: StepName, **said: Any) -> StepPlan:
    return StepPlan(name, "t", needs, **said)


FAILED = JobFailed(JOB, "BROKEN")
TWICE = Retry(max_attempts=2)
BEGUN = ((asked(), queued()), leased(), started())
BACK = plan(on_fail=OnFail(A, 1, "degrade"))


def begun(*plans: StepPlan, **said: Any) -> tuple[Any, ...]:
    return ((asked(*plans, **said), queued()), leased(), started())


def test_a_sound_log_breaks_nothing() -> None:
    assert not violations(*BEGUN, (done(), queued(B)), leased(B, 2), (done(B, 2), succeeded()))
    assert not violations(
        *begun(BACK, plan(B, A)),
        (failed(), SentBack(JOB, A, A, 1), queued()),
        leased(fence=2),
        (failed(fence=2), StepDegraded(JOB, A), queued(B)),
        leased(B, 3),
        (done(B, 3), succeeded(degraded=True)),
    )
    assert not violations(
        *begun(plan(retry=TWICE), retry=TWICE),
        (failed(), retried()),
        after(1),
        leased(fence=2, attempt=2),
        (failed(fence=2, attempt=2), restarted(), queued(early=-1_000_000)),
        after(1),
        leased(fence=3),
        cancelling(),
        (StepCancelled(JOB, A, "acknowledged"), JobCancelled(JOB, "acknowledged")),
    )


BROKEN: dict[str, tuple[str, Log]] = {
    "a step twice at once": ("I6", (*BEGUN, leased(fence=2))),
    "a fence again": ("I6", ((asked(plan(), plan(B)), queued(), queued(B)), leased(), leased(B))),
    "a stale start": ("I7", ((asked(), queued()), leased(), started(fence=7))),
    "started twice": ("I7", (*BEGUN, started())),
    "a result of nobody": ("I7", ((asked(), queued()), (done(), queued(B)))),
    "a stale result": ("I7", (*BEGUN, (done(fence=2), queued(B)))),
    "progress of nobody": ("I7", ((asked(), queued()), JobProgressed(JOB, A, Fence(1), 5.0))),
    "more time than the plan says": ("I8", ((asked(), queued()), leased(), started(timeout=9))),
    "a lease of another length": ("I8", ((asked(), queued()), leased(lease=61))),
    "an extension that shortens": ("I8", (*BEGUN, prolonged(lease=5))),
    "an extension by another": ("I8", (*BEGUN, after(5), prolonged(runtime=BOB))),
    "an extension of nothing": ("I8", (*BEGUN, prolonged(9))),
    "an early lapse": (
        "I8",
        (*BEGUN, (AttemptExpired(JOB, A, Fence(1), 1, LEASE_EXPIRED, "", True), FAILED)),
    ),
    "a lapse of a wait": (
        "I8",
        (*BEGUN, (AttemptExpired(JOB, A, Fence(1), 1, "WAIT_TIMEOUT", "", True), FAILED)),
    ),
    "a late start that was none": ("I8", (*BEGUN, JobExpired(JOB, START_TIMEOUT))),
    "attempts that skip": ("I9", ((asked(), queued()), leased(attempt=2))),
    "too many attempts": (
        "I9",
        (*begun(plan(retry=TWICE)), (failed(), retried()), after(1), leased(fence=2, attempt=3)),
    ),
    "leased before its time": (
        "I9",
        (*begun(plan(retry=TWICE)), (failed(), retried()), leased(fence=2, attempt=2)),
    ),
    "a retry before its backoff": (
        "I9",
        (*begun(plan(retry=TWICE)), (failed(), retried(wait=0.5))),
    ),
    "a release that is spent too soon": (
        "I9",
        (*BEGUN, LeaseReleased(JOB, A, Fence(1), "", True)),
    ),
    "a pass too many": ("I9", (*BEGUN, (failed(), restarted(), queued(early=-1_000_000)))),
    "a pass before its backoff": (
        "I9",
        (*begun(retry=TWICE), (failed(), restarted(wait=0), queued())),
    ),
    "a step before its pass": ("I9", (*begun(retry=TWICE), (failed(), restarted(), queued()))),
    "after the end": ("I10", (*BEGUN, (failed(), FAILED, queued(B)))),
    "a step begun while cancelling": ("I11", (*BEGUN, cancelling(), (done(), queued(B)))),
    "leased while cancelling": (
        "I11",
        (
            (asked(plan(), plan(B)), queued(), queued(B)),
            leased(),
            cancelling(),
            leased(B, 2),
        ),
    ),
    "succeeded while cancelling": (
        "I11",
        (*begun(plan()), cancelling(), (done(), succeeded())),
    ),
    "asked to stop with nobody at it": ("I11", ((asked(), queued()), cancelling())),
    "cancelled over a runtime's head": (
        "I11",
        (*BEGUN, cancelling(), JobCancelled(JOB, "attempt_ended")),
    ),
    "cancelled at once with somebody at it": ("I11", (*BEGUN, JobCancelled(JOB, "at_once"))),
    "stopped without being asked": ("I11", (*BEGUN, StepCancelled(JOB, A, "acknowledged"))),
    "a cancel that is not allowed": (
        "I11",
        ((asked(cancel_supported=False), queued()), JobCancelled(JOB, "at_once")),
    ),
    "cut off too soon": (
        "I12",
        (
            *BEGUN,
            cancelling(),
            (StepCancelled(JOB, A, "grace_ended"), JobCancelled(JOB, "grace_ended")),
        ),
    ),
    "cut off though not cancelable": (
        "I12",
        (
            *begun(plan(cancelable=False)),
            cancelling(),
            after(30),
            (StepCancelled(JOB, A, "grace_ended"), JobCancelled(JOB, "grace_ended")),
        ),
    ),
    "a grace of another length": ("I12", (*BEGUN, cancelling(grace=31))),
    "cancelling with nobody at it": ("I12", (*BEGUN, cancelling(), done())),
    "nothing after a failure": ("I13", (*BEGUN, failed())),
    "failed with attempts left": ("I13", (*begun(plan(retry=TWICE)), (failed(), FAILED))),
    "failed with passes left": ("I13", (*begun(retry=TWICE), (failed(), FAILED))),
    "failed against on_fail": ("I13", (*begun(BACK, plan(B, A)), (failed(), FAILED))),
    "degraded before its ways back": (
        "I13",
        (*begun(BACK, plan(B, A)), (failed(), StepDegraded(JOB, A), queued(B))),
    ),
    "tried again against its word": (
        "I13",
        (*begun(plan(retry=TWICE)), (failed(retryable=False), retried())),
    ),
    "failed for no reason": ("I13", (*BEGUN, FAILED)),
    "not met and not ended": ("I13", (*BEGUN, JobFailed(JOB, SUCCESS_NOT_MET))),
    "expired where it fails": ("I13", (*BEGUN, (failed(), JobExpired(JOB, "BROKEN")))),
    "a new pass for no reason": (
        "I13",
        (*begun(retry=TWICE), (restarted(), queued(early=-1_000_000))),
    ),
    "given back too often too soon": (
        "I13",
        (*BEGUN, (LeaseReleased(JOB, A, Fence(1)), StepFailed(JOB, A, RELEASED, ""), FAILED)),
    ),
    "all ended and it goes on": ("I13", (*begun(plan()), done())),
    "no step has succeeded": (
        "I13",
        (
            *begun(plan(), success="any_step_succeeded"),
            (failed(), JobSucceeded(JOB, A, Fence(1), 1, "00")),
        ),
    ),
    "a place not kept": (
        "I16",
        (*begun(plan(retry=TWICE)), (failed(), retried(order=NOON + 5))),
    ),
    "a flow that is not begun": ("I25", (asked(),)),
    "a step that is not begun": ("I25", (*BEGUN, done())),
    "a step before what it needs": ("I25", ((asked(), queued(), queued(B)),)),
    "a step skipped for no reason": (
        "I25",
        (*BEGUN, (done(), StepSkipped(JOB, B, "needs_failed"))),
    ),
    "a list of none": ("I25", ((asked(), StepExpanded(JOB, A, Raw(b"[1]"))),)),
    "a step of another flow": ("I25", (*BEGUN, StepQueued(JOB, StepName("z"), NOON))),
    "carried into no rerun": ("I25", ((asked(), StepCarried(JOB, A, "00"), queued(B)),)),
    "sent back for no reason": ("I25", (*BEGUN, (SentBack(JOB, A, A, 1), queued()))),
    "sent back too often": (
        "I25",
        (
            *begun(BACK, plan(B, A)),
            (failed(), SentBack(JOB, A, A, 1), queued()),
            leased(fence=2),
            (failed(fence=2), SentBack(JOB, A, A, 2), queued()),
        ),
    ),
    "sent back without counting": (
        "I25",
        (*begun(BACK, plan(B, A)), (failed(), SentBack(JOB, A, A, 0), queued())),
    ),
    "degraded and not said": (
        "I25",
        (
            *begun(plan(on_fail=OnFail(then="degrade"))),
            (failed(), StepDegraded(JOB, A), succeeded()),
        ),
    ),
    "succeeded too soon": ("I25", (*BEGUN, succeeded())),
    "progress that goes back": (
        "I25",
        (
            *BEGUN,
            JobProgressed(JOB, A, Fence(1), 50.0),
            after(1),
            JobProgressed(JOB, A, Fence(1), 49.0),
        ),
    ),
    "progress twice a second": (
        "I30",
        (*BEGUN, JobProgressed(JOB, A, Fence(1), 5.0), JobProgressed(JOB, A, Fence(1), 6.0)),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    expected, log = BROKEN[name]
    found = violations(*log)
    assert expected in {violation.rule for violation in found}, found
    first = next(violation for violation in found if violation.rule == expected)
    assert first.job_id == JOB
    assert first.detail
