"""Waiting for somebody's word or for the clock, whichever comes first."""

from __future__ import annotations

import asyncio


async def woken(wake: asyncio.Event, seconds: float) -> None:
    """Returns when `wake` is set, which clears it, or when the time is up."""
    if not wake.is_set() and seconds > 0:
        timer = asyncio.get_running_loop().call_later(seconds, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()
    wake.clear()
