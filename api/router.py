"""From a raw request to its operation, and from whatever that comes to back to an answer."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from api.decisions import await_position
from api.gateway import Overloaded
from api.idempotency import key_from
from api.input import (
    BODY_BYTES_MAX,
    Preference,
    body_from,
    json_value,
    preference_from,
    query_from,
    read_body,
)
from api.operation import Ask, Operation, Services
from api.origins import is_cross_site
from api.problems import Refused, invalid, problem_response, refused
from ledger.domain.ids import QUEUE_PATTERN, TYPE_PATTERN, queue_of
from ledger.domain.strict_json import MalformedJson, check_text
from ledger.log.errors import LogError, RecordTooLarge
from ledger.objects import StoreUnavailable
from projections.reads import BadCursor, ReadsUnavailable

log = structlog.get_logger(__name__)

_QUEUE = re.compile(QUEUE_PATTERN)
_NAME = re.compile(TYPE_PATTERN)
PATH_PART_LENGTH_MAX = 256
FIRST_POSITION_SECONDS = 0.5
NO_ROUTE = "none"
"""The route's name in the metrics for a path that has none."""
CLIENT_GONE = 499
"""For the metrics; nobody receives it."""


class _Anything(Convertor[str]):
    """A runtime's id is its own: it may hold a slash, or a line break."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _Anything())


def routes_of(operations: Iterable[Operation]) -> list[Route]:
    """One route a path, whatever its methods; fixed parts of a path before named ones."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    paths = sorted(by_path, key=lambda path: [(part[:1] == "{", part) for part in path.split("/")])
    return [
        Route(path.replace("{rid}", "{rid:anything}"), _Path(path, by_path[path]), name=path)
        for path in paths
    ]


class _Path:
    """All operations of one path, as an ASGI app."""

    def __init__(self, path: str, operations: Mapping[str, Operation]) -> None:
        self._path = path
        self._operations = operations
        methods = set(operations) | ({"HEAD"} if "GET" in operations else set())
        self._allow = ", ".join(sorted(methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        method = "GET" if request.method == "HEAD" else request.method
        operation = self._operations.get(method)
        if operation is None:
            refusal = refused("METHOD_NOT_ALLOWED", headers={"Allow": self._allow})
            await respond(request, send, self._path, problem_response(refusal), monotonic())
        else:
            started = monotonic()
            response = await _answered(operation, request)
            await respond(request, send, self._path, response, started)


async def no_route(request: Request, _: Exception) -> Response:
    """Starlette's own 404."""
    response = problem_response(refused("ROUTE_NOT_FOUND", f"no route {request.url.path[:256]}"))
    await _finish(request, NO_ROUTE, response, monotonic())
    return response


async def respond(
    request: Request, send: Send, route: str, response: Response, started: float
) -> None:
    await _finish(request, route, response, started)
    if response.status_code != CLIENT_GONE:
        await response(request.scope, request.receive, send)


async def _finish(request: Request, route: str, response: Response, started: float) -> None:
    headers = response.headers
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Cache-Control", "no-cache" if "ETag" in headers else "no-store")
    services: Services = request.app.state.services
    if "Ledger-Position" in headers:
        services.seen.note(headers["Ledger-Position"])
    elif position := services.seen.text() or await _first_position(services, route):
        headers["Ledger-Position"] = position
    services.metrics.add(request.method, route, response.status_code, monotonic() - started)


async def _first_position(services: Services, route: str) -> str:
    """How far the views are, for a server that has heard of no position yet. Empty: of an empty
    ledger, where Postgres does not say it at once, and where it is not to be asked: for health."""
    if not route.startswith("/v1/"):
        return ""
    with suppress(ReadsUnavailable, TimeoutError):
        async with asyncio.timeout(FIRST_POSITION_SECONDS):
            for partition, offset in (await services.reads.positions()).items():
                services.seen.note_one(partition, offset)
    return services.seen.text()


# --- One operation -------------------------------------------------------------------------------
async def _answered(operation: Operation, request: Request) -> Response:
    """Total: whatever happens is an answer."""
    try:
        async with AsyncExitStack() as held:
            return await operation.endpoint(await _ask(operation, request, held))
    except Refused as refusal:
        return problem_response(refusal)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    except BadCursor:
        return problem_response(invalid("/cursor", "not a cursor of this list in this order"))
    except Overloaded:
        return problem_response(refused("OVERLOADED"))
    except RecordTooLarge as error:
        return problem_response(refused("PAYLOAD_TOO_LARGE", str(error)))
    except LogError as error:
        log.warning("log_unavailable", route=operation.path, reason=str(error))
        return problem_response(
            refused(
                "LOG_UNAVAILABLE",
                "the log did not acknowledge in time; repeat it under the same Idempotency-Key",
            )
        )
    except StoreUnavailable as error:
        log.warning("objects_unavailable", route=operation.path, reason=str(error))
        return problem_response(refused("STORE_UNAVAILABLE"))
    except ReadsUnavailable as error:
        log.warning("views_unavailable", route=operation.path, reason=str(error))
        return problem_response(refused("VIEW_UNAVAILABLE"))
    except Exception:
        instance = f"urn:ledger:failure:{secrets.token_hex(8)}"
        log.exception("request_failed", route=operation.path, instance=instance)
        failed = refused("INTERNAL_ERROR")
        failed.problem = replace(failed.problem, instance=instance)
        return problem_response(failed)


async def _ask(operation: Operation, request: Request, held: AsyncExitStack) -> Ask:
    """`held` is let go when the request is answered."""
    services: Services = request.app.state.services
    if operation.method != "GET":
        _refuse_cross_site(request)
    path = _path(operation, request.path_params)
    query = query_from(request.scope["query_string"], operation.query, prefixed=operation.prefixed)
    preference = Preference()
    if (operation.is_command or operation.is_read) and "prefer" in request.headers:
        preference = preference_from(",".join(request.headers.getlist("prefer")))
    key = key_from(request.scope["headers"]) if operation.is_command else None
    body, value = await _body(operation, request, held)
    ask = Ask(
        request=request,
        services=services,
        operation=operation,
        path=path,
        query=query,
        body=body,
        value=value,
        preference=preference,
        key=key,
    )
    if operation.is_read:
        await await_position(ask)
    return ask


def _path(operation: Operation, given: Mapping[str, Any]) -> dict[str, str]:
    """What stands in the path; what can be no id of its kind is not found."""
    path = {name: str(text) for name, text in given.items()}
    for name, text in path.items():
        try:
            check_text(text)
        except MalformedJson as error:
            raise invalid(f"/{name}", str(error)) from None
    if "id" in path and queue_of(path["id"]) is None:
        raise refused("JOB_NOT_FOUND", "that is no job id: <queue>.<uuid7>")
    if "queue" in path and not _is_queue(path["queue"]):
        raise refused("QUEUE_NOT_FOUND", "no queue can have that name")
    for part in ("type", "name"):
        if part in path and not _NAME.fullmatch(path[part]):
            if operation.method == "PUT":
                raise invalid(f"/{part}", f"a {part} has the form {TYPE_PATTERN}")
            raise refused(operation.unknown, f"no {part} can be like that")
    for part in ("user", "project"):
        if part in path and len(path[part]) > PATH_PART_LENGTH_MAX:
            raise invalid(f"/{part}", f"has {PATH_PART_LENGTH_MAX} characters at most")
    if "rid" in path and not 1 <= len(path["rid"]) <= PATH_PART_LENGTH_MAX:
        raise invalid("/rid", f"a runtime's id has 1 to {PATH_PART_LENGTH_MAX} characters")
    return path


def _is_queue(name: str) -> bool:
    return _QUEUE.fullmatch(name) is not None


async def _body(operation: Operation, request: Request, held: AsyncExitStack) -> tuple[Any, object]:
    kind = operation.body
    if kind is None:
        return None, None
    services: Services = request.app.state.services

    async def turn() -> None:
        await held.enter_async_context(services.large_bodies.turn())

    bytes_max = BODY_BYTES_MAX
    if operation.moves and services.objects is not None:
        bytes_max += services.settings.object_bytes_max
    data = await read_body(request, bytes_max, turn)
    if not data and not any(field.required for field in msgspec.structs.fields(kind)):
        data = b"{}"
    if not data:
        raise refused("MALFORMED_JSON", "the body is empty")
    value = await json_value(data)
    return body_from(data, value, kind), value


def _refuse_cross_site(request: Request) -> None:
    """A page elsewhere can make a browser send a plain POST here without asking; it may not."""
    if is_cross_site(request.headers):
        raise refused("CROSS_SITE_REQUEST")
