"""Facts and commands of one plain job, as tests tell them: what is not said is as usual.

A fact that speaks of instants is made when its time has come: it is a function of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import UNSET, Raw, UnsetType

from ledger.domain.commands import (
    AcknowledgeCancel,
    CancelJob,
    FailAttempt,
    Heartbeat,
    LockJob,
    ProgressSaid,
    ReleaseLease,
    ReportProgress,
    RequestJob,
    StartAttempt,
    SubmitResult,
    WaitForCompletion,
)
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
    Event,
    Extension,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    LeasesExtended,
    RetryScheduled,
    RuntimeStarted,
    TemplatePut,
    WaitStarted,
)
from ledger.domain.failures import MESSAGES, Retry
from ledger.domain.ids import (
    MAIN,
    SECOND,
    CommandId,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
    micros,
    new_job_id,
)
from tests.support.clock import NOON

Fact = Event | Callable[[Micros], Event]

QUEUE = QueueName("default")
ADA, BOB = RuntimeId("ada"), RuntimeId("bob")
OK = Raw(b'{"ok":true}')
OK_HASH = "4062edaf750fb8074e7e83e0c9028c94e32468a8b6f1614774328ef045150f93"
LATER = Raw(b'{"ok":false}')


def job_id(name: str = "job", queue: QueueName = QUEUE) -> JobId:
    return new_job_id(queue, NOON, name.encode())


JOB = job_id()


def evenly(**said: Any) -> Retry:
    """The usual retry, without chance in it: after 1, 5, 30, 30 … seconds, four attempts."""
    return Retry(jitter=0.0, **said)


# --- Facts ---------------------------------------------------------------------------------------
def requested(
    job: JobId = JOB, *, delay: float = 0, order: int | None = None, **asked: Any
) -> Fact:
    """A job; retried `evenly` unless told otherwise."""
    fields = {"type": "report", "payload": Raw(b"{}"), "retry": evenly(), **asked}

    def at(now: Micros) -> Event:
        ready_at = Micros(now + micros(delay))
        place = now if order is None else order
        queue = QueueName(job.rpartition(".")[0])
        return JobRequested(job_id=job, queue=queue, ready_at=ready_at, order=place, **fields)

    return at


def leased(
    runtime: RuntimeId = ADA,
    *,
    job: JobId = JOB,
    fence: int = 1,
    attempt: int | None = None,
    lease: float = 60,
    session: str = "",
    number: int = 0,
) -> Fact:
    def at(now: Micros) -> Event:
        return LeaseGranted(
            job,
            MAIN,
            runtime,
            Fence(fence),
            fence if attempt is None else attempt,
            Micros(now + micros(lease)),
            Session(session),
            number,
        )

    return at


def started(fence: int = 1, *, job: JobId = JOB, timeout: float = 120) -> Fact:
    return lambda now: AttemptStarted(job, MAIN, Fence(fence), Micros(now + micros(timeout)))


def progressed(
    percent: float | None = None,
    phase: str | None = None,
    message: str | None = None,
    *,
    fence: int = 1,
) -> Event:
    return JobProgressed(JOB, MAIN, Fence(fence), percent, phase, message)


def extended(fence: int = 1, *, runtime: RuntimeId = ADA, lease: float = 60) -> Fact:
    return lambda now: LeasesExtended(
        QUEUE, runtime, (Extension(JOB, MAIN, Fence(fence), Micros(now + micros(lease))),)
    )


def released(fence: int = 1, reason: str = "", *, spent: bool = False) -> Event:
    return LeaseReleased(JOB, MAIN, Fence(fence), reason, spent)


def gave_up(fence: int = 1, *, wait: float = 600) -> Fact:
    return lambda now: WaitStarted(JOB, MAIN, Fence(fence), Micros(now + micros(wait)))


def failed(
    code: str = "BROKEN",
    message: str = "",
    *,
    fence: int = 1,
    attempt: int | None = None,
    retryable: bool = True,
    details: Raw | UnsetType = UNSET,
) -> Event:
    number = fence if attempt is None else attempt
    return AttemptFailed(JOB, MAIN, Fence(fence), number, code, message, retryable, details)


def expired(
    code: str, *, fence: int = 1, attempt: int | None = None, retryable: bool = True
) -> Event:
    number = fence if attempt is None else attempt
    return AttemptExpired(JOB, MAIN, Fence(fence), number, code, MESSAGES[code], retryable)


def retried(wait: float, *, order: int = NOON) -> Fact:
    """Scheduled again `wait` seconds from now."""
    return lambda now: RetryScheduled(JOB, MAIN, Micros(now + micros(wait)), order)


def succeeded(
    output: Raw = OK, *, fence: int = 1, attempt: int | None = None, digest: str = OK_HASH
) -> Event:
    number = fence if attempt is None else attempt
    return JobSucceeded(JOB, MAIN, Fence(fence), number, digest, output)


def job_failed(code: str = "BROKEN") -> Event:
    return JobFailed(JOB, code)


def job_expired(code: str) -> Event:
    return JobExpired(JOB, code)


def cancel_asked(reason: str = "", *, by: str = "tester", grace: float = 30) -> Fact:
    return lambda now: CancelRequested(JOB, Micros(now + micros(grace)), reason, by)


def cancelled(
    how: Literal["at_once", "acknowledged", "grace_ended", "attempt_ended"],
    reason: str = "",
    *,
    by: str = "tester",
    job: JobId = JOB,
) -> Event:
    return JobCancelled(job, how, reason, by)


def runtime_started(
    runtime: RuntimeId = ADA,
    session: str = "s1",
    *,
    types: tuple[str, ...] = ("report",),
    period: float = 5,
    queue: QueueName = QUEUE,
) -> Event:
    return RuntimeStarted(queue, runtime, Session(session), types, micros(period))


def template_put(content: bytes = b"{}", *, version: int = 1, type: str = "report") -> Event:
    return TemplatePut(QUEUE, type, version, Raw(content))


# --- Commands ------------------------------------------------------------------------------------
def request(payload: bytes | None = None, **fields: Any) -> RequestJob:
    return RequestJob(
        "report",
        payload=UNSET if payload is None else Raw(payload),
        **fields,
    )


def lock(runtime: RuntimeId = ADA, job: JobId = JOB) -> LockJob:
    return LockJob(job, runtime)


def start(fence: int = 1) -> StartAttempt:
    return StartAttempt(JOB, Fence(fence))


def heartbeat(fence: int = 1, *, begin: bool = True, **said: Any) -> Heartbeat:
    return Heartbeat(JOB, Fence(fence), ProgressSaid(**said) if said else None, begin)


def progress(percent: float | None = None, *, fence: int = 1, **said: Any) -> ReportProgress:
    return ReportProgress(JOB, Fence(fence), percent, **said)


def result(output: Raw = OK, *, fence: int = 1) -> SubmitResult:
    return SubmitResult(JOB, Fence(fence), output)


def fail(code: str = "BROKEN", *, fence: int = 1, **said: Any) -> FailAttempt:
    return FailAttempt(JOB, Fence(fence), code, **said)


def release(fence: int = 1, reason: str = "") -> ReleaseLease:
    return ReleaseLease(JOB, Fence(fence), reason)


def wait(seconds: float = 600, *, fence: int = 1) -> WaitForCompletion:
    return WaitForCompletion(JOB, Fence(fence), seconds)


def acknowledge_cancel(fence: int = 1) -> AcknowledgeCancel:
    return AcknowledgeCancel(JOB, Fence(fence))


def cancel(reason: str = "", **more: Any) -> CancelJob:
    return CancelJob(JOB, reason, **more)


def keyed(key: str, content: str) -> CommandId:
    """The id of a command under an Idempotency-Key, as the gateway makes it."""
    return CommandId(f"ik.{key}.{content}")


def instant(seconds: float) -> Micros:
    """So many seconds after noon."""
    return Micros(NOON + round(seconds * SECOND))


def unknown_like(job_id: str) -> JobId:
    """The id of no job, as good in form."""
    return JobId(job_id[:-1] + ("1" if job_id.endswith("0") else "0"))
