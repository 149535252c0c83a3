"""What comes of a command: events, or a refusal. One function a command; none has an effect.

`decide` neither changes the partition nor looks at a clock. Whoever calls it appends what it says,
and applies that to the partition before deciding the next.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from ledger.domain import bulk, deadlines, leases, runtimes
from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    Beat,
    CancelJob,
    CancelJobs,
    CancelPart,
    Claim,
    ConfirmPart,
    DeclareInputLost,
    FailAttempt,
    Heartbeat,
    LockJob,
    PutTemplate,
    ReleaseLease,
    Report,
    ReportProgress,
    RequestJob,
    RerunJob,
    StartAttempt,
    SubmitResult,
    WaitForCompletion,
)
from ledger.domain.creation import content_digest as digest_of_content
from ledger.domain.creation import key_digest, matches, rerun, resolve
from ledger.domain.events import (
    BulkPartAdvanced,
    CancelRequested,
    Event,
    InputLost,
    JobCancelled,
    JobRequested,
    LeaseGranted,
    LeasesExtended,
    TemplatePut,
)
from ledger.domain.ids import LEDGER_QUEUE, JobId, Micros, RuntimeId, micros
from ledger.domain.job import Job, Pending, held_lease, quoted_step, status
from ledger.domain.leases import Held
from ledger.domain.partition import Partition, identity_of
from ledger.domain.rejections import Rejected, Rejection

SKEW_US = 60 * 1_000_000
"""A sender's clock may be this far ahead or behind before it matters."""


class Decided(Struct, frozen=True, gc=False):
    """Accepted. No events: an equal command had its outcome before, nothing new comes of this."""

    events: tuple[Event, ...] = ()
    job_id: JobId | None = None
    grants: tuple[LeaseGranted, ...] = ()
    """Of a lock or claim: what the caller holds now."""
    deduplicated: bool = False
    """An earlier job answers for this request."""
    replayed: bool = False
    """The very command (id, or Idempotency-Key) came before."""
    template_version: int | None = None
    refused: tuple[Rejected, ...] = ()
    """Parts of a report that were refused, beside those that were accepted."""
    operation_id: str | None = None


Decision = Decided | Rejected


def decide(partition: Partition, asked: Asked, at: Micros) -> Decision:
    identity, content = identity_of(asked.command_id)
    before = partition.outcomes.get(identity)
    if before is not None:
        if before.content != content:
            return Rejected(
                Rejection.IDEMPOTENCY_KEY_REUSED,
                "the same key came with another body",
                before.job_id,
            )
        if before.rejected is not None:
            refusal = before.rejected
            return Rejected(Rejection(refusal.code), refusal.detail, refusal.job_id)
        return Decided(job_id=before.job_id, grants=before.grants, replayed=True)
    command = asked.command
    match command:
        case RequestJob():
            return _request(partition, command, asked, at)
        case Report():
            return _report(partition, command, at)
        case Beat():
            return Decided(runtimes.beat(partition, command, at))
        case Claim():
            return _claim(partition, command, at)
        case CancelJobs():
            return _start_bulk(partition, command, asked)
        case CancelPart():
            return Decided()  # Starts by `bulk.start_part`, which needs an offset from outside.
        case ConfirmPart():
            return Decided(bulk.confirm(partition, command), operation_id=command.operation_id)
        case PutTemplate():
            return _put_template(partition, command)
        case DeclareInputLost():
            return Decided((InputLost(LEDGER_QUEUE, command.topic, command.first, command.end),))
        case RerunJob():
            return _rerun(partition, command, asked, at)
        case _:
            job = partition.job(command.job_id)
            if job is None:
                return _not_found(command.job_id)
            return _of_job(partition, job, command, asked.actor, at)


OfJob = (
    CancelJob
    | LockJob
    | Heartbeat
    | ReportProgress
    | StartAttempt
    | SubmitResult
    | FailAttempt
    | ReleaseLease
    | WaitForCompletion
    | AcknowledgeCancel
)


def _of_job(partition: Partition, job: Job, command: OfJob, actor: str, at: Micros) -> Decision:
    match command:
        case CancelJob():
            return _accepted(job, cancel(job, command.reason, actor, at, command.if_version))
        case LockJob():
            decision = leases.lock(job, command, at)
            if isinstance(decision, Rejected):
                return decision
            granted = tuple(e for e in decision if isinstance(e, LeaseGranted))
            return Decided(decision, job.id, granted)
        case Heartbeat():
            held = leases.heartbeat(job, command, at)
            if isinstance(held, Rejected):
                return held
            return Decided(_held(job, held), job.id)
        case ReportProgress():
            return _accepted(job, leases.progress(job, command, at))
        case _:
            return _accepted(job, leases.say(job, command, at, partition.next_order(at)))


def due(partition: Partition, job: Job, at: Micros) -> tuple[Event, ...]:
    """What the clock says of a job whose timer has fallen due; nothing if it came for nothing."""
    events = deadlines.expire(job, at, partition.floor, partition.next_order(at))
    if events:
        return events
    deferred = partition.deferred.get(job.id)
    step = quoted_step(job, deferred[0]) if deferred else None
    if deferred is None or step is None:
        return ()
    return leases.progressed(job, step, deferred[1], at)


# --- A job's beginning ---------------------------------------------------------------------------
def _request(partition: Partition, request: RequestJob, asked: Asked, at: Micros) -> Decision:
    queue = partition.queue(request.queue)
    pinned = queue.template(request.type, request.template_version)
    if request.template_version is not None and pinned is None:
        return Rejected(
            Rejection.TEMPLATE_NOT_FOUND,
            f"no version {request.template_version} of template {request.type} is held",
            pointer="/template_version",
        )
    newest = queue.template(request.type)
    scope = pinned.template.idempotency_scope if pinned else ("/queue", "/type")
    digest = key_digest(request, scope)
    window = partition.bounds.commands_us
    if digest is not None:
        window = micros(pinned.template.idempotency_seconds) if pinned else 604_800_000_000
        held = partition.keys.get(bytes.fromhex(digest))
        if held is not None and held.until > at:
            if held.content.hex() == digest_of_content(request):
                return Decided(job_id=held.job_id, deduplicated=True, replayed=True)
            return Rejected(
                Rejection.IDEMPOTENCY_KEY_REUSED,
                "the same idempotency key came with other content",
                held.job_id,
                pointer="/idempotency_key",
            )
    if asked.sent_at is not None and asked.appended_at - asked.sent_at > window + SKEW_US:
        return Rejected(
            Rejection.COMMAND_EXPIRED,
            "the request is older than the time for which its id or key is remembered",
        )
    if full := _full(partition):
        return full
    if newest is not None and not newest.template.enabled:
        return Rejected(Rejection.TEMPLATE_DISABLED, f"the template {request.type} is disabled")
    event = resolve(request, pinned, seed=asked.command_id, at=at, order=partition.next_order(at))
    if isinstance(event, Rejected):
        return event
    return Decided((event, *_withdrawn(partition, event, asked.offset)), event.job_id)


def _withdrawn(partition: Partition, job: JobRequested, offset: int) -> tuple[Event, ...]:
    """A bulk cancel covers requests that were acknowledged before it, though read after it."""
    for operation_id, part in partition.bulk_parts.items():
        where = part.where
        if offset < part.requests_end and matches(
            where.queue, where.types, where.labels, where.scope, job
        ):
            return (
                JobCancelled(job.job_id, "at_once", part.reason, part.by),
                BulkPartAdvanced(job.queue, operation_id, 1),
            )
    return ()


def _full(partition: Partition) -> Rejected | None:
    bounds = partition.bounds
    if partition.open_bytes >= bounds.open_bytes_max:
        return Rejected(Rejection.QUEUE_FULL, "the partition's open jobs fill their memory")
    if len(partition.keys) >= bounds.keys_max or len(partition.outcomes) >= bounds.commands_max:
        return Rejected(Rejection.QUEUE_FULL, "the partition remembers as many keys as it may")
    return None


def _rerun(partition: Partition, command: RerunJob, asked: Asked, at: Micros) -> Decision:
    job = partition.job(command.job_id)
    if job is not None and job.end is None:
        return Rejected(
            Rejection.JOB_NOT_CLOSED, "only an ended job can be rerun", job.id, status(job)
        )
    if job is not None:
        if refused := _other_version(job, command.if_version):
            return refused
        original = job.request
    elif command.original is not UNSET:
        original = msgspec.json.decode(command.original, type=JobRequested)
    else:
        return _not_found(command.job_id)
    if full := _full(partition):
        return full
    order = partition.next_order(at)
    event = rerun(original, command, seed=asked.command_id, at=at, order=order)
    return Decided((event,), event.job_id)


# --- Cancel --------------------------------------------------------------------------------------
def cancel(
    job: Job, reason: str, by: str, at: Micros, if_version: int | None = None
) -> tuple[Event, ...] | Rejected:
    """Pending: at once. Leased, running, waiting: the runtime is asked to stop within the grace."""
    if closed := leases.refuse_closed(job):
        return closed
    if refused := _other_version(job, if_version):
        return refused
    if not job.request.cancel_supported:
        return Rejected(
            Rejection.CANCEL_NOT_SUPPORTED, "the job's template allows no cancel", job.id
        )
    if job.cancel is not None:
        return ()
    if all(isinstance(step.phase, Pending) for step in job.steps):
        return (JobCancelled(job.id, "at_once", reason, by),)
    return (CancelRequested(job.id, Micros(at + job.request.grace_us), reason, by),)


def _start_bulk(partition: Partition, command: CancelJobs, asked: Asked) -> Decision:
    started = bulk.start(partition, command, asked)
    if isinstance(started, Rejected):
        return started
    if started.operation_id in partition.bulks:
        return Decided(operation_id=started.operation_id, replayed=True)
    return Decided((started,), operation_id=started.operation_id)


# --- Runtimes ------------------------------------------------------------------------------------
def _report(partition: Partition, command: Report, at: Micros) -> Decision:
    """Each word is decided on what the words before it left; a refused one stops no other."""
    now: dict[JobId, Job] = {}
    events: list[Event] = []
    refused: list[Rejected] = []
    for word in command.reports:
        job = now.get(word.job_id) or partition.job(word.job_id)
        if job is None:
            refused.append(replace(_not_found(word.job_id), fence=word.fence))
            continue
        if job.end is not None and leases.said_before(job, word.fence):
            continue  # The report was sent again: it ended the job before.
        decision = leases.say(job, word, at, partition.next_order(at))
        if isinstance(decision, Rejected):
            refused.append(replace(decision, fence=word.fence))
            continue
        events.extend(decision)
        now[word.job_id] = leases.replayed(job, decision, at)
    if command.beat is not None:
        settled = {word.job_id for word in command.reports}
        events.extend(runtimes.beat(partition, command.beat, at, settled))
    return Decided(tuple(events), refused=tuple(refused))


def _claim(partition: Partition, command: Claim, at: Micros) -> Decision:
    granted: list[LeaseGranted] = []
    for queue in command.queues:
        room = command.limit - len(granted)
        granted += runtimes.grants(partition, queue, command.types, command.runtime_id, room, at)
    return Decided(tuple(granted), grants=tuple(granted))


def _held(job: Job, held: Held) -> tuple[Event, ...]:
    if held.extension is None:
        return held.events
    runtime_id = next(
        (lease.runtime_id for step in job.steps if (lease := held_lease(step))), RuntimeId("")
    )
    extended = LeasesExtended(job.request.queue, runtime_id, (held.extension,))
    return (*held.events, extended)


# --- Templates -----------------------------------------------------------------------------------
def _put_template(partition: Partition, command: PutTemplate) -> Decision:
    newest = partition.queue(command.queue).template(command.type)
    if newest is not None and newest.template == command.template:
        return Decided(template_version=newest.version)
    version = newest.version + 1 if newest else 1
    content = msgspec.Raw(msgspec.json.encode(command.template))
    put = TemplatePut(command.queue, command.type, version, content)
    return Decided((put,), template_version=version)


# --- Shared --------------------------------------------------------------------------------------
def _accepted(job: Job, decision: tuple[Event, ...] | Rejected) -> Decision:
    return decision if isinstance(decision, Rejected) else Decided(decision, job.id)


def _not_found(job_id: JobId) -> Rejected:
    return Rejected(Rejection.JOB_NOT_FOUND, f"the ledger knows no job {job_id}", job_id)


def _other_version(job: Job, wanted: int | None) -> Rejected | None:
    if wanted is None or wanted == job.version:
        return None
    return Rejected(
        Rejection.PRECONDITION_FAILED, f"the job has version {job.version}, not {wanted}", job.id
    )
