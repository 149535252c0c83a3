"""uvicorn as the api needs it: streams end before it waits for connections to close."""

from __future__ import annotations

import socket

import uvicorn
from starlette.applications import Starlette

STOP_SECONDS = 15
"""What open requests are given to end."""
STREAMS_STOP_SECONDS = 3.0
"""What streams and sockets are given before that, to say why and go."""
STUCK_SECONDS = 30
"""A client that takes nothing of what was sent for so long is gone. Without that a reader that
stands still would keep its connection for ever: nobody else gives it up."""


class ApiServer(uvicorn.Server):
    def __init__(self, app: Starlette, *, host: str, port: int) -> None:
        self._app = app
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            ws="websockets-sansio",
            ws_max_size=65_536,
            # Compressed, one message for three hundred listeners would be three hundred.
            ws_per_message_deflate=False,
        )
        super().__init__(config)

    @property
    def port(self) -> int:
        """Once it has started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            for server in self.servers:
                for listening in server.sockets:
                    # What is accepted here has it, too.
                    listening.setsockopt(
                        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_SECONDS * 1000
                    )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services = getattr(self._app.state, "services", None)
        if services is not None:
            await services.live.stop(STREAMS_STOP_SECONDS)
        await super().shutdown(sockets)
