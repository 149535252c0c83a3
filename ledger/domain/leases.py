"""What a runtime may say of a job that it holds, and what comes of it. Each rule is a function of
(job, command, instant); a stale fence never gets past the first line."""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import (
    AcknowledgeCancel,
    FailAttempt,
    Heartbeat,
    LockJob,
    ProgressSaid,
    ReleaseLease,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedStart,
    ReportedWait,
    ReportProgress,
    StartAttempt,
    SubmitResult,
    WaitForCompletion,
)
from ledger.domain.deadlines import after_attempt
from ledger.domain.events import (
    AttemptFailed,
    AttemptStarted,
    Extension,
    JobCancelled,
    JobEvent,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    Ref,
    StepCancelled,
    StepFailed,
    StepSucceeded,
    WaitStarted,
)
from ledger.domain.failures import MESSAGES, RELEASED, is_retryable
from ledger.domain.flows import follow
from ledger.domain.ids import (
    INLINE_BYTES_MAX,
    NO_SESSION,
    SECOND,
    Fence,
    Micros,
    RuntimeId,
    Session,
    micros,
    rfc3339,
)
from ledger.domain.job import Job, quoted_step, retry_of, status, status_of, timeout_of
from ledger.domain.progress import merged, progressed
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.steps import (
    EndedHow,
    Leased,
    Pending,
    Status,
    Step,
    Waiting,
    held_lease,
)
from ledger.domain.strict_json import UnsafeInteger

RELEASES_MAX = 100
"""That many releases of a job spend no attempt; after them each does."""
NOT_CONFIRMED = "nobody said that it was handed over"
LEFT_BEFORE = "its runtime left before it came"
"""Why the owner itself gives a lease back."""
EXTENSIONS_MAX = 5
"""Of a lease of a few seconds HTTP heartbeats are recorded this often within its length."""
EXTENSION_PERIOD_US = SECOND
"""Of a longer one at most once in this time: whoever beats sees that the lease is longer."""

DETAILS_BYTES_MAX = 8_192
"""Of the JSON that says more of a failure."""

Events = tuple[JobEvent, ...]
NOTHING_NEW: Events = ()
Decision = Events | Rejected

Word = (
    StartAttempt
    | SubmitResult
    | FailAttempt
    | ReleaseLease
    | WaitForCompletion
    | AcknowledgeCancel
    | ReportedStart
    | ReportedResult
    | ReportedFailure
    | ReportedRelease
    | ReportedWait
    | ReportedCancel
)
"""What ends or moves an attempt, by HTTP or in a Kafka runtime's report: the same rules."""


class Held(Struct, frozen=True, gc=False):
    """What an accepted heartbeat comes to: facts, and the extension where one is due."""

    events: Events
    extension: Extension | None = None


# --- Getting a lease -----------------------------------------------------------------------------
def lock(job: Job, command: LockJob, at: Micros) -> Decision:
    if closed := refuse_closed(job):
        return closed
    wanted = command.step
    steps = [step for step in job.steps if wanted is None or step.name == wanted]
    if not steps:
        return Rejected(
            Rejection.VALIDATION_FAILED, f"the job has no step {wanted}", job.id, pointer="/step"
        )
    if job.cancel is not None:
        return _refused(Rejection.JOB_NOT_PENDING, job, f"the job is {status(job)}")
    for step in steps:
        if isinstance(step.phase, Pending) and step.phase.ready_at <= at:
            return (grant(job, step, command.runtime_id, at),)
    for step in steps:
        if held := held_lease(step):
            return _refused(Rejection.JOB_ALREADY_LOCKED, job, f"{held.runtime_id} holds the lease")
    for step in steps:
        if isinstance(step.phase, Pending):
            ready_at = rfc3339(step.phase.ready_at)
            return _refused(Rejection.JOB_NOT_PENDING, job, f"the job is not due before {ready_at}")
    if wanted is None or job.request.flow is None:
        return _refused(Rejection.JOB_NOT_PENDING, job, f"the job is {status(job)}")
    where = status_of(steps[0].phase)
    detail = "waits for those that it needs" if where is Status.PENDING else f"is {where}"
    return _refused(Rejection.JOB_NOT_PENDING, job, f"the step {wanted} {detail}")


def grant(
    job: Job,
    step: Step,
    runtime_id: RuntimeId,
    at: Micros,
    *,
    session: Session = NO_SESSION,
    number: int = 0,
    fences: int = 1,
) -> LeaseGranted:
    """`fences`: how many of the job's are given at once, this one the last of them."""
    return LeaseGranted(
        job_id=job.id,
        step=step.name,
        runtime_id=runtime_id,
        fence=Fence(job.fence + fences),
        attempt=step.attempt + 1,
        until=Micros(at + job.request.lease_us),
        session=session,
        number=number,
    )


# --- Holding it ----------------------------------------------------------------------------------
def heartbeat(
    job: Job, command: Heartbeat, at: Micros, deferred: ProgressSaid | None = None
) -> Held | Rejected:
    """`deferred` is progress said before, within a second of what is recorded."""
    step = _current(job, command.fence)
    if type(step) is Rejected:
        return step
    lease = held_lease(step)
    if lease is None:
        return _given_up(job)
    events: Events = started(job, step, at) if command.start else NOTHING_NEW
    if command.progress is not None:
        said = merged(deferred, command.progress)
        events += progressed(job, step, command.fence, said, at)
    least = min(job.request.lease_us // EXTENSIONS_MAX, EXTENSION_PERIOD_US)
    return Held(events, extension(job, step, at, least))


def extension(job: Job, step: Step, at: Micros, least: int) -> Extension | None:
    """One full lease from now, if that moves the recorded end by at least `least`."""
    lease = held_lease(step)
    until = Micros(at + job.request.lease_us)
    if lease is None or until - lease.until < least:
        return None
    return Extension(job.id, step.name, lease.fence, until)


def progress(
    job: Job, command: ReportProgress, at: Micros, deferred: ProgressSaid | None = None
) -> Decision:
    step = _current(job, command.fence)
    if type(step) is Rejected:
        return step
    said = merged(deferred, ProgressSaid(command.percent, command.phase, command.message))
    return started(job, step, at) + progressed(job, step, command.fence, said, at)


def started(job: Job, step: Step, at: Micros) -> Events:
    """The start that a report on a leased step implies; nothing if it has started."""
    phase = step.phase
    if type(phase) is not Leased:
        return NOTHING_NEW
    deadline = Micros(at + timeout_of(job, step))
    return (AttemptStarted(job.id, step.name, phase.lease.fence, deadline),)


# --- Ending it -----------------------------------------------------------------------------------
def say(job: Job, word: Word, at: Micros, order: int) -> Decision:
    """One word on one job. `order` is the place behind all that wait, for a retry at the tail."""
    decision = (
        _result(job, word, at) if type(word) is ReportedResult else _said(job, word, at, order)
    )
    if job.request.flow is None or type(decision) is Rejected:
        return decision
    return follow(job, decision, at, order)


def _said(job: Job, word: Word, at: Micros, order: int) -> Decision:
    match word:
        case ReportedStart() | StartAttempt():
            step = _current(job, word.fence)
            return step if type(step) is Rejected else started(job, step, at)
        case SubmitResult() | ReportedResult():
            return _result(job, word, at)
        case ReportedFailure() | FailAttempt():
            return _fail(job, word, at, order)
        case ReleaseLease() | ReportedRelease():
            return _release(job, word, at, order)
        case WaitForCompletion() | ReportedWait():
            return _wait(job, word, at)
        case AcknowledgeCancel() | ReportedCancel():
            return _acknowledge_cancel(job, word)
        case _:
            assert_never(word)


def _result(job: Job, word: SubmitResult | ReportedResult, at: Micros) -> Decision:
    output_hash = word.output_hash
    if output_hash is None:
        try:
            output_hash = hash_of(word.output, word.output_ref, None)
        except UnsafeInteger as error:
            return _invalid(job, f"/output{error.pointer}", str(error))
    again = result_again(job, word.fence, output_hash)
    if again is not None:
        return again
    step = _current(job, word.fence)
    if type(step) is Rejected:
        return step
    if word.output_ref is not None and word.output is not UNSET:
        return _invalid(job, "/output_ref", "output and output_ref exclude each other")
    if word.output is not UNSET and len(word.output) > INLINE_BYTES_MAX:
        return Rejected(
            Rejection.PAYLOAD_TOO_LARGE,
            f"the output has {len(word.output)} bytes; {INLINE_BYTES_MAX} fit",
            job.id,
            status(job),
            "/output",
        )
    kind = JobSucceeded if job.request.flow is None else StepSucceeded
    done = kind(
        job.id, step.name, word.fence, step.attempt, output_hash, word.output, word.output_ref
    )
    if word.extract is not None and word.output_ref is not None:
        done = replace(done, extract=Raw(msgspec.json.encode(word.extract)))
    return (*started(job, step, at), done)


def hash_of(output: Raw | UnsetType, ref: Ref | None, given: str | None) -> str:
    """SHA-256 hex over the RFC 8785 bytes of the output; taken as given where it is given."""
    if given is not None:
        return given
    if ref is not None:
        return ref.sha256
    return sha256_hex(None if output is UNSET else msgspec.json.decode(output))


def _fail(job: Job, word: FailAttempt | ReportedFailure, at: Micros, order: int) -> Decision:
    if job.end is None and _ended_before(job, word.fence, "failed"):
        return NOTHING_NEW
    step = _current(job, word.fence)
    if type(step) is Rejected:
        return step
    if word.details is not UNSET and len(word.details) > DETAILS_BYTES_MAX:
        return _invalid(job, "/details", f"longer than {DETAILS_BYTES_MAX} bytes")
    retryable = is_retryable(retry_of(job, step), word.code, word.retryable)
    failed = AttemptFailed(
        job.id,
        step.name,
        word.fence,
        step.attempt,
        word.code,
        word.message,
        retryable,
        word.details,
    )
    after_us = micros(word.retry_after_seconds or 0)
    then = after_attempt(job, step, word.code, retryable, at, order, after_us)
    return (*started(job, step, at), failed, *then)


def _release(job: Job, word: ReleaseLease | ReportedRelease, at: Micros, order: int) -> Decision:
    if job.end is None and _ended_before(job, word.fence, "released"):
        return NOTHING_NEW
    step = _current(job, word.fence)
    if type(step) is Rejected:
        return step
    if held_lease(step) is None:
        return _given_up(job)
    spent = job.releases >= RELEASES_MAX
    released = LeaseReleased(job.id, step.name, word.fence, word.reason, spent)
    is_last = spent and step.attempt >= retry_of(job, step).max_attempts
    if job.request.flow is not None:
        if job.cancel is not None:
            return (released, StepCancelled(job.id, step.name, "attempt_ended"))
        if is_last:
            return (released, StepFailed(job.id, step.name, RELEASED, MESSAGES[RELEASED]))
    elif job.cancel is not None:
        cancelled = JobCancelled(job.id, "attempt_ended", job.cancel.reason, job.cancel.by)
        return (released, cancelled)
    elif is_last:
        return (released, *after_attempt(job, step, RELEASED, False, at, order))
    return (released,)


def take_back(job: Job, fence: Fence, until: Micros, at: Micros, order: int, why: str) -> Decision:
    """The release of a grant that came to nobody: its gateway said nothing, or its runtime left. A
    start, or a recorded extension, says that it is in its runtime's hands: then nothing."""
    step = quoted_step(job, fence)
    phase = step.phase if step is not None else None
    if type(phase) is not Leased or phase.lease.until != until:
        return NOTHING_NEW
    return _release(job, ReleaseLease(job.id, fence, why), at, order)


def _wait(job: Job, word: WaitForCompletion | ReportedWait, at: Micros) -> Decision:
    step = _current(job, word.fence)
    if type(step) is Rejected:
        return step
    if isinstance(step.phase, Waiting):
        return NOTHING_NEW
    until = Micros(at + micros(word.timeout_seconds))
    return (*started(job, step, at), WaitStarted(job.id, step.name, word.fence, until))


def _acknowledge_cancel(job: Job, word: AcknowledgeCancel | ReportedCancel) -> Decision:
    if job.end is None and _ended_before(job, word.fence, "cancelled"):
        return NOTHING_NEW
    step = _current(job, word.fence)
    if type(step) is Rejected:
        return step
    if job.cancel is None:
        return _refused(Rejection.JOB_NOT_PENDING, job, "nobody asked for a cancel")
    if job.request.flow is not None:
        return (StepCancelled(job.id, step.name, "acknowledged"),)
    return (JobCancelled(job.id, "acknowledged", job.cancel.reason, job.cancel.by),)


# --- Refusals ------------------------------------------------------------------------------------
def refuse_closed(job: Job) -> Rejected | None:
    if job.end is None:
        return None
    return _refused(Rejection.JOB_CLOSED, job, f"the job has ended: {job.end}")


def refuse_other_version(job: Job, wanted: int | None) -> Rejected | None:
    if wanted is None or wanted == job.version:
        return None
    return _refused(
        Rejection.PRECONDITION_FAILED, job, f"the job has version {job.version}, not {wanted}"
    )


def result_again(job: Job, fence: Fence, output_hash: str) -> Decision | None:
    """The same result again is no news; another is told that it came too late. None: no result was
    accepted before this one."""
    accepted = _accepted_hash(job, fence)
    if accepted is None:
        return None
    if accepted == output_hash:
        return NOTHING_NEW
    return _refused(
        Rejection.RESULT_ALREADY_EXISTS, job, "another result was accepted before this one"
    )


def _accepted_hash(job: Job, fence: Fence) -> str | None:
    """In a flow each step has its own, also while it is done anew."""
    if job.request.flow is None:
        return None if job.result is None else job.result.output_hash
    for step in job.steps:
        if step.part is not None and step.ended_fence == fence and step.ended_how == "succeeded":
            return step.ended_hash
    return None if job.result is None else job.result.output_hash


def _current(job: Job, fence: Fence) -> Step | Rejected:
    """The step that the fence speaks for; else why it does not."""
    if closed := refuse_closed(job):
        return closed
    step = quoted_step(job, fence)
    if step is not None:
        return step
    return _refused(
        Rejection.LEASE_STALE,
        job,
        f"fence {fence} is not current; the last one given is {job.fence}",
    )


def _given_up(job: Job) -> Rejected:
    return _refused(
        Rejection.LEASE_STALE, job, "the lease was given up: its fence is good for the outcome only"
    )


def _ended_before(job: Job, fence: Fence, how: EndedHow) -> bool:
    """Whether the attempt under `fence` has ended by this very word already."""
    return any(step.ended_fence == fence and step.ended_how == how for step in job.steps)


def said_again(job: Job, word: Word) -> bool:
    """Whether a word of a report was said, and counted, before: the report was sent again.

    A result is not among them: whether it is the same one is for its rule to say.
    """
    match word:
        case ReportedStart() | ReportedWait():
            return any(step.ended_fence == word.fence > 0 for step in job.steps)
        case ReportedFailure():
            return _ended_before(job, word.fence, "failed")
        case ReportedRelease():
            return _ended_before(job, word.fence, "released")
        case ReportedCancel():
            last = job.end is Status.CANCELLED and job.fence == word.fence
            return last or _ended_before(job, word.fence, "cancelled")
        case _:
            return False


def _invalid(job: Job, pointer: str, detail: str) -> Rejected:
    return Rejected(Rejection.VALIDATION_FAILED, detail, job.id, status(job), pointer)


def _refused(code: Rejection, job: Job, detail: str) -> Rejected:
    return Rejected(code, detail, job.id, status(job))
