"""How attempts go wrong: what a failure says, which are tried again, and when."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from ledger.domain.ids import SECOND, JobId, Micros

LEASE_EXPIRED = "LEASE_EXPIRED"
JOB_TIMEOUT = "JOB_TIMEOUT"
WAIT_TIMEOUT = "WAIT_TIMEOUT"
START_TIMEOUT = "START_TIMEOUT"
RELEASED = "RELEASED"
EACH_NOT_A_LIST = "EACH_NOT_A_LIST"
INPUTS_TOO_LARGE = "INPUTS_TOO_LARGE"
SUCCESS_NOT_MET = "SUCCESS_NOT_MET"

MESSAGES: dict[str, str] = {
    LEASE_EXPIRED: "nothing was heard from the runtime until its lease ran out",
    JOB_TIMEOUT: "the execution took longer than timeout_seconds",
    WAIT_TIMEOUT: "the external completion did not come in time",
    START_TIMEOUT: "no runtime started the job within start_timeout_seconds",
    RELEASED: "runtimes gave the job back so often that it spent its last attempt",
    EACH_NOT_A_LIST: "`each` points to no list of at most 256 items in that output",
    INPUTS_TOO_LARGE: "the outputs that the step needs are too large: give them as references",
    SUCCESS_NOT_MET: "all steps have ended, and `success_when` is not met",
}
"""Codes that the ledger gives by itself, with the message that goes along."""

BY_THE_CLOCK = frozenset({LEASE_EXPIRED, JOB_TIMEOUT, WAIT_TIMEOUT, START_TIMEOUT})
"""How an attempt ends that ran out of lease or time."""


class Retry(Struct, frozen=True, gc=False):
    """When a failed attempt is followed by another.

    `max_attempts` counts the first try. The last backoff repeats. `position` says where a retried
    job waits: `keep` where it first was, `tail` behind all that wait now.
    """

    max_attempts: int = 4
    backoff_us: tuple[int, ...] = (1 * SECOND, 5 * SECOND, 30 * SECOND)
    jitter: float = 0.1
    position: Literal["keep", "tail"] = "keep"
    retryable_codes: tuple[str, ...] = ()
    fatal_codes: tuple[str, ...] = ()


class Failure(Struct, frozen=True, gc=False):
    """What went wrong with one attempt, as the job shows it."""

    code: str
    message: str
    retryable: bool
    attempt: int
    details: Raw | UnsetType = UNSET


def is_retryable(retry: Retry, code: str, flag: bool | None) -> bool:
    """A runtime's own flag is honoured within the type's catalogue of codes.

    `flag=False` always ends the retries; a fatal code beats `flag=True`; a code that is in no list
    and comes without a flag is retryable.
    """
    return flag is not False and code not in retry.fatal_codes


def retry_at(retry: Retry, job_id: JobId, attempt: int, at: Micros, after_us: int = 0) -> Micros:
    """The instant from which the attempt after `attempt` may be leased; never before the backoff.

    The jitter only ever adds, by a hash of job and attempt in place of chance.
    """
    backoff = retry.backoff_us[min(attempt, len(retry.backoff_us)) - 1] if retry.backoff_us else 0
    digest = blake2b(f"{job_id}:{attempt}".encode(), digest_size=4).digest()
    spread = int.from_bytes(digest, "big") / 2**32
    return Micros(at + max(backoff + int(backoff * retry.jitter * spread), after_us))
