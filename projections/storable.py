"""What Postgres can hold. It refuses NUL and lone surrogates in text, numbers and instants beyond
its range, and an index entry that is too long; what is in the log already must be projected all the
same, escaped and marked.

Columns hold storable text and serve to find rows; what a job says stays exact in its packed state.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import astuple, replace

from ledger.domain.entries import Entry
from ledger.domain.events import Event, JobRequested
from ledger.domain.ids import Micros
from ledger.log.effective import Effective, TakenOver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MARK = "\ufffd"
"""Begins a text that is not as it stands in the log."""
BYTES_MAX = 1024
"""Of one text in an indexed column; three of them must fit an index entry of 2,704 bytes."""
KEPT_MAX = 200


def storable(text: str, bytes_max: int = BYTES_MAX) -> str:
    """The text itself in all but broken cases, else `MARK` and an escaped form. Different texts
    stay different; of a text that is too long the digest stands for the rest."""
    if text.isascii() and len(text) <= bytes_max and "\x00" not in text:
        return text
    raw = text.encode("utf-8", "surrogatepass")
    fits = len(raw) <= bytes_max
    if fits and "\x00" not in text and not text.startswith(MARK) and not _has_surrogate(text):
        return text
    escaped = "".join(map(_escaped, text if fits else text[:KEPT_MAX]))
    if fits and len(escaped.encode()) <= bytes_max:
        return MARK + escaped
    return f"{MARK}{escaped[:KEPT_MAX]}…{sha256(raw).hexdigest()}"


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character == "\x00" or "\ud800" <= character <= "\udfff":
        return f"\\u{ord(character):04x}"
    return character


# --- Numbers -------------------------------------------------------------------------------------
NUMBER_MIN = -62_135_596_800_000_000
"""As an instant the year 1, before which Python knows none."""
NUMBER_MAX = 250_000_000_000_000_000
"""As an instant in the year 9892: close to the last that Postgres, Python and RFC 3339 share."""
SMALL_MAX = 32_767

Value = TypeVar("Value")


def tamed(value: Value) -> Value:
    """The value with numbers cut to a range that every column and msgpack holds, and without
    surrogates. Only for what Postgres or msgpack refused as it was."""
    return _tamed(value)  # type: ignore[no-any-return]


def tamed_items(items: Sequence[Effective]) -> list[Effective]:
    """Before they are folded: so jobs, too, are what their stored histories make of them."""
    return [_tamed_item(item) for item in items]


def _tamed_item(item: Effective) -> Effective:
    item = tamed(item)
    if isinstance(item, TakenOver):
        return item
    entry: Entry = item.entry
    return replace(item, entry=replace(entry, events=tuple(map(_of_small_priority, entry.events))))


def _of_small_priority(event: Event) -> Event:
    if not isinstance(event, JobRequested):
        return event
    return replace(event, priority=max(-SMALL_MAX, min(SMALL_MAX, event.priority)))


def tamed_instant(at: Micros) -> Micros:
    return tamed(at)


def _tamed(value: Any) -> Any:
    if isinstance(value, Raw | bytes | bool | float) or value is None:
        return value
    if isinstance(value, str):
        return value if not _has_surrogate(value) else value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return max(NUMBER_MIN, min(NUMBER_MAX, value))
    if isinstance(value, Struct):
        return type(value)(*map(_tamed, astuple(value)))
    if isinstance(value, dict):
        return {_tamed(key): _tamed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_tamed, value))
    if isinstance(value, list):
        return list(map(_tamed, value))
    return value


def instant(at: Micros) -> datetime:
    return EPOCH + timedelta(microseconds=tamed(at))
