"""A client that goes away while it waits: its work is cancelled, so that nothing is kept for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def unless_gone(
    request: Request,
    work: Coroutine[Any, Any, T],
    give_back: Callable[[T], None] | None = None,
) -> T:
    """What `work` comes to. If the client goes first, `work` is cancelled and `ClientDisconnect`
    raised; `give_back` gets what it came to all the same. The body must have been read."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            return working.result()
        working.cancel()
        await asyncio.wait((working,))
        if give_back is not None and not working.cancelled() and working.exception() is None:
            give_back(working.result())
        raise ClientDisconnect
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.wait((working, gone))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
