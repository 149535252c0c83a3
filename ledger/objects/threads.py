"""Calls that block, in threads of the store's own: a slow store holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """At most `count` calls at once; others wait for their turn."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="ledger-objects")

    async def run(self, do: Callable[[], T], unwanted: Callable[[T], object] | None = None) -> T:
        """A caller that is cancelled leaves; the call itself goes on to its end, and `unwanted`
        gets what nobody waits for any more."""
        call = self._pool.submit(do)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if unwanted is not None:
                call.add_done_callback(partial(_given_up, unwanted))
            raise

    def close(self, then: Callable[[], None] | None = None) -> None:
        """Waits for nothing: calls under way end by their own bounds, and `then` is called behind
        the last of them."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if then is not None:
            Thread(target=self._end, args=(then,), name="ledger-objects-end").start()

    def _end(self, then: Callable[[], None]) -> None:
        self._pool.shutdown(wait=True)
        then()


def _given_up(unwanted: Callable[[T], object], call: Future[T]) -> None:
    if not call.cancelled() and call.exception() is None:
        unwanted(call.result())
