"""What may happen to one step of a flow: the invariants' own model of it, see `flow_traces`."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.domain.events import AttemptExpired, AttemptFailed, JobProgressed
from ledger.domain.failures import JOB_TIMEOUT, LEASE_EXPIRED, WAIT_TIMEOUT
from ledger.domain.flow_plan import StepPlan
from ledger.domain.ids import SECOND
from ledger.domain.traces import CURRENT as CURRENT
from ledger.domain.traces import LIVE as LIVE
from ledger.domain.traces import Complaint

ENDED = ("succeeded", "failed", "skipped", "cancelled")


class StepTrace:
    """`state` is a step's status, or `blocked`."""

    __slots__ = (
        "attempts",
        "code",
        "deadline",
        "degraded",
        "fence",
        "holder",
        "in_line",
        "name",
        "percent",
        "plan",
        "progress_at",
        "ready_at",
        "retryable",
        "sent_back",
        "since",
        "state",
        "until",
    )

    def __init__(self, name: str, plan: StepPlan, sent_back: int = 0) -> None:
        self.name = name
        self.plan = plan
        self.state = "blocked"
        self.sent_back = sent_back
        self.attempts = self.fence = self.since = self.until = self.deadline = self.ready_at = 0
        self.holder = ""
        self.percent = 0.0
        self.progress_at: int | None = None
        self.code = ""
        self.retryable = False
        self.degraded = False
        self.in_line: tuple[int, int] | None = None
        """Where it was put last, since its last lease: (its job's order, due)."""

    @property
    def has_failed(self) -> bool:
        return self.state == "failed" and not self.degraded

    @property
    def is_tried_again(self) -> bool:
        return self.retryable and self.attempts < self.plan.retry.max_attempts

    @property
    def on_fail(self) -> str:
        """What its plan says of its failure: `goto`, `degrade` or nothing."""
        rule = self.plan.on_fail
        if rule is None or (rule.codes is not None and self.code not in rule.codes):
            return ""
        if rule.goto is not None and self.sent_back < rule.max:
            return "goto"
        return "degrade" if rule.then == "degrade" else ""

    # --- Its attempts ----------------------------------------------------------------------------
    def under_fence(self, fence: int, what: str) -> Iterator[Complaint]:
        if self.state not in CURRENT:
            yield "I7", f"a {what} of {self.name} while {self.state}"
        elif fence != self.fence:
            yield "I7", f"a {what} under fence {fence}; the current one is {self.fence}"

    def progress(self, event: JobProgressed, at: int) -> Iterator[Complaint]:
        yield from self.under_fence(event.fence, "progress")
        if self.progress_at is not None and at < self.progress_at + SECOND:
            yield "I30", "progress twice within a second"
        percent = self.percent if event.percent is None else event.percent
        if percent < self.percent:
            yield "I25", f"progress from {self.percent} back to {percent}"
        self.percent, self.progress_at = percent, at

    def went_wrong(self, event: AttemptFailed | AttemptExpired) -> Iterator[Complaint]:
        if event.attempt != self.attempts:
            yield "I9", f"attempt {event.attempt} went wrong, it was {self.attempts}"
        if event.retryable and event.code in self.plan.retry.fatal_codes:
            yield "I13", f"{event.code} is fatal, and said to be retryable"
        self.state, self.code, self.retryable = "failed", event.code, event.retryable

    def expire(
        self, event: AttemptExpired, at: int, floor: int, lease_us: int
    ) -> Iterator[Complaint]:
        yield from self.under_fence(event.fence, "expiry")
        silent_at = self.until
        if self.since < floor:
            silent_at = max(silent_at, floor + lease_us)
        ends = {
            (JOB_TIMEOUT, "running"): self.deadline,
            (LEASE_EXPIRED, "leased"): silent_at,
            (LEASE_EXPIRED, "running"): silent_at,
            (WAIT_TIMEOUT, "waiting"): silent_at,
        }
        end = ends.get((event.code, self.state))
        if end is None:
            yield "I8", f"{event.code} while {self.state}"
        elif at < end:
            yield "I8", f"{event.code} {end - at} us too early"
        yield from self.went_wrong(event)
