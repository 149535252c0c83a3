"""What follows in a flow from what has happened to it: which steps begin, are skipped, done again,
and how the whole ends. A plain job has nothing that follows.

Every rule looks at the state alone, one after the other until none has anything to add, so that it
does not matter by which way the state was reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ledger.domain import conditions
from ledger.domain.canonical import sha256_hex
from ledger.domain.events import (
    JobCancelled,
    JobEvent,
    JobExpired,
    JobFailed,
    JobSucceeded,
    PassRestarted,
    Ref,
    SentBack,
    StepCancelled,
    StepCarried,
    StepDegraded,
    StepExpanded,
    StepFailed,
    StepQueued,
    StepSkipped,
)
from ledger.domain.evolve import evolve
from ledger.domain.failures import (
    BY_THE_CLOCK,
    EACH_NOT_A_LIST,
    INPUTS_TOO_LARGE,
    MESSAGES,
    SUCCESS_NOT_MET,
    Failure,
    is_retryable,
    retry_at,
)
from ledger.domain.flow_plan import (
    ALL_STEPS_SUCCEEDED,
    ANY_STEP_SUCCEEDED,
    Flow,
    StepPlan,
    base_of,
)
from ledger.domain.ids import INLINE_BYTES_MAX, JobId, Micros, StepName
from ledger.domain.job import Blocked, Job, Settled, status_of
from ledger.domain.pointers import find, parts
from ledger.domain.step_changes import FAILED, SKIPPED, SUCCEEDED, Misfit
from ledger.domain.steps import Part, Status, Step, current_lease
from ledger.domain.wrong import Wrong

ITEMS_MAX = 256
"""Instances of one step."""
INPUTS_BYTES_MAX = 262_144
"""Of the outputs that one step is given, without those by reference."""

Events = tuple[JobEvent, ...]


def follow(job: Job, events: Events, at: Micros, order: int) -> Events:
    """The events, and all that follows from them. `order` is the place behind all that wait."""
    if job.request.flow is None:
        return events
    said: list[JobEvent] = list(events)
    job = folded(job, events, at)
    while more := _next(job, said, at, order):
        after = folded(job, more, at)
        if after is job:
            break  # Of a flow that no template of this version makes.
        said += more
        job = after
    return tuple(said)


def folded(job: Job, events: Events, at: Micros) -> Job:
    """The job with these facts folded in, for rules that decide on what others leave."""
    for event in events:
        after = evolve(job, event, at)
        job = job if isinstance(after, Misfit) else after
    return job


def _next(job: Job, said: list[JobEvent], at: Micros, order: int) -> Events:
    flow = job.request.flow
    if flow is None or job.end is not None:
        return ()
    if job.cancel is not None:
        return _cancelled(job, said)
    for step in job.steps:
        if _has_failed(step) and (settled := _after_failure(job, flow, step, at, order)):
            return settled
    if begun := tuple(_begin(job, flow, _begins_at(job, said, at))):
        return begun
    if all(type(step.phase) is Settled for step in job.steps):
        return _end(job, flow, at, order)
    return ()


def _cancelled(job: Job, said: list[JobEvent]) -> Events:
    """Nothing more is begun; the last step that is in flight takes the job along."""
    cancel = job.cancel
    if cancel is None or any(current_lease(step) is not None for step in job.steps):
        return ()
    last = said[-1] if said else None
    how = last.how if isinstance(last, StepCancelled) else "attempt_ended"
    return (JobCancelled(job.id, how, cancel.reason, cancel.by),)


# --- A step that failed --------------------------------------------------------------------------
def _after_failure(job: Job, flow: Flow, step: Step, at: Micros, order: int) -> Events:
    """Its own attempts are used up: its `on_fail`, then the flow's retry. Where the flow may
    succeed without it, nothing: the others go on."""
    assert step.failure is not None
    assert step.part is not None
    rule = flow.plan(step.name).on_fail
    if rule is not None and (rule.codes is None or step.failure.code in rule.codes):
        if rule.goto is not None and step.part.sent_back < rule.max:
            return (SentBack(job.id, step.name, rule.goto, step.part.sent_back + 1),)
        if rule.then == "degrade":
            return (StepDegraded(job.id, step.name),)
    if flow.success_when == ALL_STEPS_SUCCEEDED:
        return _pass_failed(job, step.failure, at, order)
    return ()


def _pass_failed(job: Job, failure: Failure, at: Micros, order: int) -> Events:
    retry = job.request.retry
    again = failure.retryable and is_retryable(retry, failure.code, None)
    if again and job.passes < retry.max_attempts:
        ready_at = retry_at(retry, job.id, job.passes, at)
        place = order if retry.position == "tail" else job.order
        return (PassRestarted(job.id, job.passes + 1, ready_at, place),)
    if failure.code in BY_THE_CLOCK and job.request.exhausted_as == "expired":
        return (JobExpired(job.id, failure.code),)
    return (JobFailed(job.id, failure.code),)


# --- Steps whose turn it may be ------------------------------------------------------------------
def _begins_at(job: Job, said: list[JobEvent], at: Micros) -> Micros:
    """Not before the job's own time, nor before the backoff of a pass that was just restarted."""
    for event in reversed(said):
        if type(event) is PassRestarted:
            return event.ready_at
    return max(at, job.request.ready_at)


def _begin(job: Job, flow: Flow, ready_at: Micros) -> Iterator[JobEvent]:
    for step in job.steps:
        if type(step.phase) is not Blocked:
            continue
        plan = flow.plan(step.name)
        needed = [one for one in job.steps if base_of(one.name) in plan.needs]
        if not all(type(one.phase) is Settled for one in needed):
            continue
        yield _turn_of(job, flow, plan, step, needed, ready_at)


def _turn_of(
    job: Job, flow: Flow, plan: StepPlan, step: Step, needed: list[Step], ready_at: Micros
) -> JobEvent:
    if any(_has_failed(one) for one in needed):
        return StepSkipped(job.id, step.name, "needs_failed")
    if needed and all(one.phase == SKIPPED for one in needed):
        return StepSkipped(job.id, step.name, "needs_skipped")
    is_instance = step.name != plan.name
    if not is_instance and plan.when is not None and not _holds(job, plan.when):
        return StepSkipped(job.id, step.name, "condition")
    if plan.each is not None and not is_instance:
        items = _items(job, plan.each)
        if items is None:
            return _not_begun(job, step, EACH_NOT_A_LIST)
        return StepExpanded(job.id, step.name, Raw(msgspec.json.encode(items)))
    if sum(len(raw) for raw in inputs_of(job, step)[0].values()) > INPUTS_BYTES_MAX:
        return _not_begun(job, step, INPUTS_TOO_LARGE)
    return StepQueued(job.id, step.name, ready_at)


def _not_begun(job: Job, step: Step, code: str) -> StepFailed:
    return StepFailed(job.id, step.name, code, MESSAGES[code])


def _has_failed(step: Step) -> bool:
    return step.phase == FAILED and not (step.part is not None and step.part.degraded)


# --- The end -------------------------------------------------------------------------------------
def _end(job: Job, flow: Flow, at: Micros, order: int) -> Events:
    if not _is_met(job, flow):
        failed = [step.failure for step in job.steps if _has_failed(step) and step.failure]
        failure = failed[-1] if failed else None
        if failure is None:
            # Where no runtime had a say, another pass would come to the same.
            retryable = any(step.attempt for step in job.steps)
            message = MESSAGES[SUCCESS_NOT_MET]
            failure = Failure(SUCCESS_NOT_MET, message, retryable, job.passes)
        return _pass_failed(job, failure, at, order)
    output, ref, output_hash = _result(job, flow)
    degraded = any(step.part is not None and step.part.degraded for step in job.steps)
    return (
        JobSucceeded(
            job.id,
            sinks_of(flow)[-1].name,
            job.fence,
            job.passes,
            output_hash,
            output,
            ref,
            degraded,
        ),
    )


def _is_met(job: Job, flow: Flow) -> bool:
    if flow.success_when == ALL_STEPS_SUCCEEDED:
        return True  # A step that failed has ended the pass before.
    if flow.success_when == ANY_STEP_SUCCEEDED:
        return any(step.phase == SUCCEEDED for step in job.steps)
    return _holds(job, flow.success_when)


def sinks_of(flow: Flow) -> list[StepPlan]:
    needed = {name for plan in flow.steps for name in plan.needs}
    return [plan for plan in flow.steps if plan.name not in needed]


def gives_the_result(job: Job, step: Step) -> bool:
    """Whether its output is to be the job's result, as it is: of a plain job, or of the flow's one
    last step."""
    flow = job.request.flow
    if flow is None:
        return True
    return [step.name] == [plan.name for plan in sinks_of(flow)]


def _result(job: Job, flow: Flow) -> tuple[Raw | UnsetType, Ref | None, str]:
    """The output of the last step that no other needs; of several an object by name, in which one
    by reference is `{"output_ref": …}`. One that would not fit the log says of each output only its
    hash: the steps have them."""
    sinks = sinks_of(flow)
    if len(sinks) == 1:
        steps = instances(job, sinks[0].name)
        part = steps[0].part
        if steps[0].name == sinks[0].name and part is not None and part.output_hash:
            return part.output, part.output_ref, part.output_hash
        output = _said_of(job, sinks[0].name)
    else:
        output = Raw(msgspec.json.encode({plan.name: _said_of(job, plan.name) for plan in sinks}))
    if len(output) > INLINE_BYTES_MAX:
        hashes = {step.name: step.part.output_hash for step in job.steps if step.part is not None}
        output = Raw(msgspec.json.encode({"output_hashes": hashes}))
    return output, None, _hash_of(output)


def _said_of(job: Job, name: StepName) -> Raw:
    """An output within the flow's result; null where there is none."""
    steps = instances(job, name)
    said = [_said_by(step.part or Part()) for step in steps]
    return said[0] if steps[0].name == name else Raw(msgspec.json.encode(said))


def _said_by(part: Part) -> Raw:
    if part.output_ref is not None:
        return Raw(msgspec.json.encode({"output_ref": part.output_ref}))
    return part.output or NULL


def _hash_of(output: Raw) -> str:
    """Of what has a canonical form; of one with a number beyond it the bytes as they are."""
    try:
        return sha256_hex(msgspec.json.decode(output))
    except ValueError:
        return sha256(output).hexdigest()


# --- A rerun from where it failed ----------------------------------------------------------------
def stored_outputs(job: Job) -> dict[StepName, Ref]:
    """By step, of those that succeeded: outputs that lie in the object store, or did."""
    return {
        step.name: step.part.output_ref
        for step in job.steps
        if step.phase == SUCCEEDED and step.part is not None and step.part.output_ref is not None
    }


def carry(original: Job, job_id: JobId, copies: Mapping[StepName, Ref]) -> Events:
    """The steps that succeeded, for a rerun that does not do them again. An object belongs to one
    job: a step whose output lies in the object store goes along if there is a copy of it."""
    events: list[JobEvent] = []
    flow = original.request.flow
    for plan in flow.steps if flow is not None else ():
        steps = instances(original, plan.name)
        items = [NULL if (p := step.part) is None else p.item or NULL for step in steps]
        done = [
            step
            for step in steps
            if step.phase == SUCCEEDED
            and step.part is not None
            and (step.part.output_ref is None or step.name in copies)
        ]
        if steps and steps[0].name != plan.name and done:
            events.append(StepExpanded(job_id, plan.name, Raw(msgspec.json.encode(items))))
        for step in done:
            part = step.part
            assert part is not None
            its = (part.output_hash, part.output, copies.get(step.name), part.extract)
            events.append(StepCarried(job_id, step.name, *its))
    return tuple(events)


# --- Outputs as inputs ---------------------------------------------------------------------------
NULL = Raw(b"null")


def instances(job: Job, name: StepName) -> list[Step]:
    """The step itself, or those that it was done as, in the order of the list."""
    return [step for step in job.steps if base_of(step.name) == name]


def output_of(job: Job, name: StepName) -> Raw | None:
    """Of a step over a list: a list, with null where an instance has none. None: by reference, or
    there is none."""
    steps = instances(job, name)
    if len(steps) == 1 and steps[0].name == name:
        return (steps[0].part.output or None) if steps[0].part is not None else None
    outputs = [NULL if (p := step.part) is None else p.output or NULL for step in steps]
    return Raw(msgspec.json.encode(outputs))


def inputs_of(job: Job, step: Step) -> tuple[dict[str, Raw], dict[str, Ref]]:
    """What a step is given: the outputs of those that it needs, by name, null where there is none;
    and where those lie that are kept elsewhere, by the step's (or instance's) name."""
    flow = job.request.flow
    if flow is None:
        return {}, {}
    inputs: dict[str, Raw] = {}
    refs: dict[str, Ref] = {}
    for name in flow.plan(step.name).needs:
        inputs[name] = output_of(job, name) or NULL
        for one in instances(job, name):
            if one.part is not None and one.part.output_ref is not None:
                refs[one.name] = one.part.output_ref
    return inputs, refs


def _items(job: Job, pointer: str) -> list[Raw] | None:
    """What `each` points to: `/<step>/…` in that step's output. None: no list, or too long."""
    name, *rest = parts(pointer)
    found = find(_seen(job, StepName(name)), rest)
    if type(found) is not list or len(found) > ITEMS_MAX:
        return None
    return [Raw(msgspec.json.encode(item)) for item in found]


def _holds(job: Job, condition: str) -> bool:
    compiled = conditions.compiled(condition)
    if isinstance(compiled, Wrong):
        return False  # Put by a version that allowed it.
    flow = job.request.flow
    assert flow is not None
    steps: dict[str, Any] = {
        plan.name: {"status": step_status(job, plan.name), "output": _seen(job, plan.name)}
        for plan in flow.steps
    }
    return compiled.holds(payload_seen(job), job.request.labels, steps)


def step_status(job: Job, name: StepName) -> str:
    """Of a step over a list: as its worst instance, `succeeded` when all are."""
    found = [status_of(step.phase) for step in instances(job, name)]
    for worst in (Status.FAILED, Status.CANCELLED, Status.SKIPPED):
        if worst in found:
            return worst
    return found[0] if len(set(found)) == 1 else Status.RUNNING


def _seen(job: Job, name: StepName) -> Any:
    """An output as rules see it; of one that lies elsewhere, what came along."""
    steps = instances(job, name)
    if not steps:
        return None  # Only a log that others wrote speaks of a step that the flow does not have.
    seen = [_seen_of(step.part or Part()) for step in steps]
    return seen[0] if steps[0].name == name else seen


def _seen_of(part: Part) -> Any:
    if part.extract is not UNSET:
        return nested(part.extract)
    return None if part.output is UNSET else msgspec.json.decode(part.output)


def payload_seen(job: Job) -> Any:
    asked = job.request
    if asked.payload_ref is None:
        return msgspec.json.decode(asked.payload)
    return {} if asked.extract is UNSET else nested(asked.extract).get("payload", {})


def nested(extract: Raw) -> Any:
    """Values by pointer as the object that the pointers lead into; by "" the whole."""
    whole: dict[str, Any] = {}
    for pointer, value in msgspec.json.decode(extract).items():
        if not pointer:
            return value
        if pointer == "/payload":
            continue  # A hash, for those who only compare.
        *path, last = parts(pointer)
        inner = whole
        for name in path:
            deeper = inner.setdefault(name, {})
            if type(deeper) is not dict:
                break
            inner = deeper
        else:
            inner[last] = value
    return whole
