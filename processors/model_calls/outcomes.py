"""What a call of a model comes to: an answer, or a failure with a code that says what to do.

Pure. No message holds anything that the model said or that the call carried: what a failure says is
written to the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import httpcore
from msgspec import Struct

from ledger.domain.ids import SECOND, Micros, micros_of

VALIDATION_FAILED = "VALIDATION_FAILED"
MODEL_RATE_LIMIT = "MODEL_RATE_LIMIT"
MODEL_TIMEOUT = "MODEL_TIMEOUT"
NETWORK_ERROR = "NETWORK_ERROR"
TEMPORARY_PROVIDER_ERROR = "TEMPORARY_PROVIDER_ERROR"
INVALID_CREDENTIAL = "INVALID_CREDENTIAL"
MODEL_REJECTED = "MODEL_REJECTED"
RESPONSE_TOO_LARGE = "RESPONSE_TOO_LARGE"
RESPONSE_UNREADABLE = "RESPONSE_UNREADABLE"
ADDRESS_REFUSED = "ADDRESS_REFUSED"
REDIRECT_REFUSED = "REDIRECT_REFUSED"

RETRYABLE = frozenset({MODEL_RATE_LIMIT, MODEL_TIMEOUT, NETWORK_ERROR, TEMPORARY_PROVIDER_ERROR})
"""Codes after which the same call may come to something else."""

RETRY_AFTER_SECONDS_MAX = 3_600.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AGAIN_4XX = frozenset({408, 425})
_NEVER_5XX = frozenset({501, 505})
"""The model cannot do what the call asks for: not implemented, HTTP version."""


class Answer(Struct, frozen=True, gc=False, kw_only=True):
    """The model said yes: a status of 200 to 299, and the body, decompressed."""

    status: int
    content_type: str
    """Empty if the model names none."""
    headers: Mapping[str, str]
    """Few of them, names in lower case: see `KEPT_HEADERS`."""
    body: bytes
    elapsed_seconds: float


class CallFailed(Struct, frozen=True, gc=False, kw_only=True):
    """In the words of `fail`: give them to the ledger as they are."""

    code: str
    message: str
    retry_after_seconds: float | None = None
    details: Mapping[str, object] | None = None

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE


def failure_of_status(status: int, retry_after: str | None, now: Micros) -> CallFailed | None:
    """None for 200 to 299. `retry_after` is the header as the model sent it; what it asks for is
    passed on with a failure that is retryable."""
    if 200 <= status <= 299:
        return None
    code, message = _of_status(status)
    return CallFailed(
        code=code,
        message=f"the model answered {status}: {message}",
        retry_after_seconds=retry_after_seconds(retry_after, now) if code in RETRYABLE else None,
        details={"status": status},
    )


def retry_after_seconds(text: str | None, now: Micros) -> float | None:
    """Of `Retry-After`: seconds, or an HTTP date. From 0 to `RETRY_AFTER_SECONDS_MAX`; None for
    what is neither."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        # As a float: any number of digits, and no integer too long to be made.
        return min(float(text), RETRY_AFTER_SECONDS_MAX)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)  # "-0000", as mail writes a zone that it does not tell.
    return min(max(0.0, (micros_of(at) - now) / SECOND), RETRY_AFTER_SECONDS_MAX)


def failure_of_error(error: Exception) -> CallFailed:
    """Of what the connection raised."""
    return CallFailed(code=NETWORK_ERROR, message=_of_error(error))


def timed_out(seconds: float) -> CallFailed:
    return CallFailed(code=MODEL_TIMEOUT, message=f"no whole answer within {seconds:g} s")


def too_large(bytes_max: int) -> CallFailed:
    return CallFailed(
        code=RESPONSE_TOO_LARGE,
        message=f"the answer is longer than {bytes_max} bytes",
        details={"bytes_max": bytes_max},
    )


def invalid(message: str, pointer: str) -> CallFailed:
    return CallFailed(
        code=VALIDATION_FAILED,
        message=message,
        details={"errors": [{"pointer": pointer, "message": message}]},
    )


def _of_status(status: int) -> tuple[str, str]:
    if status in REDIRECTS:
        return REDIRECT_REFUSED, "a redirect that is not followed"
    if status == 429:
        return MODEL_RATE_LIMIT, "too many calls"
    if status in (401, 403):
        return INVALID_CREDENTIAL, "it does not accept the credentials"
    if status in _AGAIN_4XX or (status >= 500 and status not in _NEVER_5XX):
        return TEMPORARY_PROVIDER_ERROR, "it may answer later"
    return MODEL_REJECTED, "it does not accept the call"


def _of_error(error: Exception) -> str:
    # By kind only: texts of h11 and ssl quote what was received or sent.
    match error:
        case httpcore.ConnectTimeout():
            return "no connection came about in time"
        case httpcore.ConnectError():
            return "no connection came about: no address, refused, or TLS failed"
        case httpcore.RemoteProtocolError():
            return "the answer ended early or is no HTTP"
        case _:
            return "the connection broke"
