"""dbos-inc/dbos-transact-py PR #703 and SamSaffron/term-llm PR #918: a cancel that comes just
before the end is overwritten by the success, or the success by the cancel.

Here the first that ends the job in the log stands for ever, the other is refused and told how the
job has ended; and whoever was cancelled is not leased again (I10, I11). Tried in every order in
which eight things can be said and happen, and in every state of the small worlds.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Raw, Struct

from ledger.domain import deadlines, leases
from ledger.domain.cancel import cancel
from ledger.domain.commands import (
    AcknowledgeCancel,
    FailAttempt,
    LockJob,
    ReleaseLease,
    SubmitResult,
)
from ledger.domain.events import JobCancelled, JobEvent, JobSucceeded, LeaseGranted
from ledger.domain.evolve import begin
from ledger.domain.flows import folded
from ledger.domain.ids import SECOND, Fence, Micros
from ledger.domain.job import Job, Status
from ledger.domain.rejections import Rejected, Rejection
from tests.model.plans import SMALL
from tests.model.search import search
from tests.model.world import World
from tests.support.builders import ADA, BOB, JOB, evenly, requested
from tests.support.clock import NOON

INTERLEAVINGS_MIN = 10_000
LEASE_US = 10 * SECOND
TIME_OUT = "a lease or a grace runs out"
CANCEL = "cancel"
SAID = (
    CANCEL,
    CANCEL,
    LockJob(JOB, BOB),
    SubmitResult(JOB, Fence(1), output=Raw(b"1")),
    SubmitResult(JOB, Fence(2), output=Raw(b"2")),
    FailAttempt(JOB, Fence(1), "BROKEN"),
    AcknowledgeCancel(JOB, Fence(1)),
    TIME_OUT,
)
"""After ada has got the job."""
Said = str | LockJob | SubmitResult | FailAttempt | AcknowledgeCancel | ReleaseLease


class Outcome(Struct, frozen=True):
    decision: tuple[JobEvent, ...] | Rejected
    before: Job
    after: Job


def hear(job: Job, said: Said, at: Micros) -> Outcome:
    decision: tuple[JobEvent, ...] | Rejected
    match said:
        case LockJob():
            decision = leases.lock(job, said, at)
        case str():
            decision = (
                cancel(job, "", "operator", at)
                if said == CANCEL
                else deadlines.expire(job, at, Micros(0), at, at)
            )
        case _:
            decision = leases.say(job, said, at, at)
    after = job if isinstance(decision, Rejected) else folded(job, decision, at)
    return Outcome(decision, job, after)


def later(at: Micros, said: Said) -> Micros:
    return Micros(at + (2 * LEASE_US if said == TIME_OUT else 1))


def interleavings(job: Job, at: Micros, left: tuple[Said, ...]) -> Iterator[Job]:
    """The end of each order in which the rest may come; each step is looked at once."""
    if not left:
        yield job
    for i in range(len(left)):
        if left[i] in left[:i]:
            continue  # As good as the one before it.
        now = later(at, left[i])
        outcome = hear(job, left[i], now)
        check(outcome, left[i])
        yield from interleavings(outcome.after, now, left[:i] + left[i + 1 :])


def check(outcome: Outcome, said: Said) -> None:
    before, after, decision = outcome.before, outcome.after, outcome.decision
    events = () if isinstance(decision, Rejected) else decision
    if before.end is not None:
        assert after == before
        assert events == ()
        if isinstance(decision, Rejected):
            assert decision.code in (Rejection.JOB_CLOSED, Rejection.RESULT_ALREADY_EXISTS)
            assert decision.job_status == before.end
        elif said != TIME_OUT:
            # Who had won is told nothing new.
            assert isinstance(said, SubmitResult)
            assert before.end is Status.SUCCEEDED
        return
    ends = [event for event in events if isinstance(event, JobSucceeded | JobCancelled)]
    assert len(ends) <= 1
    if before.cancel is not None:
        assert not any(isinstance(event, LeaseGranted) for event in events)
    if isinstance(said, SubmitResult) and said.fence == before.fence and ends:
        assert after.end is Status.SUCCEEDED


def test_in_whatever_order_they_come_the_first_end_stands() -> None:
    asked = requested(lease_us=LEASE_US, grace_us=LEASE_US, retry=evenly(backoff_us=()))
    event = asked(NOON) if callable(asked) else asked
    job = begin(event, NOON)  # type: ignore[arg-type]
    leased = hear(job, LockJob(JOB, ADA), NOON).after
    ends = [each.end for each in interleavings(leased, NOON, SAID)]
    assert len(ends) >= INTERLEAVINGS_MIN
    assert {Status.SUCCEEDED, Status.CANCELLED} <= set(ends)


def test_so_it_is_while_owners_die_and_words_are_lost() -> None:
    """In the small world with a cancel each of them is told that the other had won."""
    world = World(SMALL["a cancel"])
    assert not search(world).wrong
    assert world.reached >= {
        "a cancel is refused: succeeded",
        "a cancel won against a result",
        "a result is refused: cancelled",
        "a result won against a cancel",
    }
