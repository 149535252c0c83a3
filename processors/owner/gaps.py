"""Gaps in a partition's intakes: records that are gone before they were decided. Only an operator's
recorded word closes one; until then nothing that lies behind it is decided."""

from __future__ import annotations

from typing import Literal

import structlog
from msgspec import Struct

from ledger.domain.commands import Asked, DeclareInputLost
from ledger.domain.intakes import Missing
from ledger.domain.partition import Partition
from ledger.log.command_codec import command_from
from ledger.log.errors import OffsetOutOfRange
from ledger.log.intake import Intake
from ledger.log.records import Record
from processors.owner.seams import Seams

log = structlog.get_logger(__name__)

Name = Literal["commands", "requests"]


class Gap(Struct, frozen=True, gc=False):
    topic: str
    name: Name
    partition: int
    missing: Missing

    @property
    def declaration(self) -> str:
        """The operator's command that closes it."""
        return (
            f"ledger topics lost --partition {self.partition} --topic {self.name}"
            f" --first {self.missing.first} --end {self.missing.end} --yes"
        )

    def __str__(self) -> str:
        return (
            f"{self.topic}[{self.partition}] holds nothing from offset {self.missing.first}, the"
            f" next to be decided; the first one that is there is {self.missing.end}. If what is"
            f" missing is lost for good: {self.declaration}"
        )


class Gaps:
    """Of one partition, in one term: takes from its intakes, and knows what they lack.

    A gap in the requests does not stop the commands: the declaration comes with them. One in the
    commands stops them, and what depends on their silence; behind it only a declaration is looked
    for, which is read once more in its turn.
    """

    def __init__(self, seams: Seams, partition: Partition) -> None:
        self._seams = seams
        self._partition = partition
        self._found: dict[Name, Gap] = {}

    @property
    def found(self) -> list[Gap]:
        return list(self._found.values())

    @property
    def in_commands(self) -> bool:
        return "commands" in self._found

    @property
    def in_requests(self) -> bool:
        return "requests" in self._found

    async def take(self, name: Name, records_max: int) -> list[Record]:
        """What has arrived and may be decided. Raises `OffsetOutOfRange` where the log does not
        begin behind the offset (it ends before it, or a batch cannot be fetched): that is no gap.
        """
        if name == "requests" and self.in_requests:
            return []
        intake, number = self._intake(name), self._partition.number
        try:
            if name == "commands" and self.in_commands:
                return self._declarations(intake, records_max)
            return intake.take(number, records_max)
        except OffsetOutOfRange as error:
            await self._look(name, error)
            return []

    async def missing(self, name: Name) -> Missing | None:
        """As it is now: more may have gone since it was found."""
        gap = self._found.get(name)
        if gap is None:
            return None
        first, end = gap.missing.first, gap.missing.end
        there = await self._seams.offsets.first(gap.topic, gap.partition)
        self._note(name, Missing(first, max(end, there)))
        return self._found[name].missing

    async def _look(self, name: Name, error: OffsetOutOfRange) -> None:
        number = self._partition.number
        there = await self._seams.offsets.first(error.topic, number)
        if there <= error.offset:
            raise error
        first = self._partition.commands if name == "commands" else self._partition.requests
        self._note(name, Missing(first, there))
        if name == "commands":
            self._intake(name).follow(number, there)

    def _note(self, name: Name, missing: Missing) -> None:
        before = self._found.get(name)
        if before is not None and before.missing == missing:
            return
        topic = self._seams.topics.commands if name == "commands" else self._seams.topics.requests
        gap = self._found[name] = Gap(topic, name, self._partition.number, missing)
        log.error(
            "owner.input_missing",
            topic=topic,
            partition=gap.partition,
            first=missing.first,
            end=missing.end,
            fix=gap.declaration,
        )

    def _declarations(self, intake: Intake, records_max: int) -> list[Record]:
        found: list[Record] = []
        while records := intake.take(self._partition.number, records_max):
            found += [record for record in records if self._is_declaration(record)]
        return found

    def _is_declaration(self, record: Record) -> bool:
        found = command_from(record)
        if not isinstance(found, Asked) or not isinstance(found.command, DeclareInputLost):
            return False
        command = found.command
        return command.topic == "commands" and command.partition == self._partition.number

    def _intake(self, name: Name) -> Intake:
        return self._seams.commands if name == "commands" else self._seams.requests
