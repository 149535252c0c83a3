"""The asks. Each is one record of an intake: its type's name in `ce_type`, its fields as JSON.

An unknown field is an error. What a command says at the edge (seconds, RFC 3339) stays so here;
the rules turn it into integer microseconds once, when they decide.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, final

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ledger.domain.events import Ref
from ledger.domain.ids import (
    QUEUE_PATTERN,
    STEP_PATTERN,
    TYPE_PATTERN,
    CommandId,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
    StepName,
)

# --- The shapes of fields, with the bounds of the HTTP contract ---------------------------------
# `$` alone would let a line feed follow.
Queue = Annotated[QueueName, Meta(pattern=rf"{QUEUE_PATTERN}(?!\n)")]
Type = Annotated[str, Meta(pattern=rf"{TYPE_PATTERN}(?!\n)")]
Id = Annotated[JobId, Meta(max_length=128)]
Runtime = Annotated[RuntimeId, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=2048)]
Key = Annotated[str, Meta(min_length=1, max_length=256)]
Scope = Annotated[str, Meta(max_length=256)]
LabelKey = Annotated[str, Meta(min_length=1, max_length=64)]
LabelValue = Annotated[str, Meta(max_length=256)]
Labels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=32)]
Priority = Annotated[int, Meta(ge=0, le=9)]
SECONDS_MAX = 10 * 365 * 86_400
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
LeaseSeconds = Annotated[float, Meta(ge=1, le=86_400)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
Code = Annotated[str, Meta(min_length=1, max_length=100)]
FenceNumber = Annotated[Fence, Meta(ge=0)]
Instant = Annotated[datetime, Meta(tz=True)]
Pointer = Annotated[str, Meta(max_length=256)]
Pointers = Annotated[tuple[Pointer, ...], Meta(max_length=20)]
ScheduleName = Annotated[str, Meta(pattern=rf"{TYPE_PATTERN}(?!\n)")]
Step = Annotated[StepName, Meta(pattern=rf"{STEP_PATTERN}(?!\n)")]
Instance = Annotated[StepName, Meta(max_length=128)]
"""A step's name; of one that is done once for each item of a list `<step>[<index>]`."""
OutputRefs = Annotated[dict[Instance, Ref], Meta(max_length=1_000)]
Extract = Annotated[dict[Pointer, Any], Meta(max_length=256)]
Condition = Annotated[str, Meta(min_length=1, max_length=500)]


class RetryAsk(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a request or template says of retries; the rest is the defaults'."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    backoff_seconds: Annotated[tuple[Seconds, ...], Meta(max_length=50)] | UnsetType = UNSET
    jitter: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    position: Literal["keep", "tail"] | UnsetType = UNSET
    retryable_codes: Annotated[tuple[Code, ...], Meta(max_length=100)] | UnsetType = UNSET
    fatal_codes: Annotated[tuple[Code, ...], Meta(max_length=100)] | UnsetType = UNSET


class RequestJob(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `POST /v1/jobs`. What is absent is the template's to say, else a default."""

    TYPE: ClassVar[str] = "ledger.job.request.v1"
    type: Type
    queue: Queue = QueueName("default")
    payload: Raw | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET
    scope: Scope | UnsetType | None = UNSET
    priority: Priority | UnsetType = UNSET
    idempotency_key: Key | None = None
    run_at: Instant | None = None
    delay_seconds: Seconds | None = None
    start_timeout_seconds: Seconds | UnsetType | None = UNSET
    timeout_seconds: Seconds | UnsetType = UNSET
    lease_seconds: LeaseSeconds | UnsetType = UNSET
    retry: RetryAsk | UnsetType = UNSET
    result_ttl_seconds: Seconds | UnsetType | None = UNSET
    failed_ttl_seconds: Seconds | UnsetType | None = UNSET
    template_version: Annotated[int, Meta(ge=1)] | None = None
    payload_hash: Sha256 | None = None
    """SHA-256 over the RFC 8785 bytes of `payload`; computed where absent and needed."""
    payload_ref: Ref | None = None
    extract: Extract | None = None
    """Of a payload that lies elsewhere: what the template's pointers find in it, by pointer."""
    checked_against: Annotated[int, Meta(ge=0)] | None = None
    """Of a payload that lies elsewhere: the newest version of the template that whoever moved it
    knew, 0 for none. Refused VIEW_BEHIND if there is a newer one. None: not looked at."""
    forward_headers: Annotated[str, Meta(max_length=24_576)] | None = None
    """Sealed; only the model-call runtime opens them."""


class Closing(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a job stood, as the read model had it: for an owner who has forgotten it."""

    status: Literal["succeeded", "failed", "cancelled", "expired"]
    finished_at: Micros
    result_ttl_us: int | None = None
    failed_ttl_us: int | None = None
    collected_at: Micros | None = None
    result_expires_at: Micros | None = None
    withdrawn: bool = False
    payload_withdrawn: bool = False
    erased: bool = False


class CancelJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.job.cancel.v1"
    job_id: Id
    reason: Text = ""
    if_version: int | None = None


class RerunJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`original` are the closing facts of a job that its owner has forgotten: its request again.

    A payload that lies in the object store is copied before: `payload_ref` is the copy, of the new
    payload or of the job's own.
    """

    TYPE: ClassVar[str] = "ledger.job.rerun.v1"
    job_id: Id
    payload: Raw | UnsetType = UNSET
    payload_ref: Ref | None = None
    extract: Extract | None = None
    """Of a new payload that lies elsewhere; absent: the copy is the job's own payload."""
    labels: Labels | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    original: Raw | UnsetType = UNSET
    if_version: int | None = None
    from_failed: bool = False
    """Of a flow: the steps that succeeded are taken over, not done again."""
    output_refs: OutputRefs | UnsetType = UNSET
    """With `from_failed`, by step: copies of outputs that lie in the object store. A step whose
    output lies there and has no copy here is done again; absent: refused, with what to copy."""


class CollectJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`closing` are the closing facts of a job that its owner has forgotten."""

    TYPE: ClassVar[str] = "ledger.job.collect.v1"
    job_id: Id
    closing: Closing | None = None


class WithdrawResult(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From the cleaner: the time of a collected result, or of a failed job, is over."""

    TYPE: ClassVar[str] = "ledger.job.withdraw.v1"
    job_id: Id
    why: Literal["expired", "owner_removed"] = "expired"
    closing: Closing | None = None


class ConfirmDeleted(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From the cleaner: what a job referred to in the object store is gone; of many keys the first
    are named."""

    TYPE: ClassVar[str] = "ledger.job.confirm_deleted.v1"
    job_id: Id
    keys: Annotated[tuple[str, ...], Meta(max_length=1000)]


class LockJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.attempt.lock.v1"
    job_id: Id
    runtime_id: Runtime
    step: StepName | None = None
    if_version: int | None = None


class StartAttempt(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.attempt.start.v1"
    job_id: Id
    fence: FenceNumber
    if_version: int | None = None


class ProgressSaid(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    percent: Percent | None = None
    phase: Text | None = None
    message: Text | None = None


class Heartbeat(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.attempt.heartbeat.v1"
    job_id: Id
    fence: FenceNumber
    progress: ProgressSaid | None = None
    start: bool = True
    if_version: int | None = None


class ReportProgress(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.attempt.progress.v1"
    job_id: Id
    fence: FenceNumber
    percent: Percent | None = None
    phase: Text | None = None
    message: Text | None = None
    if_version: int | None = None


class SubmitResult(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`output_hash` is SHA-256 over the RFC 8785 bytes of `output`; computed where absent."""

    TYPE: ClassVar[str] = "ledger.attempt.result.v1"
    job_id: Id
    fence: FenceNumber
    output: Raw | UnsetType = UNSET
    output_ref: Ref | None = None
    output_hash: Sha256 | None = None
    extract: Extract | None = None
    """Of an output that lies elsewhere: what the flow's pointers find in it, by pointer."""
    if_version: int | None = None


class FailAttempt(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.attempt.fail.v1"
    job_id: Id
    fence: FenceNumber
    code: Code
    message: Text = ""
    retryable: bool | None = None
    retry_after_seconds: Seconds | None = None
    details: Raw | UnsetType = UNSET
    if_version: int | None = None


class ReleaseLease(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.attempt.release.v1"
    job_id: Id
    fence: FenceNumber
    reason: Text = ""
    if_version: int | None = None


class WaitForCompletion(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.attempt.wait.v1"
    job_id: Id
    fence: FenceNumber
    timeout_seconds: Seconds
    if_version: int | None = None


class AcknowledgeCancel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The cooperative stop is done."""

    TYPE: ClassVar[str] = "ledger.attempt.cancelled.v1"
    job_id: Id
    fence: FenceNumber
    if_version: int | None = None


# --- Of a runtime as a whole --------------------------------------------------------------------
class HeldLease(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    job_id: Id
    fence: FenceNumber
    progress: ProgressSaid | None = None


class Beat(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A runtime lives: what it may be given, what it received, what it holds. Last one wins.

    `beat` counts 1, 2, 3 … within the session and queue; an answer repeats it. `slots` is how many
    more assignments it takes now, absolute, beyond number `received`.
    """

    TYPE: ClassVar[str] = "ledger.runtime.beat.v1"
    runtime_id: Runtime
    session: Annotated[Session, Meta(min_length=1, max_length=64)]
    queue: Queue
    beat: Annotated[int, Meta(ge=1)]
    types: Annotated[tuple[Type, ...], Meta(max_length=200)]
    slots: Annotated[int, Meta(ge=0, le=10_000)] = 0
    received: Annotated[int, Meta(ge=0)] = 0
    leases: Annotated[tuple[HeldLease, ...], Meta(max_length=10_000)] = ()
    period_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0
    leaving: bool = False
    """The last word of the session."""


class ReportedStart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="start"):
    job_id: Id
    fence: FenceNumber


@final
class ReportedResult(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="result",
):
    job_id: Id
    fence: FenceNumber
    output: Raw | UnsetType = UNSET
    output_ref: Ref | None = None
    output_hash: Sha256 | None = None
    extract: Extract | None = None


class ReportedFailure(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="fail",
):
    job_id: Id
    fence: FenceNumber
    code: Code
    message: Text = ""
    retryable: bool | None = None
    retry_after_seconds: Seconds | None = None
    details: Raw | UnsetType = UNSET


class ReportedRelease(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="release",
):
    job_id: Id
    fence: FenceNumber
    reason: Text = ""


class ReportedCancel(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cancelled"
):
    job_id: Id
    fence: FenceNumber


class ReportedWait(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="wait"):
    job_id: Id
    fence: FenceNumber
    timeout_seconds: Seconds


Reported = (
    ReportedStart
    | ReportedResult
    | ReportedFailure
    | ReportedRelease
    | ReportedCancel
    | ReportedWait
)
"""One job's part of a report."""


class Report(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What became of many jobs of one queue, at most 256 KiB; may carry the runtime's beat."""

    TYPE: ClassVar[str] = "ledger.runtime.report.v1"
    runtime_id: Runtime
    session: Annotated[Session, Meta(min_length=1, max_length=64)]
    queue: Queue
    reports: Annotated[tuple[Reported, ...], Meta(max_length=10_000)]
    beat: Beat | None = None


class Claim(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Lease up to `limit` jobs of these types to an HTTP runtime, waiting for some if need be."""

    TYPE: ClassVar[str] = "ledger.runtime.claim.v1"
    runtime_id: Runtime
    queues: Annotated[tuple[Queue, ...], Meta(min_length=1, max_length=50)]
    types: Annotated[tuple[Type, ...], Meta(min_length=1, max_length=200)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=30)] = 0.0


GATEWAY_BEAT_SECONDS = 2.0
"""A gateway whose callers wait for claims says so at least this often."""
CLAIMS_BEATEN_MAX = 1000
"""In one list of one beat: three full lists fit one record. More go into several beats."""
ClaimIds = Annotated[tuple[CommandId, ...], Meta(max_length=CLAIMS_BEATEN_MAX)]


class GatewayBeat(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What became of claims in this partition, by their command ids. Its reply address says whose
    they are.

    From its first beat on an address is held to them: a claim is granted only within three periods
    of 2 seconds after it was sent or listed as waiting, and its leases are released when they were
    neither listed nor handed over for so long. Whoever never beats is taken at its word.
    """

    TYPE: ClassVar[str] = "ledger.gateway.beat.v1"
    partition: int
    waiting: ClaimIds = ()
    """Whose callers still wait for an answer."""
    handed_over: ClaimIds = ()
    """Whose leases are in their callers' hands, or will be told to whoever repeats them."""
    given_up: ClaimIds = ()
    """Whose callers have gone."""


# --- Of operators -------------------------------------------------------------------------------
class CancelPolicy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    supported: bool = True
    grace_seconds: Seconds = 30.0


class Limit(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """At most `max` live leases among jobs that are equal in what all the pointers find."""

    key: Annotated[tuple[Pointer, ...], Meta(max_length=10)]
    max: Annotated[int, Meta(ge=0, le=1_000_000)]


Limits = Annotated[tuple[Limit, ...], Meta(max_length=10)]


class OnFailAsk(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    goto: Step | None = None
    max: Annotated[int, Meta(ge=0, le=100)] = 3
    then: Literal["degrade", "fail"] = "fail"
    codes: Annotated[tuple[Code, ...], Meta(max_length=100)] | None = None


class StepAsk(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of a template. `needs` absent: the step before it; `[]`: none."""

    name: Step
    worker_type: Type | None = None
    needs: Annotated[tuple[Step, ...], Meta(max_length=50)] | UnsetType = UNSET
    when: Condition | None = None
    each: Pointer | None = None
    timeout_seconds: Seconds | None = None
    retry: RetryAsk = RetryAsk()
    cancelable: bool = True
    progress: tuple[Percent, Percent] | None = None
    on_fail: OnFailAsk | None = None


Policy = Literal["allow_parallel", "reject_same_scope", "replace_existing", "share_in_flight"]


class Template(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How jobs of one type behave, where their requests do not say."""

    title: Text = ""
    description: Text = ""
    enabled: bool = True
    payload_schema: Raw | UnsetType = UNSET
    output_schema: Raw | UnsetType = UNSET
    idempotency_scope: tuple[str, ...] = ("/queue", "/type")
    idempotency_seconds: Seconds = 604_800.0
    timeout_seconds: Seconds = 120.0
    lease_seconds: LeaseSeconds = 60.0
    start_timeout_seconds: Seconds | None = None
    priority: Priority = 5
    retry: RetryAsk = RetryAsk()
    cancel: CancelPolicy = CancelPolicy()
    result_ttl_seconds: Seconds | None = None
    failed_ttl_seconds: Seconds | None = None
    exhausted_as: Literal["failed", "expired"] | None = None
    repeatable: bool = True
    concurrency_policy: Policy = "allow_parallel"
    dedupe_keys: Pointers = ("/scope",)
    limits: Limits = ()
    schedulable: bool = True
    steps: Annotated[tuple[StepAsk, ...], Meta(max_length=50)] = ()
    success_when: Condition = "all_steps_succeeded"
    overridable: tuple[str, ...] = (
        "priority",
        "run_at",
        "delay_seconds",
        "timeout_seconds",
        "start_timeout_seconds",
        "labels",
    )


class PutTemplate(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.template.put.v1"
    queue: Queue
    type: Type
    template: Template


class QueueSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an operator says of a queue; what is absent is no bound."""

    depth_max: Annotated[int, Meta(ge=0)] | None = None
    """Pending jobs; then QUEUE_FULL."""
    limits: Limits = ()


class PutQueue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.queue.put.v1"
    queue: Queue
    settings: QueueSettings


class PauseQueue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.queue.pause.v1"
    queue: Queue
    reason: Text = ""


class ResumeQueue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.queue.resume.v1"
    queue: Queue
    reason: Text = ""


class Schedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When jobs of a type are to be, by themselves."""

    cron: Annotated[str, Meta(max_length=256)]
    type: Type
    timezone: Annotated[str, Meta(max_length=64)] = "UTC"
    enabled: bool = True
    payload: Raw | UnsetType = UNSET
    labels: Labels | UnsetType = UNSET
    scope: Scope | UnsetType | None = UNSET
    catch_up: Literal["none", "last", "all"] = "last"


class PutSchedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.put.v1"
    queue: Queue
    name: ScheduleName
    schedule: Schedule


class DeleteSchedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.delete.v1"
    queue: Queue
    name: ScheduleName


class EnableSchedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.enable.v1"
    queue: Queue
    name: ScheduleName


class DisableSchedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.schedule.disable.v1"
    queue: Queue
    name: ScheduleName


class RunSchedule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job now, whatever the time, also of a disabled schedule."""

    TYPE: ClassVar[str] = "ledger.schedule.run.v1"
    queue: Queue
    name: ScheduleName


class Model(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An HTTP target. `api_key` is sealed before it gets here; absent: the one before it is kept,
    null: there is none any more."""

    base_url: Annotated[str, Meta(min_length=1, max_length=2048)]
    route: Annotated[str, Meta(max_length=2048)] = ""
    method: Literal["GET", "POST"] = "POST"
    api_key_header: Annotated[str, Meta(max_length=100)] | None = None
    api_key: Annotated[str, Meta(max_length=24_576)] | UnsetType | None = UNSET
    timeout_seconds: Seconds = 120.0
    max_concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    retry: RetryAsk = RetryAsk(position="tail")
    start_timeout_seconds: Seconds | None = None
    result_ttl_seconds: Seconds | None = None
    failed_ttl_seconds: Seconds | None = None


class PutModel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.model.put.v1"
    name: Type
    model: Model


class DeleteModel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    TYPE: ClassVar[str] = "ledger.model.delete.v1"
    name: Type


class Where(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which jobs: all that match every given condition. Empty is an error."""

    queue: Queue | None = None
    types: tuple[Type, ...] | None = None
    labels: Labels | None = None
    scope: Scope | None = None


class CancelJobs(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cancel all that match, on every queue. Lies in the partition of `_ledger`."""

    TYPE: ClassVar[str] = "ledger.jobs.cancel.v1"
    where: Where
    reason: Text = ""


class CancelPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From the owner of `_ledger` to each partition: do your part of a bulk cancel."""

    TYPE: ClassVar[str] = "ledger.operation.cancel_part.v1"
    operation_id: str
    partition: int
    where: Where
    reason: Text = ""
    by: str = ""


class ConfirmPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From each partition back to the owner of `_ledger`."""

    TYPE: ClassVar[str] = "ledger.operation.confirm_part.v1"
    operation_id: str
    partition: int
    matched: int


class RemoveObjects(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Remove all objects of an owner, or of one of their projects. Lies in `_ledger`."""

    TYPE: ClassVar[str] = "ledger.owner.remove_objects.v1"
    user: LabelValue
    project: LabelValue | None = None


class ConfirmRemoved(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From the cleaner: the operation has come to its end."""

    TYPE: ClassVar[str] = "ledger.owner.confirm_removed.v1"
    operation_id: str
    removed: int


class DeclareInputLost(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An operator's word that offsets of an intake are gone for good."""

    TYPE: ClassVar[str] = "ledger.operation.input_lost.v1"
    partition: int
    topic: Literal["commands", "requests"]
    first: int
    end: int


Command = (
    RequestJob
    | CancelJob
    | RerunJob
    | LockJob
    | StartAttempt
    | Heartbeat
    | ReportProgress
    | SubmitResult
    | FailAttempt
    | ReleaseLease
    | WaitForCompletion
    | AcknowledgeCancel
    | Beat
    | Report
    | Claim
    | GatewayBeat
    | PutTemplate
    | CollectJob
    | WithdrawResult
    | ConfirmDeleted
    | PutQueue
    | PauseQueue
    | ResumeQueue
    | PutSchedule
    | DeleteSchedule
    | EnableSchedule
    | DisableSchedule
    | RunSchedule
    | PutModel
    | DeleteModel
    | RemoveObjects
    | ConfirmRemoved
    | CancelJobs
    | CancelPart
    | ConfirmPart
    | DeclareInputLost
)

COMMANDS: tuple[type[Command], ...] = Command.__args__
TYPES: dict[str, type[Command]] = {c.TYPE: c for c in COMMANDS}
"""Every command of this version by its name on the wire."""


class Asked(Struct, frozen=True, gc=False):
    """A command with what its record says around it."""

    command: Command
    command_id: CommandId
    actor: str = ""
    reply_to: str = ""
    """`<partition>/<address>` in the replies topic; empty: nobody waits."""
    sent_at: Micros | None = None
    """The sender's clock (`ce_time`); None: absent."""
    appended_at: Micros = Micros(0)
    """The broker's clock, when it took the record."""
    offset: int = -1
    """In its intake."""
    traceparent: str = ""
