"""RFC 9457 problems, and the catalogue of every code that an answer may carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from starlette.responses import Response

from ledger.domain.rejections import STATUS, WHEN, FieldError, Rejected
from ledger.log.replies import Reply

MEDIA_TYPE = "application/problem+json"


class Known(Struct, frozen=True, gc=False):
    """What a code means, whoever answers it."""

    status: int
    title: str
    retry_after_seconds: int | None = None
    """Passing: ask again after that long."""


# --- The catalogue -------------------------------------------------------------------------------
_OF_THE_GATEWAY: dict[str, Known] = {
    "MALFORMED_JSON": Known(400, "the body is not strict JSON"),
    "COMMAND_NOT_FOUND": Known(404, "no command of that id within the last hour"),
    "LOG_UNAVAILABLE": Known(503, "the log did not acknowledge in time", 1),
    "RESULT_NOT_FOUND": Known(404, "the job has no result that this server can give"),
    "ROUTE_NOT_FOUND": Known(404, "there is no such route"),
    "METHOD_NOT_ALLOWED": Known(405, "the route does not take this method"),
    "UNSUPPORTED_MEDIA_TYPE": Known(415, "the body must be application/json"),
    "REQUEST_TIMEOUT": Known(408, "the body did not arrive in time"),
    "CROSS_SITE_REQUEST": Known(403, "a page of another origin may not write here"),
    "OVERLOADED": Known(503, "as many requests as may wait for a decision already do", 1),
    "STORE_UNAVAILABLE": Known(503, "the object store did not answer; nothing was recorded", 1),
    "OBJECT_DAMAGED": Known(500, "what the object store has is not what was put there"),
    "VIEW_UNAVAILABLE": Known(503, "the read model cannot be asked now", 1),
    "NOT_READY": Known(503, "the server cannot serve every route now", 1),
    "INTERNAL_ERROR": Known(500, "the server failed; its log knows more under this `instance`"),
}

_RETRY_AFTER = {"QUEUE_FULL": 5, "LIMIT_REACHED": 1, "VIEW_BEHIND": 1}

CODES: dict[str, Known] = {
    **{code.value: Known(STATUS[code], WHEN[code], _RETRY_AFTER.get(code)) for code in STATUS},
    **_OF_THE_GATEWAY,
}
"""Every code with its status: the rules' own, and what only the gateway can answer."""


# --- One problem ---------------------------------------------------------------------------------
class Wrong(Struct, frozen=True, gc=False):
    """One thing that is wrong with a request."""

    pointer: str
    """RFC 6901: into the body, or to a query parameter by its name."""
    message: str


class Problem(Struct, frozen=True, gc=False, omit_defaults=True):
    """The body of every error."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    job_id: str | None = None
    job_status: str | None = None
    errors: Sequence[Wrong] = ()
    instance: str | None = None
    """Names this one occurrence in the server's log."""
    checks: Mapping[str, str] | None = None
    """Of NOT_READY: what does not answer."""


class Refused(Exception):
    """Ends the handling of a request with a problem as its answer."""

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.code)
        self.problem = problem
        self.headers = dict(headers or {})


def refused(
    code: str,
    detail: str = "",
    *,
    errors: Sequence[Wrong] = (),
    job_id: str | None = None,
    job_status: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Refused:
    """To be raised. `code` must stand in the catalogue."""
    known = CODES[code]
    problem = Problem(
        type=type_of(code),
        title=known.title,
        status=known.status,
        detail=detail or known.title,
        code=code,
        job_id=job_id,
        job_status=job_status,
        errors=errors,
    )
    return Refused(problem, headers)


def invalid(pointer: str, message: str) -> Refused:
    """VALIDATION_FAILED for one field."""
    return refused("VALIDATION_FAILED", message, errors=(Wrong(pointer, message),))


def refused_by_rule(rejected: Rejected) -> Refused:
    return refused(
        rejected.code,
        rejected.detail,
        errors=_pointed(rejected.pointer, rejected.detail, rejected.errors),
        job_id=rejected.job_id,
        job_status=rejected.job_status,
    )


def refused_by_owner(reply: Reply) -> Refused:
    """An owner of a later version may name a code that this catalogue lacks: then 409."""
    code = reply.code or "INTERNAL_ERROR"
    known = CODES.get(code, Known(409, "the command was refused"))
    problem = Problem(
        type=type_of(code),
        title=known.title,
        status=known.status,
        detail=reply.detail or known.title,
        code=code,
        job_id=reply.job_id,
        job_status=reply.job_status,
        errors=_pointed(reply.pointer, reply.detail, reply.errors),
    )
    headers = {"Ledger-Position": reply.position} if reply.position else {}
    if reply.replayed:
        headers["Idempotency-Replayed"] = "true"
    return Refused(problem, headers)


def problem_response(refusal: Refused) -> Response:
    problem = refusal.problem
    known = CODES.get(problem.code)
    headers = refusal.headers
    if known is not None and known.retry_after_seconds is not None:
        headers = {"Retry-After": str(known.retry_after_seconds), **headers}
    return Response(
        _encode(problem), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )


def type_of(code: str) -> str:
    """A URI reference that the documentation page answers."""
    return f"/docs#{code}"


def _pointed(
    pointer: str | None, detail: str, errors: tuple[FieldError, ...] = ()
) -> tuple[Wrong, ...]:
    if errors:
        return tuple(Wrong(error.pointer, error.message) for error in errors)
    return () if pointer is None else (Wrong(pointer, detail),)


_encode = msgspec.json.Encoder().encode
