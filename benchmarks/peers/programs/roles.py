"""What every peer's program does, in an environment of the peers' own: nothing of ours is imported.

`python on_PEER.py ROLE SERVER BATCH EXPECTED`. Roles: `prepare` makes the peer's tables; `submit`
does what its standard input says, a line each (`many JOBS`, or `trickle RATE SECONDS`); `work` runs
jobs until its input ends, and says when it has run EXPECTED. Every answer is one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Payload = dict[str, Any]
Submit = Callable[[Sequence[Payload]], Awaitable[object]]
Handled = Callable[[Payload], None]

PAYLOAD: Payload = {"text": "x" * 189}
"""As large as that of our own measurements."""
SUBMIT_BATCH = 500
"""Jobs of one step that is durable when it returns, as our own producer's."""


def now_us() -> int:
    """Of the machine's wall clock: two processes compare."""
    return time.time_ns() // 1000  # noqa: TID251 (they have no Clock of ours)


class Peer(ABC):
    def __init__(self, server: str) -> None:
        self.server = server
        """Of its state: Postgres, or the broker."""

    @abstractmethod
    async def prepare(self) -> None:
        """Make its tables."""

    @abstractmethod
    async def submitter(self) -> Submit:
        """What makes jobs, each with its payload; they are durable when it returns."""

    @abstractmethod
    async def work(self, batch: int, handled: Handled, stopped: asyncio.Event) -> None:
        """Run jobs that do nothing but call `handled`, until `stopped`."""


def main(peer_class: type[Peer]) -> None:
    role, server, batch, expected = sys.argv[1:5]
    asyncio.run(_main(peer_class(server), role, int(batch), int(expected)))


async def _main(peer: Peer, role: str, batch: int, expected: int) -> None:
    if role == "prepare":
        await peer.prepare()
    elif role == "submit":
        await _submit(peer)
    else:
        await _work(peer, batch, expected)


async def _submit(peer: Peer) -> None:
    submit = await peer.submitter()
    _say({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        kind, *numbers = line.split()
        began = time.perf_counter()
        if kind == "many":
            await _many(submit, int(numbers[0]))
        else:
            await _trickle(submit, float(numbers[0]), float(numbers[1]))
        _say({"seconds": time.perf_counter() - began})


async def _many(submit: Submit, jobs: int) -> None:
    for first in range(0, jobs, SUBMIT_BATCH):
        await submit([PAYLOAD] * min(SUBMIT_BATCH, jobs - first))


async def _trickle(submit: Submit, rate: float, seconds: float) -> None:
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        await submit([{"sent": now_us()}])


async def _work(peer: Peer, batch: int, expected: int) -> None:
    waited: list[int] = []
    count = 0

    def handled(payload: Payload) -> None:
        nonlocal count
        count += 1
        if sent := payload.get("sent"):
            waited.append(now_us() - sent)
        if count == 1:
            _say({"first": True})
        if count == expected:
            _say({"handled": count})

    stopped = asyncio.Event()
    working = asyncio.create_task(peer.work(batch, handled, stopped))
    ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    _say({"ready": True})
    await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
    stopped.set()
    await working
    _say({"waited_us": waited})


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)
