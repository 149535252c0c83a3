"""What may happen to the steps of a flow, told a second time: begun, attempted, sent back. See
`flow_traces` for the flow as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    Extension,
    JobEvent,
    JobProgressed,
    JobRequested,
    LeaseGranted,
    LeaseReleased,
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
    RELEASED,
)
from ledger.domain.flow_plan import Flow
from ledger.domain.step_traces import CURRENT, ENDED, LIVE, StepTrace
from ledger.domain.traces import NOWHERE, RELEASES_FREE, Complaint, InLine


class FlowSteps:
    """Of one open job, and what of it they share."""

    def __init__(self, asked: JobRequested, flow: Flow) -> None:
        self.asked = asked
        self.flow = flow
        self.order = asked.order
        self.ready_at: int = asked.ready_at
        self.plans = {str(plan.name): plan for plan in flow.steps}
        self.steps = {name: StepTrace(name, plan) for name, plan in self.plans.items()}
        self.fence = 0
        self.releases = 0
        self.passes = 1
        self.percent = 0.0
        self.started = False
        self.cancel_by: int | None = None
        self.cancel_since = 0
        self.ended = False
        self.place = NOWHERE
        self.opaque = False

    def grace_end(self, floor: int) -> int | None:
        """None, too, where those that are in flight run to their own time-outs."""
        graced = any(s.state in CURRENT and s.plan.cancelable for s in self.steps.values())
        if self.cancel_by is None or self.cancel_since >= floor or not graced:
            return self.cancel_by if graced else None
        return max(self.cancel_by, floor + self.asked.grace_us)

    # --- Who waits -------------------------------------------------------------------------------
    def worker_type(self, step: str) -> str:
        """Empty: it has no such step."""
        known = self.steps.get(step)
        return "" if known is None else known.plan.worker_type

    def waits_until(self, step: str) -> int | None:
        """When it is due that waits to be leased; None: it does not."""
        known = self.steps.get(step)
        if known is None or known.state != "pending" or self.cancel_by is not None or self.ended:
            return None
        return known.ready_at

    def put_in_line(self) -> Iterator[InLine]:
        """Steps that have come to wait since this was asked before. A flow that is tried again at
        the tail takes all of them there."""
        for step in self.steps.values():
            if step.state == "pending" and step.in_line != (self.order, step.ready_at):
                step.in_line = (self.order, step.ready_at)
                yield (step.plan.worker_type, step.name, step.ready_at)

    def _of_step(
        self, step: StepTrace, event: JobEvent, at: int, floor: int
    ) -> Iterator[Complaint]:
        match event:
            case LeaseGranted():
                yield from self._grant(step, event, at)
            case AttemptStarted():
                yield from step.under_fence(event.fence, "start")
                if step.state != "leased":
                    yield "I7", f"{step.name} started while {step.state}"
                timeout = step.plan.timeout_us
                if event.deadline != at + (self.asked.timeout_us if timeout is None else timeout):
                    yield "I8", f"{step.name} has another time than its plan says"
                step.state, step.deadline, self.started = "running", event.deadline, True
            case StepSucceeded():
                yield from step.under_fence(event.fence, "result")
                step.state = "succeeded"
            case StepQueued() | StepExpanded() | StepSkipped():
                yield from self._begin(step, event, at)
            case JobProgressed():
                yield from step.progress(event, at)
            case LeaseReleased():
                yield from self._release(step, event, at)
            case WaitStarted():
                yield from step.under_fence(event.fence, "wait")
                step.state, step.until = "waiting", event.until
            case AttemptFailed():
                yield from step.under_fence(event.fence, "failure")
                yield from step.went_wrong(event)
            case AttemptExpired():
                yield from step.expire(event, at, floor, self.asked.lease_us)
            case RetryScheduled():
                yield from self._retry(step, event, at)
            case StepFailed():
                yield from self._not_begun(step, event)
            case StepCarried():
                if step.state != "blocked" or self.fence or self.asked.retried_from is None:
                    yield "I25", f"{step.name} was carried over, and is {step.state}"
                step.state = "succeeded"
            case StepDegraded():
                if not step.has_failed or step.is_tried_again or step.on_fail != "degrade":
                    yield "I13", f"{step.name} is degraded against its plan"
                yield from self._unless_cancelling("degraded")
                step.degraded = True
            case StepCancelled():
                yield from self._step_cancelled(step, event, at, floor)
            case SentBack():
                yield from self._send_back(step, event)

    def extend(self, extension: Extension, runtime_id: str) -> Iterator[Complaint]:
        for step in self.steps.values():
            if step.fence == extension.fence > 0 and step.state in LIVE:
                if runtime_id != step.holder:
                    yield "I8", f"extended by {runtime_id}, held by {step.holder}"
                if extension.until < step.until:
                    yield "I8", "an extension that shortens the lease"
                step.until = max(step.until, extension.until)
                return
        yield "I8", f"extended under fence {extension.fence}, which is no live lease's"

    # --- Attempts --------------------------------------------------------------------------------
    def _unless_cancelling(self, what: str) -> Iterator[Complaint]:
        if self.cancel_by is not None:
            yield "I11", f"{what} while cancelling"

    def _grant(self, step: StepTrace, event: LeaseGranted, at: int) -> Iterator[Complaint]:
        yield from self._unless_cancelling("leased")
        if step.state in CURRENT:
            yield "I6", f"{step.name} leased again while {step.state}"
        elif step.state != "pending":
            yield "I25", f"{step.name} leased while {step.state}"
        if event.fence <= self.fence:
            yield "I6", f"fence {event.fence} after {self.fence}"
        if at < step.ready_at:
            yield "I9", f"{step.name} leased {step.ready_at - at} us before it was due"
        limit = step.plan.retry.max_attempts
        if event.attempt != step.attempts + 1 or event.attempt > limit:
            yield "I9", f"attempt {event.attempt} of {limit} after {step.attempts}"
        if event.until != at + self.asked.lease_us:
            yield "I8", "the lease has another length than the job's"
        step.state, step.attempts, step.holder = "leased", event.attempt, event.runtime_id
        step.fence = self.fence = event.fence
        step.since, step.until = at, event.until
        step.percent, step.progress_at, step.in_line = 0.0, None, None

    def _release(self, step: StepTrace, event: LeaseReleased, at: int) -> Iterator[Complaint]:
        yield from step.under_fence(event.fence, "release")
        if step.state == "waiting":
            yield "I7", "released while waiting"
        if event.spent != (self.releases >= RELEASES_FREE):
            yield "I9", f"release {self.releases + 1} with spent={event.spent}"
        step.attempts -= not event.spent
        self.releases += 1
        step.state, step.ready_at = "pending", at

    def _retry(self, step: StepTrace, event: RetryScheduled, at: int) -> Iterator[Complaint]:
        yield from self._unless_cancelling("tried again")
        if not step.has_failed or not step.is_tried_again:
            yield "I13", f"{step.name} is tried again after attempt {step.attempts}: {step.code}"
        yield from self._waits(step.plan.retry.backoff_us, step.attempts, event.ready_at, at)
        yield from self._place(step.plan.retry.position, event.order)
        step.state, step.ready_at = "pending", event.ready_at

    def _waits(
        self, backoff: tuple[int, ...], number: int, ready_at: int, at: int
    ) -> Iterator[Complaint]:
        least = backoff[min(number, len(backoff)) - 1] if backoff and number > 0 else 0
        if ready_at < at + least:
            yield "I9", f"a retry {at + least - ready_at} us before its backoff"

    def _place(self, position: str, order: int) -> Iterator[Complaint]:
        if position == "keep" and order != self.order:
            yield "I16", "a retry that did not keep its place"
        self.order = order

    # --- Steps that begin, and those that do not -------------------------------------------------
    def _needed(self, step: StepTrace) -> list[StepTrace]:
        return [one for one in self.steps.values() if one.plan.name in step.plan.needs]

    def _is_due(self, step: StepTrace) -> bool:
        return step.state == "blocked" and all(one.state in ENDED for one in self._needed(step))

    def _begin(
        self, step: StepTrace, event: StepQueued | StepExpanded | StepSkipped, at: int
    ) -> Iterator[Complaint]:
        yield from self._unless_cancelling(f"{step.name} begun")
        if not self._is_due(step):
            yield "I25", f"{event.TYPE} of {step.name}, {step.state}, before all that it needs"
        needed = self._needed(step)
        why = ""
        if any(one.has_failed for one in needed):
            why = "needs_failed"
        elif needed and all(one.state == "skipped" for one in needed):
            why = "needs_skipped"
        said = event.why if isinstance(event, StepSkipped) else ""
        if why != ("" if said == "condition" else said):
            yield "I25", f"{step.name}: {said or event.TYPE}, and it is {why or 'its turn'}"
        is_list = step.plan.each is not None and step.name == step.plan.name
        match event:
            case StepQueued():
                if event.ready_at < max(at, self.ready_at):
                    yield "I9", f"{step.name} is due before its pass is"
                if is_list:
                    yield "I25", f"{step.name} is done for each item, not itself"
                step.state, step.ready_at = "pending", event.ready_at
            case StepSkipped():
                step.state = "skipped"
            case StepExpanded():
                if not is_list:
                    yield "I25", f"{step.name} is of no list"
                self._expand(step, event)

    def _expand(self, step: StepTrace, event: StepExpanded) -> None:
        try:
            count = len(msgspec.json.decode(event.items, type=list[msgspec.Raw]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # The fold says that it does not fit.
        if not count:
            step.state = "succeeded"
            return
        self.steps = {
            trace.name: trace
            for one in self.steps.values()
            for trace in (
                [StepTrace(f"{one.name}[{n}]", one.plan, one.sent_back) for n in range(count)]
                if one is step
                else [one]
            )
        }

    def _not_begun(self, step: StepTrace, event: StepFailed) -> Iterator[Complaint]:
        yield from self._unless_cancelling(f"{step.name} failed")
        if event.code == RELEASED:
            spent = step.attempts >= step.plan.retry.max_attempts
            if step.state != "pending" or self.releases <= RELEASES_FREE or not spent:
                yield "I13", f"{step.name} failed with {event.code} while {step.state}"
        elif not self._is_due(step):
            yield "I25", f"{step.name}, {step.state}, failed before all that it needs"
        step.state, step.code, step.retryable = "failed", event.code, False

    def _step_cancelled(
        self, step: StepTrace, event: StepCancelled, at: int, floor: int
    ) -> Iterator[Complaint]:
        if self.cancel_by is None:
            yield "I11", f"{step.name} stopped ({event.how}) and nobody had asked for it"
        elif event.how == "grace_ended":
            if not step.plan.cancelable:
                yield "I12", f"{step.name} is not cancelable, and was cut off"
            elif at < (self.grace_end(floor) or 0):
                yield "I12", f"{step.name} was cut off before the grace had ended"
        if step.state not in CURRENT and not (
            step.state == "pending" and event.how == "attempt_ended"
        ):
            yield "I11", f"{step.name} stopped ({event.how}) while {step.state}"
        step.state = "cancelled"

    def _send_back(self, step: StepTrace, event: SentBack) -> Iterator[Complaint]:
        yield from self._unless_cancelling("sent back")
        rule = step.plan.on_fail
        if not step.has_failed or step.is_tried_again or rule is None or step.on_fail != "goto":
            yield "I25", f"{step.name} sends the flow back against its plan"
        elif event.to != rule.goto or event.count != step.sent_back + 1:
            yield "I25", f"sent back to {event.to}, {event.count} times"
        again = {str(event.to)}
        while more := {n for n, p in self.plans.items() if again & {*p.needs}} - again:
            again |= more
        counts = {one.plan.name: one.sent_back for one in self.steps.values()}
        counts[step.plan.name] = event.count
        self.steps = {
            (name if (name := str(one.plan.name)) in again else one.name): (
                StepTrace(name, one.plan, counts[one.plan.name]) if name in again else one
            )
            for one in self.steps.values()
        }
