"""What comes of a command: events, or a refusal. One function a command; none has an effect.

`decide` neither changes the partition nor looks at a clock. Whoever calls it appends what it says,
and applies that to the partition before deciding the next.
"""

from __future__ import annotations

from msgspec.structs import replace

from ledger.domain import admission, bulk, deadlines, leases, runtimes, templates
from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    Beat,
    CancelJob,
    CancelJobs,
    CancelPart,
    Claim,
    Command,
    ConfirmPart,
    DeclareInputLost,
    FailAttempt,
    Heartbeat,
    LockJob,
    ProgressSaid,
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
from ledger.domain.decisions import Decided as Decided
from ledger.domain.decisions import Decision as Decision
from ledger.domain.events import (
    CancelRequested,
    Event,
    JobCancelled,
    JobEvent,
    LeaseGranted,
    LeasesExtended,
)
from ledger.domain.ids import JobId, Micros, RuntimeId
from ledger.domain.job import Job, quoted_step
from ledger.domain.leases import Held, refuse_closed, refuse_other_version
from ledger.domain.partition import Partition
from ledger.domain.progress import progressed
from ledger.domain.rejections import Rejected, Rejection, not_found
from ledger.domain.remembered import Outcome, identity_of
from ledger.domain.steps import Pending, held_lease


def decide(partition: Partition, asked: Asked, at: Micros) -> Decision:
    before = decided_before(partition, asked)
    if before is not None:
        return before
    command = asked.command
    match command:
        case RequestJob():
            return admission.admit(partition, command, asked, at)
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
            return templates.put(partition, command)
        case DeclareInputLost():
            return Decided()  # By `intakes.declare_lost`, which needs to know what is missing.
        case RerunJob():
            return admission.run_again(partition, command, asked, at)
        case _:
            job = partition.job(command.job_id)
            if job is None:
                return not_found(command.job_id)
            return _of_job(partition, job, command, asked.actor, at)


def decided_before(partition: Partition, asked: Asked) -> Decision | None:
    """None: no command of this id is remembered."""
    identity, content = identity_of(asked.command_id)
    before = partition.outcomes.get(identity)
    return None if before is None else _again(before, content, asked.command)


def _again(before: Outcome, content: str, command: Command) -> Decision:
    """The outcome of the command that came before under the same id."""
    if before.content != content:
        return Rejected(
            Rejection.IDEMPOTENCY_KEY_REUSED, "the same key came with another body", before.job_id
        )
    refusal = before.rejected
    if refusal is not None:
        return Rejected(
            Rejection(refusal.code),
            refusal.detail,
            refusal.job_id,
            refusal.job_status,
            refusal.pointer,
        )
    return Decided(
        job_id=before.job_id,
        grants=before.grants,
        deduplicated=isinstance(command, RequestJob),
        replayed=True,
        template_version=before.template_version,
        operation_id=before.operation_id,
    )


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
            held = leases.heartbeat(job, command, at, partition.deferred_word(job.id))
            return held if isinstance(held, Rejected) else Decided(_held(job, held), job.id)
        case ReportProgress():
            word = partition.deferred_word(job.id)
            return _accepted(job, leases.progress(job, command, at, word))
        case _:
            return _accepted(job, leases.say(job, command, at, partition.next_order(at)))


def due(partition: Partition, job: Job, at: Micros, now: Micros | None = None) -> tuple[Event, ...]:
    """What the clock says of a job whose timer had fallen due at `at`; nothing if it came for
    nothing. `now` is the instant of the entry, where it is later: what begins begins then."""
    now = at if now is None else now
    events = deadlines.expire(job, at, partition.floor, partition.next_order(now), now)
    deferred = partition.deferred.get(job.id)
    if events or deferred is None:
        return events
    fence, word = deferred
    step = quoted_step(job, fence)
    return () if step is None else progressed(job, step, fence, word, now)


def defer(partition: Partition, command: Command, at: Micros) -> None:
    """Once what was decided of a command is applied: keep the progress in it that came too soon
    to be recorded, so that the last word wins."""
    match command:
        case ReportProgress():
            said = ProgressSaid(command.percent, command.phase, command.message)
            partition.defer(command.job_id, command.fence, said, at)
        case Heartbeat():
            partition.defer(command.job_id, command.fence, command.progress, at)
        case Beat():
            for held in command.leases:
                if held.progress is not None and runtimes.holding(partition, command, held):
                    partition.defer(held.job_id, held.fence, held.progress, at)
        case Report() if command.beat is not None:
            defer(partition, command.beat, at)
        case _:
            pass


# --- Cancel --------------------------------------------------------------------------------------
def cancel(
    job: Job, reason: str, by: str, at: Micros, if_version: int | None = None
) -> tuple[Event, ...] | Rejected:
    """Pending: at once. Leased, running, waiting: the runtime is asked to stop within the grace."""
    if refused := refuse_closed(job) or refuse_other_version(job, if_version):
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
    told: dict[JobId, tuple[Job, tuple[JobEvent, ...]]] = {}
    events: list[Event] = []
    refused: list[Rejected] = []
    order = partition.next_order(at)
    for word in command.reports:
        job_id = word.job_id
        before = told.get(job_id)
        job = partition.job(job_id) if before is None else leases.replayed(*before, at)
        if job is None:
            refused.append(replace(not_found(job_id), fence=word.fence))
            continue
        decision = leases.say(job, word, at, order)
        if type(decision) is Rejected:
            if not leases.said_again(job, word):
                refused.append(replace(decision, fence=word.fence))
            continue
        events.extend(decision)
        told[job_id] = job, decision
        order += 1
    if command.beat is not None:
        settled = {word.job_id for word in command.reports}
        events.extend(runtimes.beat(partition, command.beat, at, settled))
    return Decided(tuple(events), refused=tuple(refused))


def _claim(partition: Partition, command: Claim, at: Micros) -> Decision:
    granted: list[LeaseGranted] = []
    for queue in dict.fromkeys(command.queues):
        room = command.limit - len(granted)
        granted += runtimes.offer(partition, queue, command.types, command.runtime_id, room, at)
    return Decided(tuple(granted), grants=tuple(granted))


def _held(job: Job, held: Held) -> tuple[Event, ...]:
    if held.extension is None:
        return held.events
    runtime_id = next(
        (lease.runtime_id for step in job.steps if (lease := held_lease(step))), RuntimeId("")
    )
    extended = LeasesExtended(job.request.queue, runtime_id, (held.extension,))
    return (*held.events, extended)


def _accepted(job: Job, decision: tuple[Event, ...] | Rejected) -> Decision:
    return decision if isinstance(decision, Rejected) else Decided(decision, job.id)
