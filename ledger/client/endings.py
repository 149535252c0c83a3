"""The word that is said of an attempt: of what its handler returned, of what it raised."""

from __future__ import annotations

import asyncio
from typing import assert_never

import structlog
from msgspec import UNSET, Raw, Struct, UnsetType

from ledger.client.errors import Refused, StoreFailed
from ledger.client.fitting import require_fit
from ledger.client.held import Ending, Held, Why
from ledger.client.job_context import (
    AwaitCompletion,
    Cancellation,
    GiveBack,
    JobCancelled,
    JobFailure,
    StoredOutput,
)
from ledger.client.json_values import DETAILS_BYTES_MAX, clean_text, hash_of, json_bytes
from ledger.client.words import INVALID_OUTPUT
from ledger.domain.commands import (
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedWait,
)
from ledger.domain.ids import INLINE_BYTES_MAX
from ledger.domain.strict_json import MalformedJson, UnsafeInteger

log = structlog.get_logger(__name__)

HANDLER_ERROR = "HANDLER_ERROR"
NO_OBJECT_STORE = "NO_OBJECT_STORE"
OBJECT_LOST = "OBJECT_LOST"
OBJECT_UNAVAILABLE = "OBJECT_UNAVAILABLE"


class Large(Struct, gc=False):
    """An output that does not fit the log."""

    held: Held
    data: bytes
    output_hash: str


def result_of(held: Held, output: object) -> ReportedResult | ReportedFailure | Large:
    if isinstance(output, StoredOutput):
        return ReportedResult(held.job_id, held.fence, output_ref=output.ref)
    try:
        data = json_bytes(output)
        output_hash = hash_of(output, data)
    except (MalformedJson, UnsafeInteger) as error:
        return failure(held, INVALID_OUTPUT, f"the output is {error}", retryable=False)
    try:
        require_fit(held.job.output_schema, Raw(data), "/output")
    except Refused as refused:
        return failure(held, INVALID_OUTPUT, str(refused), retryable=False)
    if len(data) > INLINE_BYTES_MAX:
        return Large(held, data, output_hash)
    return ReportedResult(held.job_id, held.fence, Raw(data), None, output_hash)


def of_store(failed: StoreFailed) -> JobFailure:
    code = OBJECT_UNAVAILABLE if failed.is_passing else OBJECT_LOST
    return JobFailure(code, clean_text(str(failed)), retryable=failed.is_passing)


def raised(
    held: Held, error: BaseException, cancelled: Cancellation, why: Why | None
) -> Ending | None:
    """Of what a handler raised; `why`: it was told to stop. None: there is nothing to say."""
    match error:
        case JobFailure():
            return ReportedFailure(
                held.job_id,
                held.fence,
                clean_text(error.code, 100),
                clean_text(error.message),
                error.retryable,
                error.retry_after,
                _details(error.details),
            )
        case GiveBack():
            return ReportedRelease(held.job_id, held.fence, clean_text(error.reason))
        case AwaitCompletion():
            return ReportedWait(held.job_id, held.fence, error.timeout_seconds)
        case JobCancelled() | asyncio.CancelledError() if cancelled:
            return stopped(held, why or Why.GRACE_ENDED)
        case _ if why is Why.LOST or why is Why.RAN_OUT or why is Why.LEAVING:
            return stopped(held, why)
        case _:
            log.warning(
                "runtime.handler_failed",
                job=held.job_id,
                type=held.job.type,
                attempt=held.item.attempt,
                exc_info=error,
            )
            message = clean_text(f"{type(error).__name__}: {error}")
            return failure(held, HANDLER_ERROR, message, retryable=True)


def stopped(held: Held, why: Why) -> Ending | None:
    match why:
        case Why.LOST:
            return None
        case Why.GRACE_ENDED:
            return ReportedCancel(held.job_id, held.fence)
        case Why.RAN_OUT | Why.LEAVING:
            return released(held, why)
        case _:
            assert_never(why)


def released(held: Held, why: Why) -> ReportedRelease:
    return ReportedRelease(held.job_id, held.fence, why.value)


def failure(held: Held, code: str, message: str, *, retryable: bool) -> ReportedFailure:
    return ReportedFailure(held.job_id, held.fence, code, clean_text(message), retryable)


def _details(details: object) -> Raw | UnsetType:
    if details is None:
        return UNSET
    try:
        data = json_bytes(details)
    except (MalformedJson, UnsafeInteger) as error:
        return Raw(json_bytes({"omitted": str(error)}))
    if len(data) > DETAILS_BYTES_MAX:
        return Raw(json_bytes({"omitted": f"{len(data)} bytes; {DETAILS_BYTES_MAX} fit"}))
    return Raw(data)
