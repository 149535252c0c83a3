"""What each fact makes of a flow's steps."""

from __future__ import annotations

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.events import (
    JobSucceeded,
    PassRestarted,
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
from ledger.domain.failures import MESSAGES, SUCCESS_NOT_MET, Failure
from ledger.domain.flow_plan import Flow, StepPlan, base_of, instance_of
from ledger.domain.ids import Micros, StepName
from ledger.domain.job import Job, Result
from ledger.domain.step_changes import (
    BLOCKED,
    CANCELLED,
    FAILED,
    NO_PART,
    SUCCEEDED,
    Misfit,
    current,
    misfit,
    named,
    put,
)
from ledger.domain.steps import (
    Blocked,
    Leased,
    Part,
    Pending,
    Running,
    Settled,
    Status,
    Step,
    Waiting,
    current_lease,
)

# --- The steps of a flow -------------------------------------------------------------------------
OfFlow = StepQueued | StepSkipped | StepFailed | StepCancelled


def step_of_flow(job: Job, event: OfFlow, fits: object, **changes: object) -> Job | Misfit:
    """The named step changes if its phase is among those that fit."""
    step = named(job, event.step)
    if step is None or step.part is None or job.end is not None:
        return misfit(event, job)
    if not isinstance(step.phase, fits):  # type: ignore[arg-type]
        return misfit(event, job)
    return put(job, step, replace(step, **changes))


def step_cancelled(job: Job, event: StepCancelled, at: Micros) -> Job | Misfit:
    """Its runtime's own word is remembered; what a step that was cut off still says is stale."""
    step = named(job, event.step)
    lease = None if step is None else current_lease(step)
    changes: dict[str, object] = {"phase": CANCELLED, "finished_at": at}
    if lease is not None and event.how == "acknowledged":
        changes |= {"ended_fence": lease.fence, "ended_how": "cancelled"}
    return step_of_flow(job, event, Leased | Running | Waiting | Pending, **changes)


def expanded(job: Job, event: StepExpanded, at: Micros) -> Job | Misfit:
    """Its instances stand in its place; of an empty list there is nothing to do."""
    step = named(job, event.step)
    if step is None or step.part is None or job.end is not None:
        return misfit(event, job)
    items = _items(event.items)
    if type(step.phase) is not Blocked or items is None:
        return misfit(event, job)
    if not items:
        part = replace(step.part, output=event.items)
        done = replace(step, phase=SUCCEEDED, part=part, finished_at=at)
        return put(job, step, done, percent=percent_after(job, done))
    sent_back = step.part.sent_back
    instances = tuple(
        Step(instance_of(step.name, index), BLOCKED, part=Part(item=item, sent_back=sent_back))
        for index, item in enumerate(items)
    )
    place = job.steps.index(step)
    steps = job.steps[:place] + instances + job.steps[place + 1 :]
    return replace(job, steps=steps, version=job.version + 1)


def _items(array: Raw) -> list[Raw] | None:
    try:
        items = msgspec.json.decode(array, type=list[Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return [item.copy() for item in items]


def step_succeeded(job: Job, event: StepSucceeded, at: Micros) -> Job | Misfit:
    step = current(job, event)
    if step is None or step.part is None:
        return misfit(event, job)
    after = replace(
        step,
        phase=SUCCEEDED,
        finished_at=at,
        ended_fence=event.fence,
        ended_how="succeeded",
        ended_hash=event.output_hash,
        part=_with_output(step.part, event),
    )
    return put(job, step, after, percent=percent_after(job, after))


def _with_output(part: Part, event: StepSucceeded | StepCarried) -> Part:
    return replace(
        part,
        output=event.output,
        output_ref=event.output_ref,
        output_hash=event.output_hash,
        extract=event.extract,
    )


def carried(job: Job, event: StepCarried, at: Micros) -> Job | Misfit:
    step = named(job, event.step)
    if step is None or step.part is None or job.end is not None:
        return misfit(event, job)
    if type(step.phase) is not Blocked:
        return misfit(event, job)
    part = _with_output(step.part, event)
    after = replace(step, phase=SUCCEEDED, finished_at=at, part=part)
    return put(job, step, after, percent=percent_after(job, after))


def degraded(job: Job, event: StepDegraded, at: Micros) -> Job | Misfit:
    step = named(job, event.step)
    if step is None or step.part is None or step.phase != FAILED or job.end is not None:
        return misfit(event, job)
    after = replace(step, part=replace(step.part, degraded=True))
    return put(job, step, after, percent=percent_after(job, after))


def sent_back(job: Job, event: SentBack, at: Micros) -> Job | Misfit:
    """All from `to` on begins anew; how often each has sent it back is kept within the pass."""
    flow = job.request.flow
    step = named(job, event.step)
    if flow is None or step is None or step.phase != FAILED or job.end is not None:
        return misfit(event, job)
    again = behind(flow, event.to)
    if base_of(step.name) not in again:
        return misfit(event, job)
    steps: dict[StepName, Step] = {}
    for one in job.steps:
        base = base_of(one.name)
        if base not in again:
            steps[one.name] = one
        elif base not in steps:
            steps[base] = _begun_anew(one, base)
        if one is step:
            steps[base] = replace(steps[base], part=Part(sent_back=event.count))
    return replace(job, steps=tuple(steps.values()), version=job.version + 1)


def _begun_anew(step: Step, name: StepName) -> Step:
    """What its runtime said last is still known, so that saying it again is no news."""
    sent_back = 0 if step.part is None else step.part.sent_back
    part = Part(sent_back=sent_back) if sent_back else NO_PART
    return Step(
        name,
        BLOCKED,
        ended_fence=step.ended_fence,
        ended_how=step.ended_how,
        ended_hash=step.ended_hash,
        part=part,
    )


def restarted(job: Job, event: PassRestarted, at: Micros) -> Job | Misfit:
    flow = job.request.flow
    if flow is None or job.end is not None:
        return misfit(event, job)
    said = {base_of(step.name): step for step in job.steps}
    steps = tuple(
        replace(_begun_anew(said[plan.name], plan.name), part=NO_PART) for plan in flow.steps
    )
    return replace(
        job,
        steps=steps,
        passes=event.number,
        order=event.order,
        percent=None,
        failure=why_failed(job, None),
        version=job.version + 1,
    )


def why_failed(job: Job, code: str | None) -> Failure:
    """The failure that a flow ends with, or a pass of it: of a step, if one failed so."""
    for step in reversed(job.steps):
        failure, part = step.failure, step.part
        if failure is None or step.phase != FAILED or (part is not None and part.degraded):
            continue
        if code is None or failure.code == code:
            return failure
    code = SUCCESS_NOT_MET if code is None else code
    return Failure(code, MESSAGES.get(code, ""), False, job.passes)


def flow_succeeded(job: Job, event: JobSucceeded, result: Result, at: Micros) -> Job | Misfit:
    if job.end is not None or not all(type(step.phase) is Settled for step in job.steps):
        return misfit(event, job)
    return replace(
        job,
        end=Status.SUCCEEDED,
        finished_at=at,
        result=result,
        percent=100.0,
        degraded=event.degraded,
        version=job.version + 1,
    )


def behind(flow: Flow, name: StepName) -> set[StepName]:
    """The step and all that need it, be it through others. Steps stand behind what they need."""
    found = {name}
    for plan in flow.steps:
        if not found.isdisjoint(plan.needs):
            found.add(plan.name)
    return found


def mapped(plan: StepPlan, percent: float) -> float:
    """A step's own 0-100 within the part of the flow's that it fills."""
    return plan.progress_from + (plan.progress_to - plan.progress_from) * percent / 100


def percent_after(job: Job, step: Step) -> float | None:
    """How far a pass is once this step has ended. Of several instances each counts its share."""
    flow = job.request.flow
    if flow is None:
        return None
    plan = flow.plan(step.name)
    done = 100.0
    if "[" in step.name:
        same = [s for s in job.steps if base_of(s.name) == plan.name]
        ended = sum(1 for s in same if type(s.phase) is Settled or s.name == step.name)
        done = 100.0 * ended / len(same)
    return max(job.percent or 0.0, mapped(plan, done))


def not_begun(flow: Flow) -> tuple[Step, ...]:
    return tuple(Step(plan.name, BLOCKED, part=NO_PART) for plan in flow.steps)
