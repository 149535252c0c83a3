"""What may happen to a flow, told a second time and in the simplest way: the invariants' own model
of one, step by step, which shares no line with the rules that it checks."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
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
    WaitStarted,
)
from ledger.domain.failures import (
    BY_THE_CLOCK,
    START_TIMEOUT,
    SUCCESS_NOT_MET,
)
from ledger.domain.flow_step_traces import FlowSteps
from ledger.domain.job import Job, held_lease, status, status_of
from ledger.domain.step_traces import CURRENT, ENDED, LIVE, StepTrace
from ledger.domain.traces import Complaint

_OF_STEP = frozenset(
    {
        LeaseGranted,
        AttemptStarted,
        JobProgressed,
        LeaseReleased,
        WaitStarted,
        AttemptFailed,
        AttemptExpired,
        StepSucceeded,
        RetryScheduled,
        StepQueued,
        StepExpanded,
        StepSkipped,
        StepFailed,
        StepCarried,
        StepDegraded,
        StepCancelled,
        SentBack,
    }
)


class FlowTrace(FlowSteps):
    """One open job of many steps; asked as `traces.Trace` is."""

    # --- One fact --------------------------------------------------------------------------------
    def follow(self, event: JobEvent, at: int, floor: int) -> Iterator[Complaint]:
        """What is wrong with a fact, given those before it; then it counts, right or wrong."""
        if self.ended:
            yield "I10", f"{event.TYPE} after the end"
            return
        if type(event) in _OF_STEP:
            name = event.step  # type: ignore[union-attr]
            step = self.steps.get(name)
            if step is None:
                yield "I25", f"{event.TYPE} of {name}, which is no step"
            else:
                yield from self._of_step(step, event, at, floor)
            return
        match event:
            case JobRequested():
                yield "I4", "requested twice"
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
            case PassRestarted():
                yield from self._restart(event, at)

    # --- The whole -------------------------------------------------------------------------------
    def _restart(self, event: PassRestarted, at: int) -> Iterator[Complaint]:
        yield from self._unless_cancelling("restarted")
        retry = self.asked.retry
        if event.number != self.passes + 1 or event.number > retry.max_attempts:
            yield "I9", f"pass {event.number} of {retry.max_attempts} after {self.passes}"
        if not self._is_restarted(""):
            yield "I13", "a new pass, and nothing that asks for it"
        yield from self._waits(retry.backoff_us, self.passes, event.ready_at, at)
        yield from self._place(retry.position, event.order)
        self.steps = {name: StepTrace(name, plan) for name, plan in self.plans.items()}
        self.passes, self.percent, self.ready_at = event.number, 0.0, event.ready_at

    def _is_restarted(self, code: str) -> bool:
        """Whether a failure (with that code) is there that asks for another pass."""
        fatal = self.asked.retry.fatal_codes
        failed = [step for step in self.steps.values() if step.has_failed]
        if not failed and code in ("", SUCCESS_NOT_MET):
            tried = any(step.attempts for step in self.steps.values())
            return tried and SUCCESS_NOT_MET not in fatal and self._all_ended()
        return any(
            step.retryable and step.code not in fatal and not step.is_tried_again
            for step in failed
            if not step.on_fail and (not code or step.code == code)
        )

    def _all_ended(self) -> bool:
        return all(step.state in ENDED for step in self.steps.values())

    def _succeed(self, event: JobSucceeded) -> Iterator[Complaint]:
        yield from self._unless_cancelling("succeeded")
        steps = self.steps.values()
        if not self._all_ended():
            yield "I25", "succeeded before all its steps had ended"
        wanted = self.flow.success_when
        if wanted == "all_steps_succeeded" and any(step.has_failed for step in steps):
            yield "I13", "succeeded with a step that failed"
        if wanted == "any_step_succeeded" and all(step.state != "succeeded" for step in steps):
            yield "I13", "succeeded, and no step of it"
        if event.degraded != any(step.degraded for step in steps):
            yield "I25", f"degraded: {event.degraded}"
        self.ended = True

    def _fail(self, event: JobFailed | JobExpired, at: int) -> Iterator[Complaint]:
        yield from self._unless_cancelling("failed")
        self.ended = True
        asked = self.asked
        expired = isinstance(event, JobExpired)
        if event.code == START_TIMEOUT:
            allowed = asked.start_timeout_us
            if self.started or allowed is None or at < asked.ready_at + allowed:
                yield "I8", "ended for a late start that was none"
            if expired == (asked.exhausted_as == "failed"):
                yield "I13", f"a late start ended with {event.TYPE}"
            return
        failed = [step for step in self.steps.values() if step.has_failed]
        if all(step.code != event.code for step in failed):
            if event.code != SUCCESS_NOT_MET or failed or not self._all_ended():
                yield "I13", f"{event.TYPE} with {event.code}, and nothing failed so"
        elif any(step.code == event.code and step.on_fail for step in failed):
            yield "I13", f"{event.TYPE} against what `on_fail` says"
        elif all(step.is_tried_again for step in failed if step.code == event.code):
            yield "I13", f"{event.TYPE} with attempts left"
        if self.passes < asked.retry.max_attempts and self._is_restarted(event.code):
            yield "I13", f"{event.TYPE} after pass {self.passes} of {asked.retry.max_attempts}"
        if expired != (event.code in BY_THE_CLOCK and asked.exhausted_as == "expired"):
            yield "I13", f"{event.TYPE} after the last pass: {event.code}"

    def _cancel(self, event: CancelRequested, at: int) -> Iterator[Complaint]:
        yield from self._unless_cancelling("asked to stop")
        if not self.asked.cancel_supported:
            yield "I11", "a cancel that the template does not allow"
        if all(step.state not in CURRENT for step in self.steps.values()):
            yield "I11", "nobody is at it, and it was asked to stop"
        if event.deadline != at + self.asked.grace_us:
            yield "I12", "the grace has another length than the job's"
        self.cancel_by, self.cancel_since = event.deadline, at

    def _cancelled(self, event: JobCancelled, at: int, floor: int) -> Iterator[Complaint]:
        if not self.asked.cancel_supported:
            yield "I11", "a cancel that the template does not allow"
        if any(step.state in CURRENT for step in self.steps.values()):
            yield "I11", f"cancelled ({event.how}) while a step is in flight"
        if (event.how == "at_once") == (self.cancel_by is not None):
            yield "I11", f"cancelled ({event.how}); asked for before: {self.cancel_by is not None}"
        self.ended = True

    # --- After each entry ------------------------------------------------------------------------
    def at_rest(self) -> Iterator[Complaint]:
        """What should have followed, and did not."""
        if self.ended:
            return
        steps = self.steps.values()
        if self.cancel_by is not None:
            if all(step.state not in CURRENT for step in steps):
                yield "I12", "cancelling, and nobody is at it any more"
            return
        for step in steps:
            if self._is_due(step):
                yield "I25", f"{step.name} is not begun, and all that it needs has ended"
            if step.has_failed and (step.is_tried_again or step.on_fail):
                yield "I13", f"{step.name} failed, and what its plan says does not follow"
        if self.flow.success_when == "all_steps_succeeded" and any(s.has_failed for s in steps):
            yield "I13", "a step has failed for good, and the flow goes on"
        if self._all_ended():
            yield "I13", "all steps have ended, and the flow goes on"

    def differs(self, job: Job | None) -> Iterator[Complaint]:
        """Where the fold says otherwise."""
        if job is None or job.end is not None:
            if not self.ended:
                yield "I10", "the fold holds it for ended"
            return
        if [step.name for step in job.steps] != [*self.steps]:
            yield "I1", f"its steps are {[*self.steps]}, in the fold others"
            return
        for trace, step in zip(self.steps.values(), job.steps, strict=True):
            lease = held_lease(step)
            if (trace.state in LIVE) != (lease is not None):
                yield "I14", f"{trace.name} is {trace.state}; a live lease in the fold: {lease}"
            if lease is not None and (lease.until, lease.fence) != (trace.until, trace.fence):
                yield "I8", f"{trace.name} is held under {trace.fence} until {trace.until}"
            if step.attempt != trace.attempts:
                yield "I9", f"{trace.name}: {trace.attempts} attempts, in the fold {step.attempt}"
            expected = "pending" if trace.state == "blocked" else trace.state
            if status_of(step.phase) != expected:
                yield "I1", f"{trace.name} is {expected}, in the fold {status_of(step.phase)}"
            if step.part is None or step.part.sent_back != trace.sent_back:
                yield "I25", f"{trace.name} has sent it back {trace.sent_back} times"
        if (job.fence, job.passes) != (self.fence, self.passes):
            yield "I6", f"fence {self.fence} in pass {self.passes}, in the fold others"
        if status(job) != self._status():
            yield "I1", f"it is {self._status()}, in the fold {status(job)}"
        percent = job.percent or 0.0
        if percent < self.percent:
            yield "I25", f"the flow's progress from {self.percent} back to {percent}"
        self.percent = percent

    def _status(self) -> str:
        if self.cancel_by is not None:
            return "cancelling"
        states = {step.state for step in self.steps.values()}
        return next((s for s in ("running", "leased", "waiting") if s in states), "pending")
