"""What a flow is to do: its steps, resolved from the template when the job was requested, so that
a later version of the template changes nothing in it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ledger.domain.failures import Retry
from ledger.domain.ids import STEP_PATTERN, StepName

ALL_STEPS_SUCCEEDED = "all_steps_succeeded"
ANY_STEP_SUCCEEDED = "any_step_succeeded"
ONCE = Retry(max_attempts=1)


class OnFail(Struct, frozen=True, gc=False, omit_defaults=True):
    """What follows when a step's attempts are used up; before the flow's own retry."""

    goto: StepName | None = None
    """An earlier step that it needs: from there on all is done again."""
    max: int = 0
    """So often in one pass."""
    then: Literal["degrade", "fail"] = "fail"
    codes: tuple[str, ...] | None = None
    """Only failures with these codes; None: with any."""


class StepPlan(Struct, frozen=True, gc=False, omit_defaults=True):
    name: Annotated[StepName, Meta(pattern=rf"{STEP_PATTERN}(?!\n)")]
    worker_type: str
    needs: tuple[StepName, ...] = ()
    when: str | None = None
    """A condition; false, or undefined: the step is skipped."""
    each: str | None = None
    """JSON pointer `/<step>/…` to a list in an earlier output: one instance of the step an item."""
    timeout_us: int | None = None
    """None: the job's."""
    retry: Retry = ONCE
    cancelable: bool = True
    progress_from: float = 0.0
    progress_to: float = 100.0
    """The part of the flow's 0-100 that the step's own 0-100 fills."""
    on_fail: OnFail | None = None


class Flow(Struct, frozen=True, gc=False, omit_defaults=True):
    steps: Annotated[tuple[StepPlan, ...], Meta(min_length=1)]
    success_when: str = ALL_STEPS_SUCCEEDED

    def plan(self, name: StepName) -> StepPlan:
        """Of a step, or of the step that it is an instance of."""
        base = base_of(name)
        return next(plan for plan in self.steps if plan.name == base)


def base_of(name: StepName) -> StepName:
    """`render` of `render[3]`, the fourth instance of a step over a list."""
    return StepName(name.partition("[")[0])


def instance_of(name: StepName, index: int) -> StepName:
    return StepName(f"{name}[{index}]")
