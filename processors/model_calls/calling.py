"""Calls a model: one request over HTTP, bounded in time, size and connections.

There is no `httpx.AsyncClient` in it: that keeps cookies from one call to the next, takes proxies
and passwords from the environment, follows redirects by its own rules, and logs every URL, which
for a GET model holds the payload. Nothing here logs; what went wrong is in the `CallFailed`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from weakref import WeakValueDictionary

import httpcore
import httpx
from msgspec import Struct

from ledger.client.clock import monotonic, wall_clock
from ledger.sealing.secret import Secret
from processors.model_calls.addresses import AddressRefused, Guard
from processors.model_calls.answer_body import TooLarge, Unreadable, read_body
from processors.model_calls.connections import guarded_connection
from processors.model_calls.model_request import (
    ModelRequest,
    Target,
    port_of,
    redirected,
    request_of,
)
from processors.model_calls.outcomes import (
    ADDRESS_REFUSED,
    REDIRECTS,
    RESPONSE_UNREADABLE,
    Answer,
    CallFailed,
    failure_of_error,
    failure_of_status,
    timed_out,
    too_large,
)

KEPT_HEADERS = ("content-language", "etag", "last-modified", "request-id", "x-request-id")
KEPT_LENGTH_MAX = 256
NO_HEADERS: Mapping[str, Secret] = MappingProxyType({})
Headers = Sequence[tuple[bytes, bytes]]


class Bounds(Struct, frozen=True, gc=False, kw_only=True):
    bytes_max: int = 32 * 1024 * 1024
    """Of a body, as it comes and decompressed. A call holds twice that at the end."""
    connections_per_origin_max: int = 8
    """More calls wait, within their own time."""
    connect_seconds: float = 10.0
    """For each of the host's addresses, and again for TLS."""
    follow_redirects_max: int = 0


class ModelCaller:
    """`sockets` opens them."""

    def __init__(
        self,
        guard: Guard,
        *,
        bounds: Bounds | None = None,
        ssl_context: ssl.SSLContext | None = None,
        sockets: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._guard = guard
        self._bounds = bounds or Bounds()
        self._ssl_context = ssl_context or httpx.create_ssl_context()
        self._sockets = sockets or httpcore.AnyIOBackend()
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def call(
        self,
        target: Target,
        payload: bytes,
        *,
        idempotency_key: str,
        forward_headers: Mapping[str, Secret] = NO_HEADERS,
    ) -> Answer | CallFailed:
        """Once: retries are the ledger's. `payload` is JSON; `idempotency_key` is
        `<job id>:<fence>`. Raises nothing but what cancels it; then the connection is closed."""
        request = request_of(
            target, payload, idempotency_key=idempotency_key, forward_headers=forward_headers
        )
        if isinstance(request, CallFailed):
            return request
        try:
            async with asyncio.timeout(target.timeout_seconds):
                return await self._follow(request, monotonic())
        except TimeoutError:
            return timed_out(target.timeout_seconds)
        except AddressRefused as refused:
            return CallFailed(code=ADDRESS_REFUSED, message=str(refused))
        except (
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.ProtocolError,
            ssl.SSLError,
        ) as error:
            return failure_of_error(error)
        except TooLarge:
            return too_large(self._bounds.bytes_max)
        except Unreadable:
            return CallFailed(
                code=RESPONSE_UNREADABLE, message="the answer's body is not in its encoding"
            )

    async def _follow(self, request: ModelRequest, since: float) -> Answer | CallFailed:
        for _ in range(self._bounds.follow_redirects_max):
            found = await self._send(request, since)
            if not isinstance(found, _Redirect):
                return found
            next_hop = redirected(request, found.status, found.location)
            if isinstance(next_hop, CallFailed):
                return next_hop
            request = next_hop
        last = await self._send(request, since)
        return last.refused if isinstance(last, _Redirect) else last

    async def _send(self, request: ModelRequest, since: float) -> Answer | CallFailed | _Redirect:
        url = _core_url(request.url)
        async with (
            self._slots_of(request.origin),
            guarded_connection(
                self._guard, url.origin, self._ssl_context, self._sockets
            ) as connection,
        ):
            response = await connection.handle_async_request(
                httpcore.Request(
                    request.method,
                    url,
                    headers=_wire_headers(request),
                    content=request.body,
                    extensions={"timeout": {"connect": self._bounds.connect_seconds}},
                )
            )
            return await self._received(response, since)

    async def _received(
        self, response: httpcore.Response, since: float
    ) -> Answer | CallFailed | _Redirect:
        headers: Headers = response.headers
        failed = failure_of_status(response.status, _header(headers, b"retry-after"), wall_clock())
        if failed is not None:
            location = _header(headers, b"location")
            if response.status in REDIRECTS and location is not None:
                return _Redirect(response.status, location, failed)
            return failed
        length = _header(headers, b"content-length") or ""
        if length.isdigit() and int(length) > self._bounds.bytes_max:
            raise TooLarge
        encoding = (_header(headers, b"content-encoding") or "").strip().lower()
        body = await read_body(response.aiter_stream(), encoding, self._bounds.bytes_max)
        return Answer(
            status=response.status,
            content_type=(_header(headers, b"content-type") or "")[:KEPT_LENGTH_MAX],
            headers=_kept(headers),
            body=body,
            elapsed_seconds=monotonic() - since,
        )

    def _slots_of(self, origin: str) -> asyncio.Semaphore:
        """Forgotten once nobody holds or awaits it."""
        slots = self._slots.get(origin)
        if slots is None:
            slots = asyncio.Semaphore(self._bounds.connections_per_origin_max)
            self._slots[origin] = slots
        return slots


class _Redirect(Struct, frozen=True, gc=False):
    status: int
    location: str
    refused: CallFailed


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=port_of(url), target=url.raw_path
    )


def _wire_headers(request: ModelRequest) -> list[tuple[bytes, bytes]]:
    secrets = {name: value.reveal() for name, value in request.secrets.items()}
    headers = {
        "host": request.url.netloc.decode(),
        **request.headers,
        **secrets,
        "connection": "close",
    }
    if request.body is not None:
        headers["content-length"] = str(len(request.body))
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _header(headers: Headers, name: bytes) -> str | None:
    """The first of that name, without what no store takes."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("ascii", errors="replace")
    return None


def _kept(headers: Headers) -> dict[str, str]:
    found = {name: _header(headers, name.encode()) for name in KEPT_HEADERS}
    return {name: value[:KEPT_LENGTH_MAX] for name, value in found.items() if value is not None}
