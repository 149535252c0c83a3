"""The wall clock, for ages in answers. No decision hangs on it."""

from __future__ import annotations

import time

from ledger.domain.ids import Micros


def wall_clock() -> Micros:
    return Micros(time.time_ns() // 1000)  # noqa: TID251 (this is the clock)
