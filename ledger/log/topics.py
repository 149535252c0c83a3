"""Names and settings of every topic, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from ledger.domain.ids import QueueName
from ledger.log.connection import Connection

Mode = Literal["development", "production"]


class Problem(Struct, frozen=True, gc=False):
    """One unsafe setting, as a sentence."""

    topic: str
    setting: str
    value: str
    wanted: str
    why: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.value}, wanted {self.wanted}: {self.why}"


@dataclass(frozen=True, slots=True)
class Topics:
    """`prefix` sets several ledgers on one cluster apart."""

    prefix: str = ""

    @property
    def requests(self) -> str:
        return f"{self.prefix}ledger.requests.v1"

    @property
    def commands(self) -> str:
        return f"{self.prefix}ledger.commands.v1"

    @property
    def events(self) -> str:
        return f"{self.prefix}ledger.events.v1"

    @property
    def replies(self) -> str:
        return f"{self.prefix}ledger.replies.v1"

    def assigned(self, queue: QueueName) -> str:
        return f"{self.prefix}ledger.assigned.{queue}.v1"

    def dead(self, intake: str) -> str:
        """The dead-letter topic of an intake."""
        return f"{self.prefix}dlq.{intake.removeprefix(self.prefix)}"

    @property
    def owners_group(self) -> str:
        return f"{self.prefix}ledger.owners.v1"

    async def apply(self, connection: Connection, *, partitions: int, mode: Mode) -> None:
        """Create what is missing and set what differs; return once every leader is there."""

    async def check(
        self, connection: Connection, *, partitions: int, mode: Mode
    ) -> list[Problem]:
        """Every setting that can lose or reorder what the ledger promises to keep."""
        raise NotImplementedError

    async def require_safe(self, connection: Connection, *, partitions: int, mode: Mode) -> None:
        """Raises `UnsafeTopics` with every problem."""

    async def ensure_assigned(
        self, connection: Connection, queue: QueueName, *, mode: Mode
    ) -> None:
        """Make a queue's inbox topic if it is not there; ready for use on return."""
