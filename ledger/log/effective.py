"""Which records of the events log count: the one rule that every reader applies alike."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ledger.domain.entries import Proven, TakeOver
from ledger.log.records import Record


class Cursor(Struct, frozen=True, gc=False):
    """Where a reader of one partition stopped, right after an effective item.

    `offset` is the next to read; `entry`, `hash` and `hash_offset` (where that hash stands) are of
    the last effective entry; `nonce` is the one in force, `nonces` all that ever were; `ledger_id`
    and `partitions` are what the log's first take-over says.
    """

    offset: int = 0
    entry: int = 0
    hash: bytes = b""
    nonce: str = ""
    nonces: tuple[str, ...] = ()
    ledger_id: str = ""
    partitions: int = 0
    hash_offset: int = -1


START = Cursor()


class TakenOver(Struct, frozen=True, gc=False):
    """From here on the take-over's nonce may write."""

    take_over: TakeOver
    offset: int


Effective = Proven | TakenOver


class Ignored(Struct):
    """How many records a reader passed over, by reason."""

    foreign: int = 0
    """Of entries under a nonce that is not in force."""
    out_of_sequence: int = 0
    torn: int = 0
    """Of entries whose last record never came."""
    doubled: int = 0
    """Take-overs whose nonce stands earlier in the log."""
    other_ledger: int = 0
    """Take-overs by a ledger of another id or partition count than the first's."""
    unreadable: int = 0


class EffectiveEntries:
    """A pure reader: all readers of one prefix agree, however it is cut and resumed.

    Total: nothing in a log makes it raise but `ChainBroken`.
    """

    def __init__(self, topic: str, partition: int, cursor: Cursor = START) -> None:
        raise NotImplementedError

    @property
    def cursor(self) -> Cursor: ...

    def feed(self, record: Record) -> Effective | None: ...

    def feed_all(self, records: Iterable[Record]) -> list[Effective]: ...
