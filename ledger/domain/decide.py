"""What comes of a command: events, or a refusal. One function a command; none has an effect.

`decide` neither changes the partition nor looks at a clock. Whoever calls it appends what it says,
and applies that to the partition before deciding the next.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from ledger.domain import (
    admission,
    bulk,
    deadlines,
    leases,
    models,
    queue_control,
    removal,
    retention,
    runtimes,
    schedules,
    templates,
)
from ledger.domain.cancel import cancel
from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    Beat,
    CancelJob,
    CancelJobs,
    CancelPart,
    Claim,
    CollectJob,
    Command,
    ConfirmDeleted,
    ConfirmPart,
    ConfirmRemoved,
    DeclareInputLost,
    DeleteModel,
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    FailAttempt,
    GatewayBeat,
    Heartbeat,
    LockJob,
    PauseQueue,
    ProgressSaid,
    PutModel,
    PutQueue,
    PutSchedule,
    PutTemplate,
    ReleaseLease,
    RemoveObjects,
    Report,
    ReportedResult,
    ReportProgress,
    RequestJob,
    RerunJob,
    ResumeQueue,
    RunSchedule,
    StartAttempt,
    SubmitResult,
    WaitForCompletion,
    WithdrawResult,
)
from ledger.domain.creation import mismatch
from ledger.domain.decisions import Decided as Decided
from ledger.domain.decisions import Decision as Decision
from ledger.domain.events import Event, JobEvent, LeaseGranted, LeasesExtended, Ref
from ledger.domain.flows import NULL, folded, gives_the_result
from ledger.domain.ids import CommandId, Fence, JobId, Micros, RuntimeId
from ledger.domain.job import Job, quoted_step, status
from ledger.domain.leases import Held, Word
from ledger.domain.object_keys import is_output_of
from ledger.domain.partition import Partition
from ledger.domain.progress import is_time, progressed
from ledger.domain.rejections import Rejected, Rejection, not_found
from ledger.domain.remembered import Outcome, identity_of
from ledger.domain.steps import held_lease


def decide(partition: Partition, asked: Asked, at: Micros) -> Decision:
    before = decided_before(partition, asked)
    if before is not None:
        return before
    command = asked.command
    match command:
        case RequestJob():
            return admission.admit(partition, command, asked, at)
        case Report():
            return _report(partition, command, asked.command_id, at)
        case Beat():
            return Decided(runtimes.beat(partition, command, at))
        case Claim():
            return _expired(partition, asked) or _claim(partition, command, at)
        case CancelJobs():
            return _start_bulk(partition, command, asked)
        case CancelPart():
            return Decided()  # Starts by `bulk.start_part`, which needs an offset from outside.
        case GatewayBeat():
            return Decided()  # Of claims that wait in the owner's memory: no fact in itself.
        case ConfirmPart():
            return Decided(bulk.confirm(partition, command), operation_id=command.operation_id)
        case PutTemplate():
            return templates.put(partition, command)
        case PutQueue():
            return queue_control.put(partition, command)
        case PauseQueue():
            return queue_control.pause(partition, command, asked.actor)
        case ResumeQueue():
            return queue_control.resume(partition, command, asked.actor)
        case (
            PutSchedule() | DeleteSchedule() | EnableSchedule() | DisableSchedule() | RunSchedule()
        ):
            return schedules.change(partition, command, asked, at)
        case PutModel():
            return models.put(partition, command)
        case DeleteModel():
            return models.delete(partition, command)
        case CollectJob():
            return _of_ended(command.job_id, retention.collect(partition, command, at))
        case WithdrawResult():
            return _of_ended(command.job_id, retention.withdraw(partition, command, at))
        case ConfirmDeleted():
            return _of_ended(command.job_id, retention.confirm_deleted(partition, command))
        case RemoveObjects():
            return removal.start(partition, command, asked)
        case ConfirmRemoved():
            return removal.end(partition, command)
        case DeclareInputLost():
            return Decided()  # By `intakes.declare_lost`, which needs to know what is missing.
        case RerunJob():
            return admission.run_again(partition, command, asked, at)
        case _:
            job = partition.job(command.job_id)
            if job is None or job.erased:
                return not_found(command.job_id)
            return _of_job(partition, job, command, asked, at)


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
            replayed=True,
        )
    return Decided(
        job_id=before.job_id,
        grants=before.grants,
        deduplicated=isinstance(command, RequestJob),
        replayed=True,
        template_version=before.template_version,
        created=before.created,
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


def _of_job(partition: Partition, job: Job, command: OfJob, asked: Asked, at: Micros) -> Decision:
    # Of an ended job its end says more than its version does.
    wanted = command.if_version if job.end is None else None
    if refused := leases.refuse_other_version(job, wanted):
        return refused
    match command:
        case CancelJob():
            return _accepted(job, cancel(job, command.reason, asked.actor, at))
        case LockJob():
            if refused := _expired(partition, asked) or _is_paused(partition, job):
                return refused
            decision = leases.lock(job, command, at)
            if isinstance(decision, Rejected):
                return decision
            if refused := _is_limited(partition, job):
                return refused
            granted = tuple(e for e in decision if isinstance(e, LeaseGranted))
            return Decided(decision, job.id, granted)
        case Heartbeat():
            word = partition.deferred_word(job.id, command.fence)
            held = leases.heartbeat(job, command, at, word)
            return held if isinstance(held, Rejected) else Decided(_held(job, held), job.id)
        case ReportProgress():
            word = partition.deferred_word(job.id, command.fence)
            return _accepted(job, leases.progress(job, command, at, word))
        case _:
            order = partition.next_order(at)
            return _accepted(job, _say(partition, job, command, asked.command_id, at, order))


def _say(
    partition: Partition, job: Job, word: Word, command_id: CommandId, at: Micros, order: int
) -> leases.Decision:
    refused = _wrong_output(partition, job, word, command_id)
    return refused or leases.say(job, word, at, order)


def _wrong_output(
    partition: Partition, job: Job, word: Word, command_id: CommandId
) -> Rejected | None:
    """What the schema of the job's own version says; in a flow only of what is to be its result.
    Of one that lies elsewhere whoever moved it has looked; here only whose it is."""
    if not isinstance(word, SubmitResult | ReportedResult) or job.end is not None:
        return None
    if word.output_ref is not None and word.output is UNSET:
        return _foreign_output(job, word.output_ref, word.fence, command_id)
    version = job.request.template_version
    if version is None:
        return None
    pinned = partition.queues[job.request.queue].template(job.request.type, version)
    if pinned is None or pinned.output_schema is None:
        return None
    step = quoted_step(job, word.fence)
    if step is None or not gives_the_result(job, step):
        return None
    output = NULL if word.output is UNSET else word.output
    refused = mismatch(pinned.output_schema, output, "/output")
    return None if refused is None else replace(refused, job_id=job.id)


def _foreign_output(job: Job, ref: Ref, fence: Fence, command_id: CommandId) -> Rejected | None:
    """An object that belongs to nobody else can be deleted with the job."""
    asked = job.request
    if quoted_step(job, fence) is None:
        return None
    if is_output_of(ref.key, asked.job_id, asked.labels, command_id, fence):
        return None
    return Rejected(
        Rejection.VALIDATION_FAILED,
        admission.NOT_ITS_OBJECT,
        job.id,
        status(job),
        pointer="/output_ref/key",
    )


def _expired(partition: Partition, asked: Asked) -> Rejected | None:
    """A copy of what took a lease, and is forgotten, would take one once more."""
    return admission.expired(asked, partition.bounds.commands_us)


def _is_paused(partition: Partition, job: Job) -> Rejected | None:
    queue = partition.queues[job.request.queue]
    if job.end is not None or queue.paused is None:
        return None
    detail = f"the queue is paused: {queue.paused.reason}"
    return Rejected(Rejection.QUEUE_PAUSED, detail, job.id)


def _is_limited(partition: Partition, job: Job) -> Rejected | None:
    """Why a step that is due may not be leased now, whoever asks."""
    queue = partition.queues[job.request.queue]
    full = queue.limits.full(job) if queue.limits else None
    if full is None:
        return None
    detail = f"{queue.limits.max_of(full)} jobs hold a lease under its limit"
    return Rejected(Rejection.LIMIT_REACHED, detail, job.id)


def due(partition: Partition, job: Job, at: Micros, now: Micros | None = None) -> tuple[Event, ...]:
    """What the clock says of a job whose timer had fallen due at `at`; nothing if it came for
    nothing. `now` is the instant of the entry, where it is later: what begins begins then."""
    now = at if now is None else now
    events = deadlines.expire(job, at, partition.floor, partition.next_order(now), now)
    if events:
        return events
    words: tuple[Event, ...] = ()
    for fence, word in partition.deferred.get(job.id, {}).items():
        step = quoted_step(job, fence)
        if step is not None and is_time(step, now):
            words += progressed(job, step, fence, word, now)
    return words


def defer(partition: Partition, command: Command, at: Micros) -> None:
    """Once what was decided of a command is applied: keep the progress in it that came too soon
    to be recorded, so that the last word wins."""
    match command:
        case ReportProgress():
            said = ProgressSaid(command.percent, command.phase, command.message)
            partition.defer(command.job_id, command.fence, said, at)
        case Heartbeat():
            partition.defer(command.job_id, command.fence, command.progress, at)
        case Beat() if not runtimes.is_older(partition, command):
            for held in command.leases:
                if held.progress is not None and runtimes.holding(partition, command, held):
                    partition.defer(held.job_id, held.fence, held.progress, at)
        case Report() if command.beat is not None:
            defer(partition, command.beat, at)
        case _:
            pass


# --- Bulk ----------------------------------------------------------------------------------------
def _start_bulk(partition: Partition, command: CancelJobs, asked: Asked) -> Decision:
    started = bulk.start(partition, command, asked)
    if isinstance(started, Rejected):
        return started
    if started.operation_id in partition.bulks:
        return Decided(operation_id=started.operation_id, replayed=True)
    return Decided((started,), operation_id=started.operation_id)


# --- Runtimes ------------------------------------------------------------------------------------
def _report(partition: Partition, command: Report, command_id: CommandId, at: Micros) -> Decision:
    """Each word is decided on what the words before it left; a refused one stops no other."""
    told: dict[JobId, tuple[Job, tuple[JobEvent, ...]]] = {}
    events: list[Event] = []
    refused: list[Rejected] = []
    order = partition.next_order(at)
    for word in command.reports:
        job_id = word.job_id
        before = told.get(job_id)
        job = partition.job(job_id) if before is None else folded(*before, at)
        if job is None:
            refused.append(replace(not_found(job_id), fence=word.fence))
            continue
        decision = _say(partition, job, word, command_id, at, order)
        if type(decision) is Rejected:
            if not leases.said_again(job, word):
                refused.append(replace(decision, fence=word.fence))
            continue
        events.extend(decision)
        told[job_id] = job, decision
        order += 1
    if command.beat is not None:
        settled = {(word.job_id, word.fence) for word in command.reports}
        held = {held.job_id for held in command.beat.leases}
        left = {job_id: folded(*told[job_id], at) for job_id in held & told.keys()}
        events.extend(runtimes.beat(partition, command.beat, at, settled, left))
    return Decided(tuple(events), refused=tuple(refused))


def _claim(partition: Partition, command: Claim, at: Micros) -> Decision:
    """Paused queues are passed over; it is refused if all are."""
    granted: list[LeaseGranted] = []
    queues = tuple(dict.fromkeys(command.queues))
    known = [partition.queues.get(queue) for queue in queues]
    if all(queue is not None and queue.paused is not None for queue in known):
        return Rejected(Rejection.QUEUE_PAUSED, "the queue is paused: nothing of it is leased")
    for queue in queues:
        room = command.limit - len(granted)
        granted += runtimes.offer(partition, queue, command.types, command.runtime_id, room, at)
    return Decided(tuple(granted), grants=tuple(granted))


def _held(job: Job, held: Held) -> tuple[Event, ...]:
    if held.extension is None:
        return held.events
    step = quoted_step(job, held.extension.fence)
    lease = held_lease(step) if step is not None else None
    runtime_id = RuntimeId("") if lease is None else lease.runtime_id
    extended = LeasesExtended(job.request.queue, runtime_id, (held.extension,))
    return (*held.events, extended)


def _of_ended(job_id: JobId, decision: tuple[Event, ...] | Rejected) -> Decision:
    return decision if isinstance(decision, Rejected) else Decided(decision, job_id)


def _accepted(job: Job, decision: tuple[Event, ...] | Rejected) -> Decision:
    return decision if isinstance(decision, Rejected) else Decided(decision, job.id)
