"""The facts. Each is one record of `ledger.events.v1`: its type's name in `ce_type`, its fields as
JSON in the value. Events are versioned by name and never edited; a reader ignores fields that it
does not know, and keeps a type that it does not know as `Unknown`.

Instants are integer microseconds since 1970 (`*_at`, `until`, `deadline`), durations integer
microseconds (`*_us`). What a decision knew from outside (retry time, deadlines) is in the event:
a fold consults no policy and no clock.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeVar, final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ledger.domain.failures import Retry
from ledger.domain.flow_plan import Flow
from ledger.domain.ids import CommandId, Fence, JobId, Micros, QueueName, RuntimeId, Session
from ledger.domain.ids import StepName as Step
from ledger.domain.strict_json import UNDECODABLE

Labels = dict[str, str]


class Ref(Struct, frozen=True, gc=False):
    """Bytes that lie in the object store instead of the log (a claim check)."""

    key: str
    size: int
    sha256: str


# --- A job from its request to its end ----------------------------------------------------------
class JobRequested(Struct, frozen=True, gc=False, omit_defaults=True):
    """A job exists. All that its later life depends on is here, resolved: defaults, template."""

    TYPE: ClassVar[str] = "ledger.job.requested.v1"
    job_id: JobId
    queue: QueueName
    type: str
    payload: Raw
    ready_at: Micros
    """Claimable from this instant."""
    order: int
    """Where it waits among equal priority: lower is sooner. Unique within the partition."""
    priority: int = 5
    labels: Labels = {}
    scope: str | None = None
    idempotency_key: str | None = None
    key_digest: str | None = None
    """Of idempotency key and declared scope; 32 hex digits. None: no key was given."""
    content_digest: str | None = None
    key_until: Micros | None = None
    """The key is remembered until then."""
    template_version: int | None = None
    timeout_us: int = 120_000_000
    lease_us: int = 60_000_000
    start_timeout_us: int | None = None
    retry: Retry = Retry()
    cancel_supported: bool = True
    grace_us: int = 30_000_000
    exhausted_as: Literal["failed", "expired"] | None = None
    result_ttl_us: int | None = None
    failed_ttl_us: int | None = None
    payload_ref: Ref | None = None
    retried_from: JobId | None = None
    flow: Flow | None = None
    """None: a plain job, of the one step `main`."""
    dedupe_digest: str | None = None
    """Of what the template's `dedupe_keys` point to; 32 hex digits. None: nothing equals it."""
    once: bool = False
    """Its type is not repeatable: once it has succeeded, its equals are refused for ever."""
    schedule: str | None = None
    """Whose occurrence it is."""
    extract: Raw | UnsetType = UNSET
    """JSON object: what rules may see of a payload that lies elsewhere, by pointer."""
    forward_headers: str | None = None
    """Sealed, for the command `sealed_for` alone."""
    sealed_for: CommandId | None = None


@final
class LeaseGranted(Struct, frozen=True, gc=False, omit_defaults=True):
    """A step is given to one runtime for a bounded time. Attempts count from here."""

    TYPE: ClassVar[str] = "ledger.job.lease_granted.v1"
    job_id: JobId
    step: Step
    runtime_id: RuntimeId
    fence: Fence
    attempt: int
    until: Micros
    session: Session = Session("")
    """Of a runtime that reads an inbox; empty over HTTP."""
    number: int = 0
    """Of the assignment, gapless per session and queue; 0 over HTTP."""


@final
class AttemptStarted(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.attempt_started.v1"
    job_id: JobId
    step: Step
    fence: Fence
    deadline: Micros
    """The execution may not outlive it, however often its runtime beats."""


class JobProgressed(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.progressed.v1"
    job_id: JobId
    step: Step
    fence: Fence
    percent: float | None = None
    phase: str | None = None
    message: str | None = None


class LeaseReleased(Struct, frozen=True, gc=False, omit_defaults=True):
    """Given back before it was finished. Spends no attempt while `spent` is false."""

    TYPE: ClassVar[str] = "ledger.job.lease_released.v1"
    job_id: JobId
    step: Step
    fence: Fence
    reason: str = ""
    spent: bool = False


class WaitStarted(Struct, frozen=True, gc=False, omit_defaults=True):
    """The lease is given up for an external completion; its fence stays good for the report."""

    TYPE: ClassVar[str] = "ledger.job.wait_started.v1"
    job_id: JobId
    step: Step
    fence: Fence
    until: Micros


class AttemptFailed(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.attempt_failed.v1"
    job_id: JobId
    step: Step
    fence: Fence
    attempt: int
    code: str
    message: str
    retryable: bool
    details: Raw | UnsetType = UNSET


class AttemptExpired(Struct, frozen=True, gc=False, omit_defaults=True):
    """Its lease ran out (LEASE_EXPIRED), its execution did (JOB_TIMEOUT), or its wait did."""

    TYPE: ClassVar[str] = "ledger.job.attempt_expired.v1"
    job_id: JobId
    step: Step
    fence: Fence
    attempt: int
    code: str
    message: str
    retryable: bool


class RetryScheduled(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.retry_scheduled.v1"
    job_id: JobId
    step: Step
    ready_at: Micros
    order: int


@final
class JobSucceeded(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.succeeded.v1"
    job_id: JobId
    step: Step
    fence: Fence
    attempt: int
    output_hash: str
    output: Raw | UnsetType = UNSET
    """JSON as submitted; absent where `output_ref` says where it lies."""
    output_ref: Ref | None = None
    degraded: bool = False
    """Of a flow: a step had failed, and the flow went on without it."""
    extract: Raw | UnsetType = UNSET


class JobFailed(Struct, frozen=True, gc=False, omit_defaults=True):
    """Failed for good. Why is the failure of the attempt before it."""

    TYPE: ClassVar[str] = "ledger.job.failed.v1"
    job_id: JobId
    code: str


class JobExpired(Struct, frozen=True, gc=False, omit_defaults=True):
    """Ended by the clock: never started in time, or out of attempts where the template says so."""

    TYPE: ClassVar[str] = "ledger.job.expired.v1"
    job_id: JobId
    code: str


class CancelRequested(Struct, frozen=True, gc=False, omit_defaults=True):
    """Its runtime is to stop by itself until the deadline."""

    TYPE: ClassVar[str] = "ledger.job.cancel_requested.v1"
    job_id: JobId
    deadline: Micros
    reason: str = ""
    by: str = ""
    replaced_by: JobId | None = None


class JobCancelled(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.cancelled.v1"
    job_id: JobId
    how: Literal["at_once", "acknowledged", "grace_ended", "attempt_ended"]
    reason: str = ""
    by: str = ""
    replaced_by: JobId | None = None


class JobCollected(Struct, frozen=True, gc=False, omit_defaults=True):
    """The result was fetched for good; it may be removed after `expires_at` (None: never)."""

    TYPE: ClassVar[str] = "ledger.job.collected.v1"
    job_id: JobId
    expires_at: Micros | None = None


class ResultWithdrawn(Struct, frozen=True, gc=False, omit_defaults=True):
    """Nobody is given the result any more; if its owner was removed, nor the payload that lies in
    the object store. What they referred to is deleted after this."""

    TYPE: ClassVar[str] = "ledger.job.result_withdrawn.v1"
    job_id: JobId
    why: Literal["expired", "owner_removed"]


class JobErased(Struct, frozen=True, gc=False, omit_defaults=True):
    """It failed for good, and its time to be seen is over. Its events stay."""

    TYPE: ClassVar[str] = "ledger.job.erased.v1"
    job_id: JobId
    why: Literal["expired", "owner_removed"] = "expired"


class ObjectsDeleted(Struct, frozen=True, gc=False, omit_defaults=True):
    """What the job referred to in the object store is gone."""

    TYPE: ClassVar[str] = "ledger.job.objects_deleted.v1"
    job_id: JobId
    keys: tuple[str, ...]


# --- The steps of a flow; the attempts at them are told as those of a plain job ------------------
class StepQueued(Struct, frozen=True, gc=False, omit_defaults=True):
    """All that it needs is there: it waits to be leased."""

    TYPE: ClassVar[str] = "ledger.job.step_queued.v1"
    job_id: JobId
    step: Step
    ready_at: Micros


class StepExpanded(Struct, frozen=True, gc=False, omit_defaults=True):
    """The step is done once for each item of the list: `name[0]`, `name[1]`, …"""

    TYPE: ClassVar[str] = "ledger.job.step_expanded.v1"
    job_id: JobId
    step: Step
    items: Raw
    """A JSON array."""


class StepSucceeded(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.step_succeeded.v1"
    job_id: JobId
    step: Step
    fence: Fence
    attempt: int
    output_hash: str
    output: Raw | UnsetType = UNSET
    output_ref: Ref | None = None
    extract: Raw | UnsetType = UNSET
    """JSON object: what rules may see of an output that lies elsewhere, by pointer."""


class StepCarried(Struct, frozen=True, gc=False, omit_defaults=True):
    """A rerun takes the step over from the job that it reruns, as it succeeded there."""

    TYPE: ClassVar[str] = "ledger.job.step_carried.v1"
    job_id: JobId
    step: Step
    output_hash: str
    output: Raw | UnsetType = UNSET
    output_ref: Ref | None = None
    extract: Raw | UnsetType = UNSET


class StepSkipped(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.step_skipped.v1"
    job_id: JobId
    step: Step
    why: Literal["condition", "needs_skipped", "needs_failed"]


class StepFailed(Struct, frozen=True, gc=False, omit_defaults=True):
    """It could not be begun: no attempt at it went wrong."""

    TYPE: ClassVar[str] = "ledger.job.step_failed.v1"
    job_id: JobId
    step: Step
    code: str
    message: str


class StepDegraded(Struct, frozen=True, gc=False, omit_defaults=True):
    """It failed for good, and the flow goes on without its output."""

    TYPE: ClassVar[str] = "ledger.job.step_degraded.v1"
    job_id: JobId
    step: Step


class StepCancelled(Struct, frozen=True, gc=False, omit_defaults=True):
    """It stopped, while another step of the cancelling job goes on."""

    TYPE: ClassVar[str] = "ledger.job.step_cancelled.v1"
    job_id: JobId
    step: Step
    how: Literal["acknowledged", "grace_ended", "attempt_ended"]


class SentBack(Struct, frozen=True, gc=False, omit_defaults=True):
    """A step failed, and the flow is done again from `to` on; leases behind it are void."""

    TYPE: ClassVar[str] = "ledger.job.sent_back.v1"
    job_id: JobId
    step: Step
    to: Step
    count: int
    """How often that step has done so in this pass."""


class PassRestarted(Struct, frozen=True, gc=False, omit_defaults=True):
    """The flow is done again from its start; nothing of the failed pass is kept."""

    TYPE: ClassVar[str] = "ledger.job.pass_restarted.v1"
    job_id: JobId
    number: int
    """1 is the first pass."""
    ready_at: Micros
    order: int


# --- Of no single job ---------------------------------------------------------------------------
class Extension(Struct, frozen=True, gc=False, array_like=True):
    job_id: JobId
    step: Step
    fence: Fence
    until: Micros


class LeasesExtended(Struct, frozen=True, gc=False, omit_defaults=True):
    """One runtime's beat moved the ends of these leases. Part of each listed job's history."""

    TYPE: ClassVar[str] = "ledger.runtime.leases_extended.v1"
    queue: QueueName
    runtime_id: RuntimeId
    leases: tuple[Extension, ...]


class RuntimeStarted(Struct, frozen=True, gc=False, omit_defaults=True):
    """A session of a runtime offers to run these types from this queue."""

    TYPE: ClassVar[str] = "ledger.runtime.started.v1"
    queue: QueueName
    runtime_id: RuntimeId
    session: Session
    types: tuple[str, ...]
    period_us: int
    """It promised to beat this often; three silent periods end the session."""


class RuntimeEnded(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.runtime.ended.v1"
    queue: QueueName
    runtime_id: RuntimeId
    session: Session
    why: Literal["left", "silent", "superseded"]


class TemplatePut(Struct, frozen=True, gc=False, omit_defaults=True):
    """A new version of a template; `template` is its content as put, defaults resolved."""

    TYPE: ClassVar[str] = "ledger.template.put.v1"
    queue: QueueName
    type: str
    version: int
    template: Raw


class QueuePut(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an operator says of a queue, whole."""

    TYPE: ClassVar[str] = "ledger.queue.put.v1"
    queue: QueueName
    settings: Raw


class QueuePaused(Struct, frozen=True, gc=False, omit_defaults=True):
    """Nothing of it is leased until it is resumed."""

    TYPE: ClassVar[str] = "ledger.queue.paused.v1"
    queue: QueueName
    reason: str = ""
    by: str = ""


class QueueResumed(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.queue.resumed.v1"
    queue: QueueName
    reason: str = ""
    by: str = ""


class SchedulePut(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.put.v1"
    queue: QueueName
    name: str
    schedule: Raw
    command_id: CommandId
    """The ids of its occurrences' jobs derive from it."""
    next_at: Micros | None = None
    """None: it is disabled, or never fires."""


class ScheduleDeleted(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.deleted.v1"
    queue: QueueName
    name: str


class ScheduleEnabled(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.enabled.v1"
    queue: QueueName
    name: str
    next_at: Micros | None = None


class ScheduleDisabled(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.disabled.v1"
    queue: QueueName
    name: str


class ScheduleFired(Struct, frozen=True, gc=False, omit_defaults=True):
    """An occurrence came to a job, or to a refusal: either way it has had its run."""

    TYPE: ClassVar[str] = "ledger.schedule.fired.v1"
    queue: QueueName
    name: str
    nominal_at: Micros
    job_id: JobId | None = None
    code: str | None = None
    """Why there is no job."""
    detail: str = ""
    next_at: Micros | None = None
    manual: bool = False
    """By hand: no occurrence was used up."""


class ScheduleSkipped(Struct, frozen=True, gc=False, omit_defaults=True):
    """Occurrences that were missed, and that `catch_up` does not make up for."""

    TYPE: ClassVar[str] = "ledger.schedule.skipped.v1"
    queue: QueueName
    name: str
    count: int
    """At least so many."""
    first_at: Micros
    until: Micros
    """What was to be before this is over."""
    next_at: Micros | None = None


class ScheduleStopped(Struct, frozen=True, gc=False, omit_defaults=True):
    """It cannot be understood (a zone that is gone): parked until it is put anew."""

    TYPE: ClassVar[str] = "ledger.schedule.stopped.v1"
    queue: QueueName
    name: str
    reason: str


class ModelPut(Struct, frozen=True, gc=False, omit_defaults=True):
    """Its key is sealed within."""

    TYPE: ClassVar[str] = "ledger.model.put.v1"
    queue: QueueName
    name: str
    model: Raw


class ModelDeleted(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.model.deleted.v1"
    queue: QueueName
    name: str


class RequestForwarded(Struct, frozen=True, gc=False, omit_defaults=True):
    """A request lay in the wrong partition; it was sent on under the same command id."""

    TYPE: ClassVar[str] = "ledger.command.forwarded.v1"
    queue: QueueName
    command_id: CommandId
    partition: int


class CommandRejected(Struct, frozen=True, gc=False, omit_defaults=True):
    """A readable command was refused. Equal refusals are recorded once, then once a minute."""

    TYPE: ClassVar[str] = "ledger.command.rejected.v1"
    queue: QueueName
    command_id: CommandId
    command_type: str
    code: str
    detail: str = ""
    job_id: JobId | None = None
    runtime_id: RuntimeId | None = None
    count: int = 1
    """How many equal ones it stands for."""
    job_status: str | None = None
    pointer: str | None = None
    """JSON pointer to the field that is wrong."""


class CommandDuplicated(Struct, frozen=True, gc=False, omit_defaults=True):
    """The command, or an equal one, had its outcome before; nothing new came of it."""

    TYPE: ClassVar[str] = "ledger.command.duplicated.v1"
    queue: QueueName
    command_id: CommandId
    command_type: str
    job_id: JobId | None = None
    key_digest: str | None = None
    """An idempotency key that stands for that job from here on: it came with a request that the
    job answers as well."""
    content_digest: str | None = None
    key_until: Micros | None = None


class CommandsConsumed(Struct, frozen=True, gc=False, omit_defaults=True):
    """Commands that changed nothing were read: the offsets of its entry say up to where."""

    TYPE: ClassVar[str] = "ledger.command.consumed.v1"
    queue: QueueName
    count: int


class InputQuarantined(Struct, frozen=True, gc=False, omit_defaults=True):
    """A record that cannot be read was set aside in the dead-letter topic, with its reason."""

    TYPE: ClassVar[str] = "ledger.command.quarantined.v1"
    queue: QueueName
    topic: str
    offset: int
    reason: str
    sha256: str


class InputLost(Struct, frozen=True, gc=False, omit_defaults=True):
    """An operator declares that these offsets of an intake are gone, so that reading can go on."""

    TYPE: ClassVar[str] = "ledger.command.input_lost.v1"
    queue: QueueName
    topic: str
    first: int
    end: int
    """The first offset that is there again."""


class BulkStarted(Struct, frozen=True, gc=False, omit_defaults=True):
    """A bulk operation over all partitions: in the queue `_ledger`."""

    TYPE: ClassVar[str] = "ledger.operation.started.v1"
    queue: QueueName
    operation_id: str
    kind: Literal["cancel", "remove_objects"]
    where: Raw
    partitions: int
    reason: str = ""
    by: str = ""


class BulkPartStarted(Struct, frozen=True, gc=False, omit_defaults=True):
    """A partition selects the jobs open now, and requests below `requests_end` as they come."""

    TYPE: ClassVar[str] = "ledger.operation.part_started.v1"
    queue: QueueName
    operation_id: str
    where: Raw
    requests_end: int
    reason: str = ""
    by: str = ""


class BulkPartAdvanced(Struct, frozen=True, gc=False, omit_defaults=True):
    """So many more jobs of this partition were found to match; their own facts stand beside it."""

    TYPE: ClassVar[str] = "ledger.operation.part_advanced.v1"
    queue: QueueName
    operation_id: str
    matched: int


class BulkPartEnded(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.operation.part_ended.v1"
    queue: QueueName
    operation_id: str
    matched: int


class BulkPartConfirmed(Struct, frozen=True, gc=False, omit_defaults=True):
    """In `_ledger`: one partition has done its part."""

    TYPE: ClassVar[str] = "ledger.operation.part_confirmed.v1"
    queue: QueueName
    operation_id: str
    partition: int
    matched: int


class BulkEnded(Struct, frozen=True, gc=False, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.operation.ended.v1"
    queue: QueueName
    operation_id: str
    matched: int


class Unknown(Struct, frozen=True, gc=False):
    """A type of a later version, kept as it stands; its job is opaque to this reader."""

    type: str
    key: str
    data: bytes


JobEvent = (
    JobRequested
    | LeaseGranted
    | AttemptStarted
    | JobProgressed
    | LeaseReleased
    | WaitStarted
    | AttemptFailed
    | AttemptExpired
    | RetryScheduled
    | JobSucceeded
    | JobFailed
    | JobExpired
    | CancelRequested
    | JobCancelled
    | JobCollected
    | ResultWithdrawn
    | JobErased
    | ObjectsDeleted
    | StepQueued
    | StepExpanded
    | StepSucceeded
    | StepCarried
    | StepSkipped
    | StepFailed
    | StepDegraded
    | StepCancelled
    | SentBack
    | PassRestarted
)
"""Facts of one job; recorded under its id."""

QueueEvent = (
    LeasesExtended
    | RuntimeStarted
    | RuntimeEnded
    | TemplatePut
    | QueuePut
    | QueuePaused
    | QueueResumed
    | SchedulePut
    | ScheduleDeleted
    | ScheduleEnabled
    | ScheduleDisabled
    | ScheduleFired
    | ScheduleSkipped
    | ScheduleStopped
    | ModelPut
    | ModelDeleted
    | RequestForwarded
    | CommandRejected
    | CommandDuplicated
    | CommandsConsumed
    | InputQuarantined
    | InputLost
    | BulkStarted
    | BulkPartStarted
    | BulkPartAdvanced
    | BulkPartEnded
    | BulkPartConfirmed
    | BulkEnded
)
"""Facts of no single job; recorded under the queue's name."""

Event = JobEvent | QueueEvent | Unknown

JOB_EVENTS: tuple[type[JobEvent], ...] = JobEvent.__args__
QUEUE_EVENTS: tuple[type[QueueEvent], ...] = QueueEvent.__args__
TYPES: dict[str, type[JobEvent | QueueEvent]] = {t.TYPE: t for t in (*JOB_EVENTS, *QUEUE_EVENTS)}
"""Every type of this version by its name on the wire."""


T = TypeVar("T")


def decoded(content: Raw, kind: type[T]) -> T | None:
    """What an event carries as JSON of its own; None: of a form that this version does not know."""
    try:
        return msgspec.json.decode(content, type=kind)
    except UNDECODABLE:
        return None


def type_of(event: Event) -> str:
    return event.type if isinstance(event, Unknown) else event.TYPE


def key_of(event: Event) -> str:
    """The record's key: the job's id, or the queue where the event is of no single job."""
    match event:
        case Unknown():
            return event.key
        case _ if isinstance(event, JOB_EVENTS):
            return event.job_id
        case _:
            return event.queue  # type: ignore[union-attr]
