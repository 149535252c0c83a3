"""The one place where the client looks at the wall clock."""

from __future__ import annotations

import time

from ledger.domain.ids import Micros


def wall_clock() -> Micros:
    return Micros(time.time_ns() // 1000)  # noqa: TID251


def monotonic() -> float:
    """Seconds. Leases are counted on it, from when they were asked for."""
    return time.monotonic()
