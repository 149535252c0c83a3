"""A connection to a checked address, for one call.

httpcore asks its network backend to connect to a host: there the guard resolves and judges, and the
socket goes to the address that was judged. TLS and `Host` know the name alone. So whatever a URL
looks like, what is judged is what is connected to.

There is no pool. httpcore's keeps a connection for good when a call is cancelled at the wrong
instant (`asyncio` knows no shield against that), and a connection that rested may be closed by the
model just when it is used: an attempt is lost, to save a handshake before a call of seconds.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import httpcore

from processors.model_calls.addresses import Guard

ADDRESSES_TRIED_MAX = 3


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Raises `AddressRefused` beside httpcore's own errors."""

    def __init__(self, guard: Guard, sockets: httpcore.AsyncNetworkBackend) -> None:
        self._guard = guard
        self._sockets = sockets
        self._opened: httpcore.AsyncNetworkStream | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._guard.checked(host)
        except OSError:
            raise httpcore.ConnectError("the host has no address") from None
        failed: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        for address in addresses[:ADDRESSES_TRIED_MAX]:
            try:
                self._opened = await self._sockets.connect_tcp(
                    str(address),
                    port,
                    timeout=timeout,
                    local_address=local_address,
                    socket_options=socket_options,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
            else:
                return self._opened
        assert failed is not None
        raise failed

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()


@asynccontextmanager
async def guarded_connection(
    guard: Guard,
    origin: httpcore.Origin,
    ssl_context: ssl.SSLContext,
    sockets: httpcore.AsyncNetworkBackend,
) -> AsyncIterator[httpcore.AsyncHTTPConnection]:
    """HTTP/1.1, connected at its first use, its socket closed at the end, whatever happens. No
    proxies: through one, nobody would know where a connection ends."""
    backend = GuardedBackend(guard, sockets)
    try:
        yield httpcore.AsyncHTTPConnection(origin, ssl_context, network_backend=backend)
    finally:
        await backend.aclose()
