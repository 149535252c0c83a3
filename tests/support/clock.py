"""The tests' own time: it stands still until a test moves it."""

from __future__ import annotations

from ledger.domain.ids import Micros, micros, parse_rfc3339

NOON = parse_rfc3339("2026-03-01T12:00:00Z")


class Clock:
    def __init__(self, now: Micros = NOON) -> None:
        self.now = now

    def pass_seconds(self, seconds: float) -> Micros:
        self.now = Micros(self.now + micros(seconds))
        return self.now


class Pause(float):
    """So many seconds go by, and timers fall due."""


def after(seconds: float) -> Pause:
    return Pause(seconds)
