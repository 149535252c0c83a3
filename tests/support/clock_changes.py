"""Every change of a clock that the time zones of the world know, for two hundred years: those that
are listed, and those that follow from the rules that hold from now on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from itertools import pairwise
from zoneinfo import ZoneInfo

from msgspec import Struct

FIRST_YEAR, LAST_YEAR = 1970, 2169
LISTED_UNTIL = 2037
"""The last year whose changes the zone files spell out."""
MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ClockChange(Struct, frozen=True):
    zone: str
    at: datetime
    """The first instant of the new offset; a whole minute in UTC."""
    before: timedelta
    after: timedelta

    @property
    def minutes(self) -> int:
        return (self.after - self.before) // MINUTE

    @property
    def kind(self) -> tuple[timedelta, timedelta, int]:
        """What it does to expressions that do not look at the day."""
        shown = self.at + self.before
        return self.before, self.after, shown.hour * 60 + shown.minute


@cache
def all_kinds() -> tuple[ClockChange, ...]:
    """Of each kind the first and the last that there is."""
    first: dict[object, ClockChange] = {}
    last: dict[object, ClockChange] = {}
    for change in sorted(_all_changes(), key=lambda one: (one.at, one.zone)):
        first.setdefault(change.kind, change)
        last[change.kind] = change
    return tuple({*first.values(), *last.values()})


def _all_changes() -> Iterator[ClockChange]:
    by_rule: dict[bytes, str] = {}
    for name in files("tzdata").joinpath("zones").read_text("ascii").split():
        instants, rule = _read(name)
        zone = ZoneInfo(name)
        for instant in instants:
            if instant >= 0 and instant % 60 == 0:
                yield from _change(zone, EPOCH + timedelta(seconds=instant))
        if b"," in rule:
            by_rule[rule] = name
    for name in by_rule.values():
        yield from _by_the_rule(ZoneInfo(name))


def _read(name: str) -> tuple[tuple[int, ...], bytes]:
    """The listed instants of a zone, and the rule that follows them: RFC 8536, version 2 and up."""
    data = files("tzdata").joinpath("zoneinfo").joinpath(*name.split("/")).read_bytes()
    _, end = _block(data, 0, 4)
    instants, _ = _block(data, end, 8)
    return instants, data.rstrip(b"\n").rpartition(b"\n")[2]


def _block(data: bytes, start: int, width: int) -> tuple[tuple[int, ...], int]:
    counts = struct.unpack_from(">20x6l", data, start)
    is_utc, is_standard, leaps, times, types, letters = counts
    begin = start + 44
    length = times * (width + 1) + types * 6 + letters + leaps * (width + 4)
    kind = "q" if width == 8 else "l"
    instants = struct.unpack_from(f">{times}{kind}", data, begin)
    return instants, begin + length + is_standard + is_utc


def _by_the_rule(zone: ZoneInfo) -> Iterator[ClockChange]:
    months = [
        datetime(year, month, 1, tzinfo=UTC)
        for year in range(LISTED_UNTIL, LAST_YEAR + 1)
        for month in range(1, 13)
    ]
    for low, high in pairwise(months):
        before = _offset(low, zone)
        if before == _offset(high, zone):
            continue
        while high - low > MINUTE:
            middle = low + (high - low) // MINUTE // 2 * MINUTE
            low, high = (middle, high) if _offset(middle, zone) == before else (low, middle)
        yield from _change(zone, high)


def _change(zone: ZoneInfo, at: datetime) -> Iterator[ClockChange]:
    before, after = _offset(at - MINUTE, zone), _offset(at, zone)
    if before != after and not (before % MINUTE or after % MINUTE):
        yield ClockChange(zone.key, at, before, after)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    found = moment.astimezone(zone).utcoffset()
    assert found is not None
    return found
