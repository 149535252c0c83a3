"""Bulk operations as a partition knows them: those over all partitions, and its own parts."""

from __future__ import annotations

from collections import deque
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.commands import Where
from ledger.domain.events import (
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
    decoded,
)

ENDED_MAX = 10_000
"""Ended operations, and ended parts, that are remembered for a question asked again."""


class BulkPart(Struct, frozen=True, gc=False):
    """A bulk cancel at work in this partition."""

    where: Where
    requests_end: int
    reason: str
    by: str
    matched: int = 0


class Bulk(Struct, frozen=True, gc=False):
    """In `_ledger`: a bulk operation over all partitions."""

    event: BulkStarted
    confirmed: dict[int, int]
    ended: bool = False


BulkEvent = (
    BulkStarted | BulkPartStarted | BulkPartAdvanced | BulkPartEnded | BulkPartConfirmed | BulkEnded
)


class Operations:
    __slots__ = ("all", "done", "ended", "parts")

    def __init__(self) -> None:
        self.all: dict[str, Bulk] = {}
        self.parts: dict[str, BulkPart] = {}
        self.done: dict[str, int] = {}
        """How many jobs matched in parts that have ended here."""
        self.ended: deque[str] = deque()

    def apply(self, event: BulkEvent) -> bool:
        """False: it does not fit."""
        operation_id = event.operation_id
        match event:
            case BulkStarted():
                if operation_id in self.all:
                    return False
                self.all[operation_id] = Bulk(event, {})
            case BulkPartConfirmed():
                bulk = self.all.get(operation_id)
                if bulk is None or bulk.ended:
                    return False
                confirmed = {**bulk.confirmed, event.partition: event.matched}
                self.all[operation_id] = replace(bulk, confirmed=confirmed)
            case BulkEnded():
                bulk = self.all.get(operation_id)
                if bulk is None or bulk.ended:
                    return False
                self.all[operation_id] = replace(bulk, ended=True)
                self.ended.append(operation_id)
                if len(self.ended) > ENDED_MAX:
                    del self.all[self.ended.popleft()]
            case BulkPartStarted():
                where = decoded(event.where, Where)
                if where is None or operation_id in self.parts:
                    return False
                self.parts[operation_id] = BulkPart(
                    where, event.requests_end, event.reason, event.by
                )
            case BulkPartAdvanced():
                part = self.parts.get(operation_id)
                if part is None:
                    return False
                self.parts[operation_id] = replace(part, matched=part.matched + event.matched)
            case BulkPartEnded():
                if self.parts.pop(operation_id, None) is None:
                    return False
                self.done[operation_id] = event.matched
                if len(self.done) > ENDED_MAX:
                    del self.done[next(iter(self.done))]
            case _:
                assert_never(event)
        return True
