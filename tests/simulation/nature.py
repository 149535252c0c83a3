"""Time and chance, as the code under simulation sees them: by process, by seed.

What the interpreter asks the operating system for is replaced, not what our code asks the
interpreter for: whoever looks at a clock or draws a random name needs no seam.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from unittest.mock import patch

from tests.simulation.loop import EPOCH_SECONDS, Loop, current

SECOND_NS = 1_000_000_000


@contextmanager
def simulated(loop: Loop) -> Iterator[None]:
    spare = Random(f"{loop.seed}/nature")

    def time_ns() -> int:
        process = current()
        seconds = EPOCH_SECONDS + loop.now if process is None else process.wall()
        return int(seconds * SECOND_NS)

    def monotonic() -> float:
        process = current()
        return loop.now if process is None else process.monotonic()

    def urandom(size: int, /) -> bytes:
        process = current()
        return (spare if process is None else process.entropy).randbytes(size)

    with ExitStack() as stack:
        for module, name, instead in (
            (time, "time_ns", time_ns),
            (time, "time", lambda: time_ns() / SECOND_NS),
            (time, "monotonic", monotonic),
            (time, "monotonic_ns", lambda: int(monotonic() * SECOND_NS)),
            (os, "urandom", urandom),
            (random, "_urandom", urandom),
        ):
            stack.enter_context(patch.object(module, name, instead))
        yield
