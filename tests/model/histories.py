"""Effective histories of one partition, a node each: what the real reader makes of the records of
the real codec, the real fold of it, and what the real invariants say of that.

A node is the whole history up to an item, so that two nodes are one exactly if every reader of
them knows the same. What is found of a node is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from ledger.domain import deadlines
from ledger.domain.entries import Entry, TakeOver, command_of
from ledger.domain.events import CommandDuplicated, Event, JobRequested
from ledger.domain.failures import Retry
from ledger.domain.ids import SECOND, Micros
from ledger.domain.invariants import Invariants
from ledger.domain.job import Job
from ledger.domain.partition import Partition
from ledger.domain.steps import Pending
from ledger.log.effective import Cursor, EffectiveEntries, Ignored
from ledger.log.entry_codec import EntryEncoder, take_over_record
from ledger.log.errors import ChainBroken
from ledger.log.records import Outgoing, ReadHeader
from tests.support.builders import JOB, QUEUE
from tests.support.clock import NOON

LEDGER = "small"
TICK_US = SECOND
"""The world's time goes by in steps of one lease."""
IGNORED = Ignored.__struct_fields__
BROKEN = "broken"
"""Of an entry in sequence whose writer knew another history."""
LATE_US = 86_400 * SECOND
"""An owner may act as late as it likes: how soon is not what is looked at here."""


class Line(Struct, frozen=True):
    """A record as a reader is handed it."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[ReadHeader]
    topic: str = "events"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0


class Append(Struct, frozen=True):
    """What lands whole or not at all: a take-over, or the entries between two nodes of whoever
    decided them."""

    nonce: str
    at: Micros = Micros(0)
    base: int = -1
    """The node that the entries were decided on; -1: a take-over."""
    tip: int = -1


class Node(Struct):
    parent: int
    item: Entry | TakeOver
    cursor: Cursor
    depth: int
    job: Job
    at: Micros
    commands: int
    due: Micros | None
    """When the clock may next have something to say."""
    wrong: str
    """What the invariants say of the newest item."""

    @property
    def nonce(self) -> str:
        return self.cursor.nonce

    @property
    def ended(self) -> bool:
        return self.job.end is not None

    @property
    def waits(self) -> bool:
        """For a runtime."""
        return type(self.job.steps[0].phase) is Pending and self.job.end is None

    @property
    def events(self) -> tuple[Event, ...]:
        return self.item.events if isinstance(self.item, Entry) else ()

    @property
    def command_id(self) -> str | None:
        return command_of(self.item.cause) if isinstance(self.item, Entry) else None


class Landed(Struct, frozen=True):
    """An item as it stands in the log."""

    item: Entry | TakeOver
    nonce: str
    """Whose it is."""
    before: bytes
    """The hash that its writer knew."""
    lines: Sequence[Line]


class Reader:
    """Of the log. Planted faults are other readers."""

    def read(self, cursor: Cursor, landed: Landed) -> tuple[Cursor, Ignored]:
        effective = EffectiveEntries("events", 0, cursor)
        effective.feed_all(landed.lines)
        return effective.cursor, effective.ignored


class Histories:
    def __init__(self, attempts: int, reader: Reader) -> None:
        self._reader = reader
        self.nodes: list[Node] = []
        self._children: dict[tuple[int, str, int, bytes], int] = {}
        self._appends: dict[Append, int] = {}
        self.appends: list[Append] = []
        self._read: dict[tuple[int, int], tuple[int, str]] = {}
        self.root = self._begin(attempts)

    # --- What is read ----------------------------------------------------------------------------
    def append(self, append: Append) -> int:
        number = self._appends.get(append)
        if number is None:
            number = self._appends[append] = len(self.appends)
            self.appends.append(append)
        return number

    def read(self, node: int, number: int) -> tuple[int, str]:
        """The node behind an append, for a reader who has come to `node`; and what became of it:
        "" (it counts), or why it does not."""
        found = self._read.get((node, number))
        if found is None:
            found = self._read[node, number] = self._feed(node, self.appends[number])
        return found

    def read_all(self, node: int, numbers: Sequence[int]) -> int:
        for number in numbers:
            node, _ = self.read(node, number)
        return node

    def _feed(self, node: int, append: Append) -> tuple[int, str]:
        why = ""
        for landed in self._landed(append):
            try:
                after, ignored = self._reader.read(self.nodes[node].cursor, landed)
            except ChainBroken:
                return node, BROKEN
            reason = next((name for name in IGNORED if getattr(ignored, name)), "")
            if not reason:
                node = self._child(node, landed.item, after)
            why = why or reason
        return node, why

    def _landed(self, append: Append) -> list[Landed]:
        if append.base < 0:
            take_over = TakeOver(append.nonce, append.at, LEDGER, 1)
            line = _line(take_over_record(take_over, partition=0))
            return [Landed(take_over, append.nonce, b"", [line])]
        encoder = EntryEncoder(partition=0, ledger_id=LEDGER, nonce=append.nonce)
        found = []
        for number in self.path(append.base, append.tip):
            node = self.nodes[number]
            assert isinstance(node.item, Entry)
            before = self.nodes[node.parent].cursor.hash
            lines = [_line(each) for each in encoder.encode(node.item, before).records]
            found.append(Landed(node.item, append.nonce, before, lines))
        return found

    # --- What is decided -------------------------------------------------------------------------
    def decided(self, node: int, entries: Sequence[Entry]) -> int:
        """The node behind entries that an owner has decided on `node`."""
        for entry in entries:
            before = self.nodes[node].cursor
            encoder = EntryEncoder(partition=0, ledger_id=LEDGER, nonce=before.nonce)
            digest = encoder.encode(entry, before.hash).hash
            node = self._child(node, entry, replace(before, entry=entry.number, hash=digest))
        return node

    # --- What is known ---------------------------------------------------------------------------
    def path(self, ancestor: int, node: int) -> list[int]:
        """The nodes behind `ancestor` up to `node`."""
        found = []
        while node != ancestor:
            found.append(node)
            node = self.nodes[node].parent
        return found[::-1]

    def stands(self, node: int, head: int) -> bool:
        """Whether the history at `head` begins with the one at `node`."""
        depth = self.nodes[node].depth
        while self.nodes[head].depth > depth:
            head = self.nodes[head].parent
        return head == node

    def items(self, node: int) -> list[Entry | TakeOver]:
        found = []
        while node >= 0:
            found.append(self.nodes[node].item)
            node = self.nodes[node].parent
        return found[::-1]

    def partition(self, node: int) -> Partition:
        """A new fold of it, for whoever will move it."""
        partition = Partition(0)
        for item in self.items(node):
            if isinstance(item, Entry):
                partition.apply(item)
            else:
                partition.take_over(item)
        partition.drain_touched()
        return partition

    def has(self, node: int, holds: Callable[[Node], bool]) -> bool:
        while node >= 0:
            if holds(self.nodes[node]):
                return True
            node = self.nodes[node].parent
        return False

    # --- Nodes -----------------------------------------------------------------------------------
    def _child(self, node: int, item: Entry | TakeOver, cursor: Cursor) -> int:
        at = item.at if isinstance(item, TakeOver) else 0
        key = (node, cursor.nonce, at, cursor.hash)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._add(node, item, cursor)
        return child

    def _add(self, parent: int, item: Entry | TakeOver, cursor: Cursor) -> int:
        checked = Invariants(Partition(0), patience_us=LATE_US)
        wrong = []
        for each in (*self.items(parent), item):
            wrong = checked.check(each) if isinstance(each, Entry) else checked.take_over(each)
        wrong += checked.settle()
        partition = checked.partition
        job = partition.job(JOB)
        assert job is not None
        cursor = replace(cursor, offset=0, hash_offset=-1)
        depth = 0 if parent < 0 else self.nodes[parent].depth + 1
        due = deadlines.due(job, partition.floor, partition.at)
        text = "; ".join(f"{each.rule}: {each.detail}" for each in wrong)
        self.nodes.append(
            Node(parent, item, cursor, depth, job, partition.at, partition.commands, due, text)
        )
        return len(self.nodes) - 1

    def _begin(self, attempts: int) -> int:
        """A job stands in the log, by an owner of long ago."""
        asked = JobRequested(
            job_id=JOB,
            queue=QUEUE,
            type="report",
            payload=Raw(b"{}"),
            ready_at=NOON,
            order=NOON,
            lease_us=TICK_US,
            grace_us=TICK_US,
            retry=Retry(max_attempts=attempts, backoff_us=(), jitter=0.0),
        )
        entry = Entry(number=1, at=NOON, commands=0, requests=1, events=(asked,), cause="c:first")
        take_over = TakeOver("n0", NOON, LEDGER, 1)
        effective = EffectiveEntries("events", 0)
        effective.feed(_line(take_over_record(take_over, partition=0)))
        encoder = EntryEncoder(partition=0, ledger_id=LEDGER, nonce="n0")
        effective.feed(_line(encoder.encode(entry, b"").records[0]))
        cursor = replace(effective.cursor, offset=0, hash_offset=-1)
        partition = Partition(0)
        partition.take_over(take_over)
        partition.apply(entry)
        job = partition.jobs[JOB]
        self.nodes.append(Node(-1, take_over, cursor, 0, job, NOON, 0, None, ""))
        self.nodes.append(Node(0, entry, cursor, 1, job, NOON, 0, None, ""))
        return 1


def said(node: Node) -> str:
    """The item of a node, as a trace tells it."""
    if isinstance(node.item, TakeOver):
        return f"take-over {node.nonce}"
    return f"entry {node.item.number}: {', '.join(map(_word, node.item.events))}"


def _word(event: Event) -> str:
    name = type(event).__name__
    if isinstance(event, CommandDuplicated):
        return f"{name} {event.command_id}"
    what = getattr(event, "code", None) or getattr(event, "fence", None)
    return name if what is None else f"{name} {what}"


def _line(record: Outgoing) -> Line:
    key, value, headers = record
    return Line(key, value, headers)
