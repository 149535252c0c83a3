"""An owner in office, its surroundings made by hand: a test says what arrives and when it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from ledger.domain.commands import Asked, Beat, Command, RequestJob
from ledger.domain.entries import Entry, Proven
from ledger.domain.ids import SECOND, CommandId, Micros
from ledger.domain.partition import Partition
from ledger.log.command_codec import command_record
from ledger.log.errors import OffsetOutOfRange
from ledger.log.headers import text_header
from ledger.log.records import Outgoing, ReadHeader, Record
from ledger.log.term import Term
from processors.owner.partition_owner import PartitionOwner, TermOfOffice
from processors.owner.seams import NoFeed, Seams

NOON = Micros(1_800_000_000 * SECOND)


@dataclass(frozen=True)
class Arrived:
    """As a consumer hands it out."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[ReadHeader]
    partition: int = 0
    timestamp: int = NOON // 1000


class World:
    """A clock by hand, intakes with what is put there, a log that agrees."""

    def __init__(self) -> None:
        self.now: int = NOON
        self.appended: list[Entry] = []
        self.appends = 0
        self.appended_at = Micros(NOON)
        self.end = 0
        """Of the commands, and of the events as the term knows it."""
        self.written_by_others = 0
        self.position = 1
        """Of the commands."""
        self.gone_below = 0
        """The first offset of the commands that is there."""
        self.commands: list[Record] = []
        """That have arrived and were not read."""
        self.requests: list[Record] = []
        self._arrived = 0
        self.looks = 0
        """For commands: one a turn."""
        self.told: list[tuple[str, int]] = []
        """Topics and partitions to which effects were sent, once a batch."""
        self.told_records: list[Outgoing] = []
        self.partition = Partition(0)
        self.stands = asyncio.Event()
        """Something was appended."""
        seams = SimpleNamespace(
            connection=None,
            mode="development",
            wall=lambda: self.now,
            monotonic=lambda: self.now,
            partitions=1,
            source="test",
            feed=NoFeed(),
            snapshots=None,
            outbox=SimpleNamespace(posted=self._posted),
            commands=SimpleNamespace(
                take=self._take,
                position=lambda _: self.position,
                follow=lambda *_: None,
                buffered=lambda _: len(self.commands),
                presses=self._presses,
            ),
            requests=SimpleNamespace(
                take=self._take_requests,
                position=lambda _: 0,
                buffered=lambda _: len(self.requests),
            ),
            topics=SimpleNamespace(
                commands="c",
                requests="q",
                events="e",
                replies="r",
                assigned=lambda _: "i",
                ensure_assigned=self._made,
            ),
            offsets=SimpleNamespace(end=self._end, first=self._first),
        )
        self.owner = PartitionOwner(0, cast(Seams, seams))
        self.owner.resume()
        self.office = TermOfOffice(cast(Seams, seams), self.owner, cast(Term, self), self.partition)

    # What of a term the office uses.
    cursor = SimpleNamespace(offset=0)

    def fits(self, entry: Entry) -> bool:
        return True

    async def append(self, entries: Sequence[Entry]) -> list[Proven]:
        self.appended += entries
        self.appends += 1
        self.appended_at = Micros(self.now)
        self.stands.set()
        return [Proven(entry, 0, 0, b"") for entry in entries]

    def _posted(self, topic: str, partition: int, records: Sequence[Any]) -> asyncio.Future[int]:
        self.told.append((topic, partition))
        self.told_records += records
        acknowledged: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(0)
        return acknowledged

    async def _made(self, *_: Any, **__: Any) -> None:
        pass

    async def _end(self, topic: str, _: int) -> int:
        return self.end + (self.written_by_others if topic == "e" else 0)

    def _take(self, *_: Any) -> list[Any]:
        if self.gone_below > self.partition.commands and not self.office.gaps.in_commands:
            raise OffsetOutOfRange("c", 0, self.partition.commands, "it is gone")
        self.looks += 1
        taken, self.commands = self.commands, []
        return taken

    def _presses(self, _: int) -> bool:
        return any(text_header(each.headers, "ce_type") != Beat.TYPE for each in self.commands)

    def _take_requests(self, *_: Any) -> list[Any]:
        taken, self.requests = self.requests, []
        return taken

    async def _first(self, *_: Any) -> int:
        return self.gone_below

    def arrive(self, *commands: Command) -> None:
        """For `serve`, or the next turn, to read."""
        for command in commands:
            self._arrived += 1
            is_request = isinstance(command, RequestJob)
            topic, intake = ("q", self.requests) if is_request else ("c", self.commands)
            outgoing = command_record(command, CommandId(f"a{self._arrived}"), source="test")
            intake.append(Arrived(topic, self._arrived, *outgoing, timestamp=self.now // 1000))
        self.owner.woken.set()

    def reads(self, *commands: Command) -> None:
        """As one turn that stands."""
        turn = self.office._new_turn()
        for offset, command in enumerate(commands):
            read = turn.read_request if isinstance(command, RequestJob) else turn.read_command
            read(
                Asked(command, CommandId(f"c{offset}"), appended_at=Micros(self.now), offset=offset)
            )
        turn.finish()
        self.office._count_unrecorded(turn)

    async def turn(self) -> None:
        await self.office._turn()
        await self.office._settle()

    async def turns(self, seconds: int) -> int:
        """As the owner does, for so long; how many turns that took."""
        turns = 0
        until = self.now + seconds * SECOND
        while self.now < until:
            await self.turn()
            turns += 1
            self.now += self.patience()
        return turns

    def patience(self) -> int:
        """Microseconds for which it would wait now."""
        return int(self.office._patience() * SECOND)
