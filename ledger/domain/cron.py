"""Cron: when a schedule is due, in its own time zone.

The rule is cronsim's, which is Debian's. Where neither the minute nor the hour begins with `*`,
times are *fixed*: each happens once a day, at the first instant after a gap if the clocks skip it,
the first time if they repeat it. Where one does, times *follow* real time: every minute whose
local time matches is one, so a skipped hour has none and a repeated hour has its own twice.

The library reads expressions and finds matching times on a plain calendar; what the clocks of a
zone make of those is decided here. (Its own zone arithmetic skips a real 02:30 of `30 * * * *`
where a shift is half an hour, and goes back when asked from within a repeated hour.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from typing import final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from ledger.domain.ids import SECOND, Micros, micros_of
from ledger.domain.wrong import Wrong

LENGTH_MAX = 200
"""Characters of an expression: all sixty minutes, written out, have 170."""
RUNS_SHOWN = 5

_FORM = re.compile(r"[0-9A-Za-z*/,#-]+(?: +[0-9A-Za-z*/,#-]+){4}")
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANY_DAY = datetime(2024, 1, 1)  # noqa: DTZ001 - of a calendar without a zone.
_LAST: Micros = micros_of(datetime(9000, 1, 1, tzinfo=UTC))
_MINUTE = timedelta(minutes=1)
_MINUTE_MICROS = 60 * SECOND
_STRIDE = timedelta(hours=12)
"""No zone changes its clocks to and back within it."""


@final
class Cron(Struct, frozen=True, gc=False):
    """An expression and a zone that were found good. All instants are whole minutes."""

    expression: str
    zone: tzinfo
    is_fixed: bool

    def next_after(self, instant: Micros) -> Micros | None:
        """The first one later than `instant`; None if there is none within 50 years."""
        return next(self._after(instant), None)

    def next_runs(self, after: Micros, count: int = RUNS_SHOWN) -> tuple[Micros, ...]:
        return tuple(islice(self._after(after), count))

    def between(self, after: Micros, until: Micros, limit: int) -> tuple[Micros, ...]:
        """Those later than `after` and not later than `until`, the first `limit` of them."""
        found: list[Micros] = []
        for instant in self._after(after):
            if instant > until or len(found) == limit:
                break
            found.append(instant)
        return tuple(found)

    def last_until(self, after: Micros, until: Micros) -> Micros | None:
        """The last one later than `after` and not later than `until`, without walking there."""
        newest = self.next_after(after)
        if newest is None or newest > until:
            return None
        high = until  # There is none in (high, until].
        while high - newest >= _MINUTE_MICROS:
            middle = Micros((newest + high) // 2)
            later = self.next_after(middle)
            if later is None or later > until:
                high = middle
            else:
                newest = later
        return newest

    def _after(self, instant: Micros) -> Iterator[Micros]:
        """Strictly increasing. Measured 40 us for the first, 10 to 50 for each that follows."""
        start = _EPOCH + timedelta(microseconds=max(0, min(instant, _LAST)))
        for moment in self._fixed(start) if self.is_fixed else self._following(start):
            found = micros_of(moment)
            if found > _LAST:
                return
            yield found

    def _fixed(self, start: datetime) -> Iterator[datetime]:
        """Times of the plain calendar, each at the one instant that stands for it.

        Those of a gap stand for the same instant, and those of a repeated hour for one that may
        lie before a start within it.
        """
        newest = start
        for nominal in _calendar(self.expression, start.astimezone(self.zone)):
            moment = _first_instant(nominal, self.zone)
            if moment > newest:
                newest = moment
                yield moment

    def _following(self, start: datetime) -> Iterator[datetime]:
        """As long as the clocks do not change, real time is the plain calendar, shifted."""
        begin: datetime | None = start.replace(second=0, microsecond=0) + _MINUTE
        while begin is not None:
            same, begin = begin, None  # Up to `same` the offset is the one of the beginning.
            local = same.astimezone(self.zone)
            offset = local.utcoffset() or timedelta()
            for nominal in _calendar(self.expression, local - timedelta(seconds=1)):
                moment = (nominal - offset).replace(tzinfo=UTC)
                if begin := _offset_change(same, moment, offset, self.zone):
                    break
                same = moment
                yield moment


def parsed(cron: str, timezone: str) -> Cron | Wrong:
    """Five fields (minute, hour, day of month, month, day of week) and a zone of the IANA list.

    Nicknames such as `@daily`, seconds, and what never happens (31 February) are refused. The
    same two are parsed once.
    """
    if wrong := _wrong_form(cron):
        return Wrong("/cron", wrong)
    if timezone not in _zones():
        return Wrong("/timezone", _unknown_zone(timezone))
    return _parsed(cron, timezone)


@lru_cache(maxsize=1024)
def _parsed(cron: str, timezone: str) -> Cron | Wrong:
    try:
        # The calendar repeats after 28 years: what is not found within 50 never happens.
        next(CronSim(cron, _ANY_DAY))
    except StopIteration:
        return Wrong("/cron", "no day is like that: it would never run")
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        return Wrong("/cron", f"{field}: not understood, or never so in these months")
    zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    minute, hour, *_ = cron.split()
    return Cron(cron, zone, not (minute.startswith("*") or hour.startswith("*")))


def _wrong_form(cron: str) -> str | None:
    if len(cron) > LENGTH_MAX:
        return f"an expression has {LENGTH_MAX} characters at most"
    if cron.startswith("@"):
        same = _NICKNAMES.get(cron.lower())
        return f"nicknames are not known; write {same!r}" if same else "nicknames are not known"
    if _FORM.fullmatch(cron):
        return None
    if len(cron.split()) == 6:
        return "six fields: seconds are not supported"
    return "five fields of digits, letters and * / , # - with blanks between them"


# --- Zones ---------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """The IANA names, the same on every machine: its own files also have `localtime`, `right/…`."""
    return frozenset(files("tzdata").joinpath("zones").read_text("ascii").split())


def _unknown_zone(name: str) -> str:
    meant = next((zone for zone in sorted(_zones()) if zone.lower() == name.lower()), None)
    return f"write {meant}" if meant else "no time zone of the IANA list, such as Europe/Berlin"


def _first_instant(nominal: datetime, zone: tzinfo) -> datetime:
    """Of a local time: the earlier of two, or the first after the gap it lies in."""
    moment = nominal.replace(tzinfo=zone).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == nominal:
        return moment
    # Counted from before the gap the time lies after it, counted from after it, before it.
    before = nominal.replace(tzinfo=zone, fold=1).astimezone(UTC)
    offset = before.astimezone(zone).utcoffset() or timedelta()
    change = _offset_change(before, moment, offset, zone)
    assert change is not None  # It is what makes the gap.
    return change


def _offset_change(
    after: datetime, until: datetime, offset: timedelta, zone: tzinfo
) -> datetime | None:
    """The first minute in (after, until] at which `zone` is not `offset` from UTC."""
    if zone is UTC:
        return None
    low, high = after, min(after + _STRIDE, until)
    while high.astimezone(zone).utcoffset() == offset:
        if high == until:
            return None
        low, high = high, min(high + _STRIDE, until)
    while high - low > _MINUTE:
        middle = low + (high - low) // _MINUTE // 2 * _MINUTE
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high


def _calendar(expression: str, after: datetime) -> Iterator[datetime]:
    """Matching times later than `after`, read as one of a calendar without a zone."""
    return CronSim(expression, after.replace(tzinfo=None, fold=0))
