"""An entry: all events of one command, timer or grant, appended whole or not at all."""

from __future__ import annotations

from msgspec import Struct

from ledger.domain.events import Event
from ledger.domain.ids import Micros

TIMER = "timer"
GRANT = "grant"


def cause_of(command_id: str, *, awaited: bool) -> str:
    """`a:<id>` for a command whose sender awaits its outcome, else `c:<id>`."""
    return f"a:{command_id}" if awaited else f"c:{command_id}"


def command_of(cause: str) -> str | None:
    """The id of the command that an entry answers; None for a timer's, a grant's."""
    return cause[2:] if cause[1:2] == ":" else None


def is_awaited(cause: str) -> bool:
    return cause.startswith("a:")


class Entry(Struct, frozen=True, gc=False):
    """One step of a partition's history.

    `commands` and `requests` are the offsets to read next in each intake once this entry is
    applied: all records below them are decided.
    """

    number: int
    """1, 2, 3 … within the partition, over all its owners."""
    at: Micros
    """Set by the owner; never decreases within a partition."""
    commands: int
    requests: int
    events: tuple[Event, ...]
    actor: str = ""
    """The authenticated principal, runtime or component that asked."""
    cause: str = ""
    """What it answers: see `cause_of`; else TIMER or GRANT."""
    correlation: str = ""
    """The root job of the lineage."""
    key_id: str = ""
    """Of the key that encrypts a subject's personal fields; empty: none."""


class TakeOver(Struct, frozen=True, gc=False):
    """Who may write from here on. Outside the entry sequence."""

    nonce: str
    at: Micros
    ledger_id: str
    partitions: int
    """Fixed for the life of the ledger."""


class Proven(Struct, frozen=True, gc=False):
    """An effective entry with its place in the log."""

    entry: Entry
    first_offset: int
    last_offset: int
    hash: bytes
    """SHA-256 over the chain up to and including this entry."""
