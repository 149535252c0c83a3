"""What goes wrong with the log. Refusals of commands are values elsewhere; these are surprises."""

from __future__ import annotations


class LogError(Exception):
    """The log did not do as asked."""


class LogUnavailable(LogError):
    """No broker acknowledged in time. What was sent may still land, now or later."""


class RecordTooLarge(LogError):
    """A record exceeds what one batch may hold; nothing was sent."""


# --- Found while reading ------------------------------------------------------------------------
class LogBroken(LogError):
    """The log is not what it was: stop, and look at the place named."""

    def __init__(self, topic: str, partition: int, offset: int, what: str) -> None:
        super().__init__(f"{topic}[{partition}] at offset {offset}: {what}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.what = what


class ChainBroken(LogBroken):
    """An entry that would be effective does not carry the hash of the history before it."""


class CheckpointNotBorneOut(LogBroken):
    """The log does not hold the entry that a checkpoint or snapshot names: rolled back, or new."""


class OffsetOutOfRange(LogBroken):
    """The log holds no record at the offset to read next."""


class ReaderStuck(LogError):
    """A consumer lags and does not move, even after it was made anew."""


# --- A term ends --------------------------------------------------------------------------------
class TermEnded(LogError):
    """This term may not append any more; only a new take-over can."""


class Fenced(TermEnded):
    """Somebody else took the partition over. Effects not yet released must be dropped."""


class TakeOverAgain(TermEnded):
    """A late copy of this term's own take-over landed, or input was declared lost: at once."""


class OutcomeUnknown(TermEnded):
    """An append was not proven: it may have landed, may still land, or is lost."""


class LogTruncated(TermEnded):
    """The log ends before what it had acknowledged: records are lost. Stop loudly."""


class AppendRefused(TermEnded):
    """The broker refuses for good (size, rights): nothing of this landed, and nothing more will."""


class LedgerMismatch(LogError):
    """The partition's log belongs to another ledger, or to one of another partition count."""


class EntryTooLarge(LogError):
    """An entry does not fit half a batch; nothing of the call was sent."""

    def __init__(self, number: int, size: int, size_max: int) -> None:
        super().__init__(f"entry {number} takes {size} bytes; {size_max} fit")
        self.number = number


# --- Topics -------------------------------------------------------------------------------------
class UnsafeTopics(LogError):
    """Topics are missing or their settings can lose what the ledger promises to keep."""
