"""A template's steps as a flow: what is left out filled in, and what cannot be refused."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from ledger.domain import conditions
from ledger.domain.commands import OnFailAsk, StepAsk, Template
from ledger.domain.failures import Retry
from ledger.domain.flow_plan import (
    ALL_STEPS_SUCCEEDED,
    ANY_STEP_SUCCEEDED,
    Flow,
    OnFail,
    StepPlan,
)
from ledger.domain.ids import StepName, micros
from ledger.domain.pointers import is_pointer, parts
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.retries import merged_retry
from ledger.domain.wrong import Wrong

Needs = dict[StepName, tuple[StepName, ...]]


def flow_of(job_type: str, template: Template) -> Flow | None:
    """None: a plain job. Steps stand behind what they need, else as they were written."""
    if not template.steps:
        return None
    needs = needs_of(template.steps)
    order = _sorted(needs)
    ranges = _ranges({step.name: step.progress for step in template.steps}, order)
    plans = {
        step.name: StepPlan(
            name=step.name,
            worker_type=step.worker_type or job_type,
            needs=needs[step.name],
            when=step.when,
            each=step.each,
            timeout_us=None if step.timeout_seconds is None else micros(step.timeout_seconds),
            retry=step_retry(template, step),
            cancelable=step.cancelable,
            progress_from=ranges[step.name][0],
            progress_to=ranges[step.name][1],
            on_fail=_on_fail(step.on_fail),
        )
        for step in template.steps
    }
    return Flow(tuple(plans[name] for name in order), template.success_when)


def wrong_steps(template: Template) -> Rejected | None:
    """The first thing that is wrong, with a pointer into the template."""
    steps = template.steps
    if not steps:
        if template.success_when != ALL_STEPS_SUCCEEDED:
            return _invalid("/success_when", "a template without steps has nothing to judge")
        return None
    names: set[StepName] = set()
    for index, step in enumerate(steps):
        if step.name in names:
            return _invalid(f"/steps/{index}/name", f"another step is called {step.name}")
        names.add(step.name)
    needs = needs_of(steps)
    for index, step in enumerate(steps):
        for number, name in enumerate(() if step.needs is UNSET else step.needs):
            if name not in names:
                return _invalid(f"/steps/{index}/needs/{number}", f"there is no step {name}")
    ordered = _sorted(needs)
    if len(ordered) < len(steps):
        index = next(i for i, step in enumerate(steps) if _needs_itself(step.name, needs))
        return _invalid(f"/steps/{index}/needs", "the step needs itself, be it through others")
    before = _before(needs, ordered)
    for index, step in enumerate(steps):
        if wrong := _wrong_step(step, f"/steps/{index}", before[step.name]):
            return wrong
    return _wrong_ranges(steps) or _wrong_condition(template.success_when, names)


def needs_of(steps: tuple[StepAsk, ...]) -> Needs:
    """`needs` absent: the step before it."""
    needs: Needs = {}
    for index, step in enumerate(steps):
        if step.needs is not UNSET:
            needs[step.name] = tuple(dict.fromkeys(step.needs))
        else:
            needs[step.name] = (steps[index - 1].name,) if index else ()
    return needs


def _sorted(needs: Needs) -> list[StepName]:
    """Each behind those that it needs; without those that stand in a circle."""
    ordered: list[StepName] = []
    left = dict(needs)
    while ready := [name for name, its in left.items() if all(one in ordered for one in its)]:
        ordered.append(ready[0])
        del left[ready[0]]
    return ordered


def _needs_itself(name: StepName, needs: Needs) -> bool:
    found: set[StepName] = set()
    left = [*needs[name]]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += needs[one]
    return name in found


def _before(needs: Needs, ordered: list[StepName]) -> dict[StepName, set[StepName]]:
    """What each step needs, be it through others."""
    before: dict[StepName, set[StepName]] = {}
    for name in ordered:
        before[name] = set(needs[name]).union(*(before[one] for one in needs[name]))
    return before


def _wrong_step(step: StepAsk, at: str, before: set[StepName]) -> Rejected | None:
    if step.when is not None and (wrong := _wrong_when(step.when, f"{at}/when", before)):
        return wrong
    if step.each is not None:
        if not is_pointer(step.each):
            return _invalid(f"{at}/each", "no JSON pointer `/<step>/…` into a step's output")
        if parts(step.each)[0] not in before:
            return _invalid(f"{at}/each", "points to no step that this one needs")
    rule = step.on_fail
    if rule is not None and rule.goto is not None and rule.goto not in before | {step.name}:
        return _invalid(
            f"{at}/on_fail/goto", "goes to no step that this one needs: only back is allowed"
        )
    return None


def _wrong_when(condition: str, at: str, before: set[StepName]) -> Rejected | None:
    compiled = conditions.compiled(condition)
    if isinstance(compiled, Wrong):
        return _invalid(at, compiled.message)
    unknown = sorted(compiled.steps - before)
    if unknown:
        return _invalid(at, f"{unknown[0]} is no step that this one needs")
    return None


def _wrong_condition(success_when: str, names: set[StepName]) -> Rejected | None:
    if success_when in (ALL_STEPS_SUCCEEDED, ANY_STEP_SUCCEEDED):
        return None
    return _wrong_when(success_when, "/success_when", names)


def _wrong_ranges(steps: tuple[StepAsk, ...]) -> Rejected | None:
    end = 0.0
    said = [(index, step.progress) for index, step in enumerate(steps) if step.progress]
    for index, (first, last) in sorted(said, key=lambda one: one[1]):
        if last < first:
            return _invalid(f"/steps/{index}/progress", "ends before it begins")
        if first < end:
            return _invalid(f"/steps/{index}/progress", "overlaps the range of another step")
        end = last
    return None


def _ranges(
    said: dict[StepName, tuple[float, float] | None], order: list[StepName]
) -> dict[StepName, tuple[float, float]]:
    """Equal shares where no step says its own; else one that does not say fills nothing."""
    if not any(said.values()):
        share = 100 / len(order)
        return {name: (share * i, share * (i + 1)) for i, name in enumerate(order)}
    ranges: dict[StepName, tuple[float, float]] = {}
    end = 0.0
    for name in order:
        ranges[name] = said[name] or (end, end)
        end = ranges[name][1]
    return ranges


def step_retry(template: Template, step: StepAsk) -> Retry:
    """One attempt, if the step does not say; in all else the template's word where it is silent."""
    retry = merged_retry(template.retry, step.retry)
    return replace(retry, max_attempts=1) if step.retry.max_attempts is UNSET else retry


def _on_fail(ask: OnFailAsk | None) -> OnFail | None:
    return None if ask is None else OnFail(ask.goto, ask.max, ask.then, ask.codes)


def _invalid(pointer: str, detail: str) -> Rejected:
    return Rejected(Rejection.VALIDATION_FAILED, detail, pointer=pointer)
