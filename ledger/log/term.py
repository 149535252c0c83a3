"""One take-over of a partition and the appends that it entitles to: the heart of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger.domain.entries import Entry, Proven
from ledger.domain.ids import Micros
from ledger.log.connection import Connection
from ledger.log.effective import START, Cursor, Effective
from ledger.log.topics import Topics

Apply = Callable[[Sequence[Effective]], None]


class Term:
    """Everything since one take-over. Made by `take_over`; ended by its first failure or `close`.

    `append` may be called again while an earlier call is in flight: entries stay in order. After
    any error but `EntryTooLarge` and `ValueError` the term is dead: further appends raise
    `TermEnded`, and only a new take-over, with what was folded dropped or re-read, may go on.
    """

    partition: int
    nonce: str
    entry: int
    """Number of the last effective entry; 0: none yet."""
    hash: bytes
    """Of the chain up to `entry`."""
    end: int
    """The offset at which this term's next record is expected."""
    appended_at: Micros
    """The broker's clock at the newest acknowledged append."""

    @classmethod
    async def take_over(
        cls,
        connection: Connection,
        topics: Topics,
        partition: int,
        *,
        ledger_id: str,
        partitions: int,
        at: Callable[[], Micros],
        apply: Apply,
        cursor: Cursor = START,
        nonce: str | None = None,
    ) -> Term:
        """Read the log to its end, append the take-over, read up to it: `apply` has had every
        effective item from `cursor` up to and including the own take-over, in order.

        `at` is asked right before the append, when all that was there has been applied. Raises
        `LedgerMismatch` (before anything is written, if the log says so already), `OutcomeUnknown`,
        `TakeOverAgain` (somebody else took over in between or this one landed twice), and what
        `EntriesReader` raises. On any error what was applied must be dropped.
        """
        ...

    @property
    def ended(self) -> bool: ...

    @property
    def next_entry(self) -> int:
        """The number that the next entry handed to `append` must carry."""
        ...

    @property
    def cursor(self) -> Cursor:
        """To resume reading after `entry`, for a snapshot of proven state."""
        ...

    def fits(self, entry: Entry) -> bool:
        """Whether `append` would take it. Encodes it: ask only of entries that may be large."""
        ...

    async def append(self, entries: Sequence[Entry]) -> list[Proven]:
        """Append whole entries and prove that they stand; their effects may then be released.

        Raises `EntryTooLarge` before anything is sent; `Fenced`, `TakeOverAgain`, `LogTruncated`,
        `OutcomeUnknown` end the term.
        """
        ...

    async def close(self) -> None:
        """Bounded; what is in flight counts as unknown."""
        ...
