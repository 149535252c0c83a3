"""What may happen to one job, told a second time and in the simplest way: the invariants' own
model of it, which shares no line with the rules that it checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
    Extension,
    JobCancelled,
    JobCollected,
    JobEvent,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    RetryScheduled,
    WaitStarted,
)
from ledger.domain.failures import (
    BY_THE_CLOCK,
    JOB_TIMEOUT,
    LEASE_EXPIRED,
    RELEASED,
    START_TIMEOUT,
    WAIT_TIMEOUT,
)
from ledger.domain.ids import MAIN, SECOND
from ledger.domain.job import Job, held_lease, status

RELEASES_FREE = 100
Complaint = tuple[str, str]
"""(invariant, what is wrong)"""
InLine = tuple[str, str, int]
"""(worker type, step, when it is due)"""
Place = tuple[int, int]
"""Of an entry: (its number, its first offset; -1 where nobody said)"""
NOWHERE: Place = (0, -1)
LIVE = ("leased", "running")
CURRENT = (*LIVE, "waiting")


class Trace:
    """One open job of one step. `state` is a status, or `failed` between an attempt's end and what
    follows from it."""

    __slots__ = (
        "asked",
        "attempts",
        "cancel_by",
        "cancel_since",
        "deadline",
        "ended",
        "fence",
        "holder",
        "in_line",
        "opaque",
        "order",
        "owed",
        "percent",
        "place",
        "progress_at",
        "ready_at",
        "releases",
        "since",
        "started",
        "state",
        "until",
    )

    def __init__(self, asked: JobRequested) -> None:
        self.asked = asked
        self.state = "pending"
        self.ready_at: int = asked.ready_at
        self.order = asked.order
        self.attempts = 0
        self.releases = 0
        self.fence = 0
        self.holder: tuple[str, str] = ("", "")
        self.since = 0
        self.until = 0
        self.deadline = 0
        self.started = False
        self.percent = 0.0
        self.progress_at: int | None = None
        self.cancel_by: int | None = None
        self.cancel_since = 0
        self.owed: AttemptFailed | AttemptExpired | None = None
        self.ended = False
        self.place = NOWHERE
        """Of the last entry that told something of it."""
        self.in_line: tuple[int, int] | None = None
        """Where it was put last, since its last lease: (order, due)."""
        self.opaque = False
        """A later version wrote something of it: nothing can be said of it any more."""

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def current(self) -> bool:
        return self.state in CURRENT

    def silent_at(self, floor: int) -> int:
        """When silence counts as its end: a lease, or a wait, that began before `floor` was given
        a full period after it."""
        return self.until if self.since >= floor else max(self.until, floor + self.asked.lease_us)

    def grace_end(self, floor: int) -> int | None:
        if self.cancel_by is None or self.cancel_since >= floor:
            return self.cancel_by
        return max(self.cancel_by, floor + self.asked.grace_us)

    # --- Who waits -------------------------------------------------------------------------------
    def worker_type(self, step: str) -> str:
        return self.asked.type

    def waits_until(self, step: str) -> int | None:
        """When it is due that waits to be leased; None: it does not."""
        return self.ready_at if self.state == "pending" and not self.ended else None

    def put_in_line(self) -> Iterable[InLine]:
        """What has come to wait since this was asked before."""
        if self.state != "pending" or self.ended or self.in_line == (self.order, self.ready_at):
            return ()
        self.in_line = (self.order, self.ready_at)
        return ((self.asked.type, MAIN, self.ready_at),)

    # --- One fact --------------------------------------------------------------------------------
    def follow(self, event: JobEvent, at: int, floor: int) -> Iterable[Complaint]:
        """What is wrong with a fact, given those before it; then it counts, right or wrong.

        Hot: the three of every job are told by their type, see `steps.current_lease`.
        """
        if self.ended:
            return (("I10", f"{event.TYPE} after the end"),)
        if self.owed is None:
            if type(event) is LeaseGranted:
                return self._grant(event, at)
            if type(event) is AttemptStarted:
                return self._start(event)
            if type(event) is JobSucceeded:
                return self._succeed(event)
        return self._follow(event, at, floor)

    def _follow(self, event: JobEvent, at: int, floor: int) -> Iterator[Complaint]:
        if self.owed is not None:
            yield from self._settle_debt(event)
        match event:
            case JobRequested():
                yield "I4", "requested twice"
            case LeaseGranted():
                yield from self._grant(event, at)
            case AttemptStarted():
                yield from self._start(event)
            case JobProgressed():
                yield from self._progress(event, at)
            case LeaseReleased():
                yield from self._release(event, at)
            case WaitStarted():
                yield from self._under_fence(event.fence, "wait")
                self.state, self.until = "waiting", event.until
            case AttemptFailed():
                yield from self._under_fence(event.fence, "failure")
                yield from self._went_wrong(event)
            case AttemptExpired():
                yield from self._expire(event, at, floor)
            case RetryScheduled():
                yield from self._retry(event, at)
            case JobSucceeded():
                yield from self._succeed(event)
            case JobFailed() | JobExpired():
                yield from self._fail(event, at)
            case CancelRequested():
                yield from self._cancel(event, at)
            case JobCancelled():
                yield from self._cancelled(event, at, floor)
            case JobCollected():
                yield "I19", "collected before its end"

    def at_rest(self) -> Iterable[Complaint]:
        """What should have followed in the same entry, and did not."""
        if self.owed is None:
            return ()
        return (("I13", "an attempt went wrong, and nothing follows from it"),)

    def extend(self, extension: Extension, runtime_id: str) -> Iterator[Complaint]:
        if not self.live or extension.fence != self.fence:
            yield "I8", f"extended under fence {extension.fence} while {self.state}"
            return
        if runtime_id != self.holder[0]:
            yield "I8", f"extended by {runtime_id}, held by {self.holder[0]}"
        if extension.until < self.until:
            yield "I8", "an extension that shortens the lease"
        self.until = max(self.until, extension.until)

    def differs(self, job: Job | None) -> Iterable[Complaint]:
        """Where the fold says otherwise."""
        if job is None or job.end is not None:
            return () if self.ended else (("I10", "the fold holds it for ended"),)
        found: list[Complaint] = []
        step = job.steps[0]
        lease = held_lease(step)
        if self.live != (lease is not None):
            live = f"{self.state}, yet the fold counts a live lease: {lease is not None}"
            found.append(("I14", live))
        if lease is not None and lease.until != self.until:
            found.append(("I8", f"the lease ends at {self.until}, in the fold at {lease.until}"))
        if step.attempt != self.attempts:
            found.append(("I9", f"{self.attempts} attempts, in the fold {step.attempt}"))
        if job.fence != self.fence:
            found.append(("I6", f"fence {self.fence}, in the fold {job.fence}"))
        expected = self.state if self.cancel_by is None else "cancelling"
        if status(job) != expected:
            found.append(("I1", f"it is {expected}, in the fold {status(job)}"))
        return found

    # --- By kind; no generators for what every job has: they cost more than the questions ---------
    def _under_fence(self, fence: int, what: str) -> tuple[Complaint, ...]:
        if not self.current:
            return (("I7", f"a {what} while {self.state}"),)
        if fence != self.fence:
            return (("I7", f"a {what} under fence {fence}; the current one is {self.fence}"),)
        return ()

    def _start(self, event: AttemptStarted) -> tuple[Complaint, ...]:
        found = self._under_fence(event.fence, "start")
        if self.state != "leased":
            found = (*found, ("I7", f"started while {self.state}"))
        self.state, self.deadline, self.started = "running", event.deadline, True
        return found

    def _succeed(self, event: JobSucceeded) -> tuple[Complaint, ...]:
        found = self._under_fence(event.fence, "result")
        self.ended = True
        return found

    def _grant(self, event: LeaseGranted, at: int) -> list[Complaint]:
        found: list[Complaint] = []
        asked = self.asked
        if self.current:
            found.append(("I6", f"leased again while {self.state}"))
        if event.fence <= self.fence:
            found.append(("I6", f"fence {event.fence} after {self.fence}"))
        if self.cancel_by is not None:
            found.append(("I11", "leased while cancelling"))
        if at < self.ready_at:
            found.append(("I9", f"leased {self.ready_at - at} us before it was due"))
        if event.attempt != self.attempts + 1:
            found.append(("I9", f"attempt {event.attempt} after {self.attempts}"))
        if event.attempt > asked.retry.max_attempts:
            found.append(("I9", f"attempt {event.attempt} of {asked.retry.max_attempts}"))
        if event.until != at + asked.lease_us:
            found.append(("I8", "the lease has another length than the job's"))
        self.state, self.attempts, self.fence = "leased", event.attempt, event.fence
        self.holder, self.since, self.until = (event.runtime_id, event.session), at, event.until
        self.percent, self.progress_at, self.in_line = 0.0, None, None
        return found

    def _progress(self, event: JobProgressed, at: int) -> Iterator[Complaint]:
        yield from self._under_fence(event.fence, "progress")
        if self.progress_at is not None and at < self.progress_at + SECOND:
            yield "I30", "progress twice within a second"
        percent = self.percent if event.percent is None else event.percent
        if percent < self.percent:
            yield "I25", f"progress from {self.percent} back to {percent}"
        self.percent, self.progress_at = percent, at

    def _release(self, event: LeaseReleased, at: int) -> Iterator[Complaint]:
        yield from self._under_fence(event.fence, "release")
        if self.state == "waiting":
            yield "I7", "released while waiting"
        if event.spent != (self.releases >= RELEASES_FREE):
            yield "I9", f"release {self.releases + 1} with spent={event.spent}"
        self.attempts -= not event.spent
        self.releases += 1
        self.state, self.ready_at = "pending", at

    def _went_wrong(self, event: AttemptFailed | AttemptExpired) -> Iterator[Complaint]:
        if event.attempt != self.attempts:
            yield "I9", f"attempt {event.attempt} went wrong, it was {self.attempts}"
        if event.retryable and event.code in self.asked.retry.fatal_codes:
            yield "I13", f"{event.code} is fatal, and said to be retryable"
        self.state, self.owed = "failed", event

    def _expire(self, event: AttemptExpired, at: int, floor: int) -> Iterator[Complaint]:
        yield from self._under_fence(event.fence, "expiry")
        match event.code, self.state:
            case (code, "running") if code == JOB_TIMEOUT:
                early = self.deadline - at
            case (code, "leased" | "running") if code == LEASE_EXPIRED:
                early = self.silent_at(floor) - at
            case (code, "waiting") if code == WAIT_TIMEOUT:
                early = self.silent_at(floor) - at
            case _:
                early = 0
                yield "I8", f"{event.code} while {self.state}"
        if early > 0:
            yield "I8", f"{event.code} {early} us too early"
        yield from self._went_wrong(event)

    def _settle_debt(self, event: JobEvent) -> Iterator[Complaint]:
        """What may follow an attempt that went wrong, at once and in the same entry."""
        owed, self.owed = self.owed, None
        assert owed is not None
        more = owed.retryable and self.attempts < self.asked.retry.max_attempts
        if self.cancel_by is not None:
            if not isinstance(event, JobCancelled):
                yield "I11", f"{event.TYPE} after an attempt that ended while cancelling"
        elif more != isinstance(event, RetryScheduled):
            limit = self.asked.retry.max_attempts
            yield "I13", f"{event.TYPE} after attempt {owed.attempt} of {limit}: {owed.code}"
        elif not more:
            expires = owed.code in BY_THE_CLOCK and self.asked.exhausted_as == "expired"
            if not isinstance(event, JobExpired if expires else JobFailed):
                yield "I13", f"{event.TYPE} after the last attempt: {owed.code}"

    def _retry(self, event: RetryScheduled, at: int) -> Iterator[Complaint]:
        if self.state != "failed":
            yield "I13", f"a retry while {self.state}"
        backoff = self.asked.retry.backoff_us
        least = backoff[min(self.attempts, len(backoff)) - 1] if backoff and self.attempts else 0
        if event.ready_at < at + least:
            yield "I9", f"a retry {at + least - event.ready_at} us before its backoff"
        if self.asked.retry.position == "keep" and event.order != self.order:
            yield "I16", "a retry that did not keep its place"
        self.state, self.ready_at, self.order = "pending", event.ready_at, event.order

    def _fail(self, event: JobFailed | JobExpired, at: int) -> Iterator[Complaint]:
        if self.state != "failed":
            spent = self.attempts >= self.asked.retry.max_attempts
            allowed = self.asked.start_timeout_us
            if event.code == START_TIMEOUT:
                if self.started or allowed is None or at < self.asked.ready_at + allowed:
                    yield "I8", "ended for a late start that was none"
                failed = self.asked.exhausted_as == "failed"
                if failed != isinstance(event, JobFailed):
                    yield "I13", f"a late start ended with {event.TYPE}"
            elif event.code != RELEASED or self.releases <= RELEASES_FREE or not spent:
                yield "I13", f"{event.TYPE} with {event.code} while {self.state}"
        self.ended = True

    def _cancel(self, event: CancelRequested, at: int) -> Iterator[Complaint]:
        if not self.asked.cancel_supported:
            yield "I11", "a cancel that the template does not allow"
        if self.state == "pending":
            yield "I11", "a pending job was asked to stop, not cancelled"
        if self.cancel_by is not None:
            yield "I11", "asked to stop twice"
        if event.deadline != at + self.asked.grace_us:
            yield "I12", "the grace has another length than the job's"
        self.cancel_by, self.cancel_since = event.deadline, at

    def _cancelled(self, event: JobCancelled, at: int, floor: int) -> Iterator[Complaint]:
        if not self.asked.cancel_supported:
            yield "I11", "a cancel that the template does not allow"
        if event.how == "at_once":
            if self.state != "pending":
                yield "I11", f"cancelled at once while {self.state}"
        elif self.cancel_by is None:
            yield "I11", f"cancelled ({event.how}) and nobody had asked for it"
        elif event.how == "grace_ended" and at < (self.grace_end(floor) or 0):
            yield "I12", "cancelled before the grace had ended"
        self.ended = True
