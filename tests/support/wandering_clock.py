"""`python -m tests.support.wandering_clock MODULE …`: `python -m MODULE …` whose wall clock is off
by what the file LEDGER_TEST_CLOCK says now, and jumps when that changes. As where somebody
sets a machine's clock, the monotonic one goes on. Nobody should ever run this but a test.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECOND_NS = 1_000_000_000
_WRONG = struct.Struct("<q")
"""Nanoseconds, in one piece: whoever looks finds the old number or the new."""


@dataclass(frozen=True)
class WanderingClock:
    """Of one process, or of those that follow it under its name."""

    place: Path

    def set(self, seconds: float) -> None:
        """Ahead of the machine's by so much; it jumps there."""
        file = os.open(self.place, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, _WRONG.pack(round(seconds * SECOND_NS)), 0)
        finally:
            os.close(file)

    def look(self) -> Callable[[], int]:
        """Nanoseconds since 1970, as it shows them."""
        right = time.time_ns  # noqa: TID251
        with self.place.open("rb") as file:
            wrong = mmap.mmap(file.fileno(), _WRONG.size, access=mmap.ACCESS_READ)
        return lambda: right() + _WRONG.unpack(wrong[:])[0]


def main(module: str, *words: str) -> None:
    time_ns = WanderingClock(Path(os.environ["LEDGER_TEST_CLOCK"])).look()
    time.time_ns = time_ns  # noqa: TID251
    time.time = lambda: time_ns() / SECOND_NS  # noqa: TID251
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
