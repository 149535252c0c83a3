"""Flows as tests tell them: steps as a template says them, one job of it, and what is said of its
steps by their names. What comes of a command is told as short texts: `step_queued draft`."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw

from ledger.domain.commands import (
    AcknowledgeCancel,
    CancelJob,
    Command,
    FailAttempt,
    LockJob,
    OnFailAsk,
    PutTemplate,
    ReleaseLease,
    ReportProgress,
    RequestJob,
    RerunJob,
    RetryAsk,
    StartAttempt,
    StepAsk,
    SubmitResult,
    Template,
    WaitForCompletion,
)
from ledger.domain.decide import Decided, decide
from ledger.domain.events import Event, Ref
from ledger.domain.flows import inputs_of
from ledger.domain.ids import Fence, RuntimeId, StepName, new_job_id
from ledger.domain.job import Job, Result, status_of
from ledger.domain.object_keys import output_key
from ledger.domain.rejections import Rejected
from ledger.domain.steps import Part, Step, current_lease
from tests.support.builders import ADA, QUEUE
from tests.support.clock import NOON
from tests.support.given import Given, Owner

TYPE = "story"
ONCE = RetryAsk(max_attempts=1)


def step(name: str, *needs: str, **said: Any) -> StepAsk:
    """It needs those named, nothing else; `linear` steps do not say."""
    return StepAsk(StepName(name), needs=tuple(StepName(one) for one in needs), **said)


def linear(name: str, **said: Any) -> StepAsk:
    return StepAsk(StepName(name), needs=UNSET, **said)


def tries(attempts: int, *backoff: float, **said: Any) -> RetryAsk:
    return RetryAsk(attempts, backoff, 0.0, **said)


def back(goto: str | None = None, most: int = 3, **said: Any) -> OnFailAsk:
    return OnFailAsk(None if goto is None else StepName(goto), most, **said)


def template(*steps: StepAsk, **said: Any) -> Template:
    """Of one pass, unless told otherwise."""
    return Template(steps=steps, **{"retry": ONCE, **said})


FLOW_JOB = new_job_id(QUEUE, NOON, b"cmd-2")
"""What every `Run` works on."""


def ref(fence: int = 1) -> Ref:
    """An output of the run's job, under that fence."""
    return Ref(output_key(FLOW_JOB, {}, Fence(fence)), 100_000, "ab" * 32)


class Run(Given):
    """One job of a flow, and whoever works on it. Each command is asked again under the same id:
    nothing more may come of it."""

    def __init__(
        self,
        *steps: StepAsk,
        payload: bytes = b"{}",
        asked: dict[str, Any] | None = None,
        **said: Any,
    ) -> None:
        super().__init__(Owner())
        self.say(PutTemplate(QUEUE, TYPE, template(*steps, **said)))
        self.began = self.say(RequestJob(TYPE, QUEUE, payload=Raw(payload), **(asked or {})))

    # --- What is said ----------------------------------------------------------------------------
    def say(self, command: Command) -> list[str]:
        owner = self.owner
        asked = owner.asked(command)
        decision = owner.hear(asked)
        assert isinstance(decision, Decided), decision
        if decision.job_id is not None:
            self.id = decision.job_id
        again = decide(owner.partition, asked, owner.clock.now)
        assert isinstance(again, Rejected) or again.events == ()
        return told(decision.events)

    def refused(self, command: Command) -> Rejected:
        asked = self.owner.asked(command)
        decision = self.owner.hear(asked)
        assert isinstance(decision, Rejected), decision
        return decision

    def after(self, seconds: float) -> list[str]:
        """Time goes by; all that the clock says of it."""
        self.owner.clock.pass_seconds(seconds)
        said: list[str] = []
        while events := self.owner.fire():
            said += told(events)
        return said

    def lock(self, name: str | None = None, runtime: RuntimeId = ADA) -> Fence:
        wanted = None if name is None else StepName(name)
        self.say(LockJob(self.id, runtime, wanted))
        return self.job.fence

    def start(self, name: str, runtime: RuntimeId = ADA) -> Fence:
        fence = self.lock(name, runtime)
        self.say(StartAttempt(self.id, fence))
        return fence

    def finish(self, name: str, output: bytes = b"1", **said: Any) -> list[str]:
        """Its runtime, or one that starts it now, has this result."""
        return self.say(SubmitResult(self.id, self.at_work(name), Raw(output), **said))

    def fail(self, name: str, code: str = "BROKEN", **said: Any) -> list[str]:
        return self.say(FailAttempt(self.id, self.at_work(name), code, **said))

    def release(self, name: str) -> list[str]:
        return self.say(ReleaseLease(self.id, self.at_work(name)))

    def wait(self, name: str, seconds: float = 600) -> list[str]:
        return self.say(WaitForCompletion(self.id, self.at_work(name), seconds))

    def progress(self, name: str, percent: float | None = None, **said: Any) -> list[str]:
        return self.say(ReportProgress(self.id, self.at_work(name), percent, **said))

    def stop(self, name: str) -> list[str]:
        return self.say(AcknowledgeCancel(self.id, self.at_work(name)))

    def cancel(self, reason: str = "") -> list[str]:
        return self.say(CancelJob(self.id, reason))

    def rerun(self, **said: Any) -> list[str]:
        """The new job is the one that is spoken of from now on."""
        return self.say(RerunJob(self.id, **said))

    def at_work(self, name: str) -> Fence:
        lease = current_lease(self.step(name))
        return self.start(name) if lease is None else lease.fence

    # --- How it stands ---------------------------------------------------------------------------
    @property
    def job(self) -> Job:
        return self.known(self.id)

    @property
    def statuses(self) -> dict[str, str]:
        return {step.name: str(status_of(step.phase)) for step in self.job.steps}

    @property
    def result(self) -> Result:
        assert self.job.result is not None
        return self.job.result

    def part(self, name: str) -> Part:
        part = self.step(name).part
        assert part is not None
        return part

    def inputs(self, name: str) -> dict[str, bytes]:
        return {need: bytes(raw) for need, raw in inputs_of(self.job, self.step(name))[0].items()}

    def ready(self, *types: str) -> list[str]:
        """Names of its steps that a runtime of these types may have now."""
        found = self.owner.partition.best(QUEUE, types or (TYPE,), 1_000, self.now)
        return [step.name for job, step in found if job.id == self.id]

    def step(self, name: str) -> Step:
        return next(step for step in self.job.steps if step.name == name)


HOW = ("why", "how", "code", "to", "count", "number")


def told(events: tuple[Event, ...]) -> list[str]:
    """`<what> <step>`, with why, how, under which code, to where, how often."""
    texts = []
    for event in events:
        kind = event.TYPE.removeprefix("ledger.").removeprefix("job.").removesuffix(".v1")  # type: ignore[union-attr]
        words = [kind, getattr(event, "step", "")]
        words += [str(value) for name in HOW if (value := getattr(event, name, None))]
        texts.append(" ".join(word for word in words if word))
    return texts
