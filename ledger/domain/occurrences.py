"""Occurrences: which nominal times of a schedule become runs, and which were missed."""

from __future__ import annotations

from typing import Literal, assert_never, final

from msgspec import Struct

from ledger.domain.cron import Cron
from ledger.domain.ids import SECOND, Micros

CatchUp = Literal["none", "last", "all"]

LATE_MICROS_MAX = 60 * SECOND
"""An occurrence that is noticed later than this after its time was missed."""
SKIPPED_MAX = 1_000
"""As many are counted; a minutely schedule that slept for a year skipped half a million."""


@final
class Occurrences(Struct, frozen=True, gc=False):
    """What is due at an instant. Each nominal time is in `fire` once, or skipped, for good."""

    fire: tuple[Micros, ...]
    """In order."""
    skipped: int
    """Missed and given up, by `catch_up`; `SKIPPED_MAX` at most."""
    next_at: Micros | None
    """The first time that is neither fired nor skipped; what the next call starts from."""
    more: bool
    """`limit` was reached: `next_at` is due too."""


def due_occurrences(
    cron: Cron,
    next_at: Micros | None,
    now: Micros,
    catch_up: CatchUp,
    limit: int,
    until: Micros | None = None,
) -> Occurrences:
    """What has become due since `next_at`, the recorded time of the next occurrence.

    One that is at most `LATE_MICROS_MAX` late is no miss and fires under every policy. Of the
    missed ones `none` fires none, `last` the newest, `all` each. At most `limit` (one or more) are
    fired; called again at the same `now`, it goes on. With `until` only what is due by then counts.

    `next_at` fires even if the expression does not have it: it was recorded, and the zone's rules
    may have changed since.
    """
    until = now if until is None else until
    if next_at is None or next_at > until:
        return Occurrences((), 0, next_at, False)
    in_time_from = Micros(min(now - LATE_MICROS_MAX, until + 1))
    first, skipped = _after_the_missed(cron, next_at, in_time_from, catch_up)
    if first is None or first > until:
        return Occurrences((), skipped, first, False)
    fire = (first, *cron.between(first, until, limit - 1))
    following = cron.next_after(fire[-1])
    return Occurrences(fire, skipped, following, following is not None and following <= until)


def _after_the_missed(
    cron: Cron, next_at: Micros, in_time_from: Micros, catch_up: CatchUp
) -> tuple[Micros | None, int]:
    """The first that may fire, and how many before it may not."""
    if next_at >= in_time_from or catch_up == "all":
        return next_at, 0
    last_missed = cron.last_until(next_at, Micros(in_time_from - 1)) or next_at
    match catch_up:
        case "none":
            return cron.next_after(last_missed), _counted(cron, next_at, last_missed)
        case "last":
            before = Micros(last_missed - 1)
            return last_missed, _counted(cron, next_at, before) if before >= next_at else 0
        case _:
            assert_never(catch_up)


def _counted(cron: Cron, first: Micros, until: Micros) -> int:
    """How many there are from `first`, which is one, until `until`."""
    return 1 + len(cron.between(first, until, SKIPPED_MAX - 1))
