"""Builds responses: JSON by msgspec, and the headers that the contract promises."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct
from starlette.responses import Response

from api.conditions import etag
from api.gateway import Undecided
from api.views import AcceptedView
from ledger.domain.job import Job
from ledger.domain.job_view import job_json

_encode = msgspec.json.Encoder().encode


class _Identity(Struct, frozen=True, gc=False):
    id: str
    version: int


def json_response(
    content: object,
    *,
    status: int = 200,
    position: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    return raw_response(_encode(content), status=status, position=position, headers=headers)


def raw_response(
    content: bytes | Raw,
    *,
    status: int = 200,
    position: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    sent = dict(headers or {})
    if position:
        sent["Ledger-Position"] = position
    return Response(bytes(content), status, sent, "application/json")


def job_response(
    content: bytes | Raw,
    *,
    status: int = 200,
    position: str,
    is_deduplicated: bool = False,
    replayed: bool = False,
    with_location: bool = False,
) -> Response:
    """A job as its view's JSON, with its ETag."""
    identity = msgspec.json.decode(content, type=_Identity)
    headers = {"ETag": etag(identity.version)}
    if with_location:
        headers["Location"] = f"/v1/jobs/{identity.id}"
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    body = bytes(content)
    if is_deduplicated:
        body = body[:-1] + b',"deduplicated":true}'
    return raw_response(body, status=status, position=position, headers=headers)


def written_response(
    content: object,
    *,
    status: int = 200,
    position: str,
    replayed: bool = False,
    location: str = "",
) -> Response:
    """What a write to something that is no job came to."""
    headers: dict[str, str] = {}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    if location:
        headers["Location"] = location
    return json_response(content, status=status, position=position, headers=headers)


def stored_response(job: Job, position: str) -> Response:
    return job_response(job_json(job), position=position)


def not_modified(version: int, position: str) -> Response:
    return Response(status_code=304, headers={"ETag": etag(version), "Ledger-Position": position})


def accepted_response(undecided: Undecided) -> Response:
    """In the log, not decided in time."""
    place = undecided.place
    view = AcceptedView(undecided.command_id, place.topic, place.partition, place.offset)
    location = {"Location": f"/v1/commands/{undecided.command_id}"}
    return json_response(view, status=202, headers=location)
