"""The catalogue of refusals: why a command is refused. A refusal is a value, never an exception."""

from __future__ import annotations

from enum import StrEnum
from typing import final

from msgspec import Struct

from ledger.domain.ids import Fence, JobId


class Rejection(StrEnum):
    """Codes of the HTTP contract that rules can answer. `WHEN` has each one's meaning."""

    VALIDATION_FAILED = "VALIDATION_FAILED"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    TEMPLATE_NOT_FOUND = "TEMPLATE_NOT_FOUND"
    JOB_ALREADY_LOCKED = "JOB_ALREADY_LOCKED"
    JOB_NOT_PENDING = "JOB_NOT_PENDING"
    JOB_CLOSED = "JOB_CLOSED"
    JOB_NOT_CLOSED = "JOB_NOT_CLOSED"
    LEASE_STALE = "LEASE_STALE"
    RESULT_ALREADY_EXISTS = "RESULT_ALREADY_EXISTS"
    CANCEL_NOT_SUPPORTED = "CANCEL_NOT_SUPPORTED"
    IDEMPOTENCY_KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"
    TEMPLATE_DISABLED = "TEMPLATE_DISABLED"
    QUEUE_FULL = "QUEUE_FULL"
    WRONG_PARTITION = "WRONG_PARTITION"
    COMMAND_EXPIRED = "COMMAND_EXPIRED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    ENTRY_TOO_LARGE = "ENTRY_TOO_LARGE"
    OPERATION_NOT_FOUND = "OPERATION_NOT_FOUND"
    PRECONDITION_FAILED = "PRECONDITION_FAILED"
    VIEW_BEHIND = "VIEW_BEHIND"
    DUPLICATE_ACTIVE = "DUPLICATE_ACTIVE"
    NOT_REPEATABLE = "NOT_REPEATABLE"
    LIMIT_REACHED = "LIMIT_REACHED"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    SCHEDULE_NOT_FOUND = "SCHEDULE_NOT_FOUND"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    INVALID_SCHEDULE = "INVALID_SCHEDULE"
    NOT_SCHEDULABLE = "NOT_SCHEDULABLE"


STATUS: dict[Rejection, int] = {
    Rejection.VALIDATION_FAILED: 422,
    Rejection.JOB_NOT_FOUND: 404,
    Rejection.TEMPLATE_NOT_FOUND: 404,
    Rejection.JOB_ALREADY_LOCKED: 409,
    Rejection.JOB_NOT_PENDING: 409,
    Rejection.JOB_CLOSED: 409,
    Rejection.JOB_NOT_CLOSED: 409,
    Rejection.LEASE_STALE: 409,
    Rejection.RESULT_ALREADY_EXISTS: 409,
    Rejection.CANCEL_NOT_SUPPORTED: 409,
    Rejection.IDEMPOTENCY_KEY_REUSED: 422,
    Rejection.TEMPLATE_DISABLED: 409,
    Rejection.QUEUE_FULL: 429,
    Rejection.WRONG_PARTITION: 422,
    Rejection.COMMAND_EXPIRED: 422,
    Rejection.PAYLOAD_TOO_LARGE: 413,
    Rejection.ENTRY_TOO_LARGE: 413,
    Rejection.OPERATION_NOT_FOUND: 404,
    Rejection.PRECONDITION_FAILED: 412,
    Rejection.VIEW_BEHIND: 503,
    Rejection.DUPLICATE_ACTIVE: 409,
    Rejection.NOT_REPEATABLE: 409,
    Rejection.LIMIT_REACHED: 409,
    Rejection.QUEUE_PAUSED: 409,
    Rejection.QUEUE_NOT_FOUND: 404,
    Rejection.SCHEDULE_NOT_FOUND: 404,
    Rejection.MODEL_NOT_FOUND: 404,
    Rejection.INVALID_SCHEDULE: 422,
    Rejection.NOT_SCHEDULABLE: 409,
}
"""HTTP status of each code."""

WHEN: dict[Rejection, str] = {
    Rejection.VALIDATION_FAILED: "the command does not have the form that its type asks for",
    Rejection.JOB_NOT_FOUND: "the ledger knows no job of that id",
    Rejection.TEMPLATE_NOT_FOUND: "the queue has no such template or version",
    Rejection.JOB_ALREADY_LOCKED: "somebody holds the lease",
    Rejection.JOB_NOT_PENDING: "not claimable now: delayed, waiting or cancelling",
    Rejection.JOB_CLOSED: "the job has ended; its status says how",
    Rejection.JOB_NOT_CLOSED: "only an ended job can be rerun",
    Rejection.LEASE_STALE: "the fence quoted is not the current one",
    Rejection.RESULT_ALREADY_EXISTS: "another result was accepted before",
    Rejection.CANCEL_NOT_SUPPORTED: "the template does not allow a cancel",
    Rejection.IDEMPOTENCY_KEY_REUSED: "the same key came before with other content",
    Rejection.TEMPLATE_DISABLED: "the template takes no new jobs",
    Rejection.QUEUE_FULL: "the partition or queue holds as much as it may",
    Rejection.WRONG_PARTITION: "the command lies in another partition than its queue's",
    Rejection.COMMAND_EXPIRED: "older than the window in which its id or key is remembered",
    Rejection.PAYLOAD_TOO_LARGE: "a payload or output is larger than what may lie in the log",
    Rejection.ENTRY_TOO_LARGE: "what the command would record does not fit one entry",
    Rejection.OPERATION_NOT_FOUND: "the ledger knows no operation of that id",
    Rejection.PRECONDITION_FAILED: "another state is named (If-Match: a version) than there is",
    Rejection.VIEW_BEHIND: "the facts brought along are older than what happened since",
    Rejection.DUPLICATE_ACTIVE: "an equal job has not ended, and the policy allows one at a time",
    Rejection.NOT_REPEATABLE: "an equal job has succeeded, and the template allows it once",
    Rejection.LIMIT_REACHED: "as many jobs hold a lease under a limit as it allows",
    Rejection.QUEUE_PAUSED: "nothing of the queue is leased until it is resumed",
    Rejection.QUEUE_NOT_FOUND: "the queue was never used",
    Rejection.SCHEDULE_NOT_FOUND: "the queue has no such schedule",
    Rejection.MODEL_NOT_FOUND: "there is no such model",
    Rejection.INVALID_SCHEDULE: "the cron expression or time zone is none, or never comes",
    Rejection.NOT_SCHEDULABLE: "the type's template allows no schedule",
}

PASSING = frozenset(
    {
        Rejection.QUEUE_FULL,
        Rejection.QUEUE_PAUSED,
        Rejection.LIMIT_REACHED,
        Rejection.VIEW_BEHIND,
    }
)
"""Refusals that may turn out otherwise a moment later: they bind no idempotency key."""


class FieldError(Struct, frozen=True, gc=False):
    pointer: str
    message: str


@final
class Rejected(Struct, frozen=True, gc=False):
    """A refusal, with what helps the one who asked."""

    code: Rejection
    detail: str = ""
    job_id: JobId | None = None
    job_status: str | None = None
    pointer: str | None = None
    """JSON pointer to the field that is wrong, for VALIDATION_FAILED."""
    fence: Fence = Fence(0)
    """That a word of a report quoted."""
    errors: tuple[FieldError, ...] = ()
    """All that is wrong, where it is more than one thing."""
    replayed: bool = False
    """The very command (id, or Idempotency-Key) came before, and was refused so."""


def not_found(job_id: JobId) -> Rejected:
    return Rejected(Rejection.JOB_NOT_FOUND, f"the ledger knows no job {job_id}", job_id)
