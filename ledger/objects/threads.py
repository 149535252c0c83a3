"""Calls that block, in threads of the store's own: a slow store holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """At most `count` calls at once; others wait for their turn."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="ledger-objects")

    async def run(self, do: Callable[[], T]) -> T:
        """A caller that is cancelled leaves; the call itself goes on to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, do)

    def close(self, then: Callable[[], None] | None = None) -> None:
        """Waits for nothing: calls under way end by their own bounds, and `then` is called behind
        the last of them."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if then is not None:
            Thread(target=self._end, args=(then,), name="ledger-objects-end").start()

    def _end(self, then: Callable[[], None]) -> None:
        self._pool.shutdown(wait=True)
        then()
