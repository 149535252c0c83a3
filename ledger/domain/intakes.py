"""What an intake has lost: its records are gone before they were decided."""

from __future__ import annotations

from msgspec import Struct

from ledger.domain.commands import DeclareInputLost
from ledger.domain.decisions import Decided, Decision
from ledger.domain.events import InputLost
from ledger.domain.ids import LEDGER_QUEUE
from ledger.domain.rejections import Rejected, Rejection


class Missing(Struct, frozen=True, gc=False):
    first: int
    """The offset that would be decided next."""
    end: int
    """The first one that is there again."""


def declare_lost(command: DeclareInputLost, missing: Missing | None) -> Decision:
    """Only what is missing, and all of it: nobody gives up a record that is there, or a gap that
    was not looked at. `missing` is as the log said after the command was read."""
    if missing is None:
        return _refused(f"no offset of {command.topic} is missing in this partition")
    if (command.first, command.end) != (missing.first, missing.end):
        return _refused(
            f"of {command.topic} the offsets from {missing.first} to {missing.end} are missing, "
            f"the latter not included; not those from {command.first} to {command.end}"
        )
    return Decided((InputLost(LEDGER_QUEUE, command.topic, command.first, command.end),))


def _refused(detail: str) -> Rejected:
    return Rejected(Rejection.PRECONDITION_FAILED, detail)
