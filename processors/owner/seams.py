"""What an owner needs from outside: the log's clients, clocks, and a feed for what is proven."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ledger.domain.ids import JobId
from ledger.domain.job import Job
from ledger.domain.partition import Bounds
from ledger.log.connection import Connection
from ledger.log.effective import Effective
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.term import THIS_PROCESS
from ledger.log.topics import Mode, Topics
from processors.owner.snapshots import Snapshots


class Feed(Protocol):
    """Takes proven entries with the jobs as they left them: the projector, in this process."""

    def follow(self, partition: int, offset: int | None = None) -> None:
        """`offset`: where what will be offered begins."""
        ...

    def offer(
        self,
        partition: int,
        before: int,
        items: Sequence[Effective],
        jobs: Mapping[JobId, Job] | None = None,
    ) -> bool:
        """`before`: the offset after the item that came before these. False: no room."""
        ...

    def unfollow(self, partition: int) -> None: ...


class NoFeed:
    """Where no projector lives in this process: it reads the log elsewhere."""

    def follow(self, partition: int, offset: int | None = None) -> None:
        pass

    def offer(
        self,
        partition: int,
        before: int,
        items: Sequence[Effective],
        jobs: Mapping[JobId, Job] | None = None,
    ) -> bool:
        return False

    def unfollow(self, partition: int) -> None:
        pass


def wall_clock() -> int:
    """Microseconds since 1970. The one place where a process looks at the wall."""
    return time.time_ns() // 1000  # noqa: TID251


def monotonic_clock() -> int:
    return time.monotonic_ns() // 1000


@dataclass(frozen=True, kw_only=True)
class Seams:
    """Shared by all partitions that one process owns."""

    connection: Connection
    topics: Topics
    partitions: int
    ledger_id: str
    mode: Mode
    outbox: Outbox
    offsets: Offsets
    commands: Intake
    requests: Intake
    feed: Feed = field(default_factory=NoFeed)
    snapshots: Snapshots | None = None
    """None: a take-over folds the whole log."""
    bounds: Bounds = Bounds()  # noqa: RUF009 (frozen)
    wall: Callable[[], int] = wall_clock
    monotonic: Callable[[], int] = monotonic_clock
    process: str = THIS_PROCESS
    """Begins the nonces of its take-overs."""

    @property
    def source(self) -> str:
        return f"ledger/{self.ledger_id}"
