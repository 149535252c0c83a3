"""The read side, asynchronous. SQL lies in `sql/queries`, parameters only; rows become the types of
`answers` at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from ledger.domain.commands import Where
from ledger.domain.ids import Micros
from ledger.domain.job import Job
from projections.answers import (
    Attempt,
    CommandOutcome,
    Consumed,
    History,
    JobFilter,
    Jobs,
    JobsPage,
    Operation,
    QueueState,
    RuntimeState,
    Stored,
    TemplateVersion,
)

Order = Literal["-created_at", "created_at", "priority"]
Pool = AsyncConnectionPool[AsyncConnection[tuple[object, ...]]]


class BadCursor(ValueError):
    """The cursor is not one that a list in this order gave out."""


class ReadsUnavailable(Exception):
    """Postgres did not answer in time; nothing is known."""


@asynccontextmanager
async def open_reads(
    dsn: str, *, schema: str = "ledger", connections_max: int = 8, seconds_max: float = 5.0
) -> AsyncIterator[Reads]:
    """A bounded pool and its reads; closes both. No statement runs longer than `seconds_max`.

    Does not wait for Postgres: a read that cannot reach it raises `ReadsUnavailable`.
    """
    raise NotImplementedError
    yield


class Reads:
    """Every method may raise `ReadsUnavailable`. Ids of any text are fine: what cannot exist is
    not found."""

    def __init__(self, pool: Pool, *, schema: str = "ledger") -> None:
        raise NotImplementedError

    async def job(self, job_id: str) -> Stored | None: ...

    async def jobs_by_id(self, job_ids: Sequence[str]) -> dict[str, Stored]:
        """Those that exist, from one snapshot."""
        ...

    async def jobs(
        self,
        where: JobFilter = JobFilter(),  # noqa: B008 (frozen)
        *,
        order: Order = "-created_at",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Jobs:
        """By keyset: what is created meanwhile moves no page. Raises `BadCursor`."""
        ...

    async def jobs_page(
        self,
        where: JobFilter = JobFilter(),  # noqa: B008 (frozen)
        *,
        order: Order = "-created_at",
        page: int = 1,
        page_size: int = 50,
    ) -> JobsPage: ...

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 100) -> History | None:
        """None: no such job."""
        ...

    async def as_of(
        self, job_id: str, *, at: Micros | None = None, version: int | None = None
    ) -> Stored | None:
        """The job after its last event at or before `at`, or at `version`; its offset is that
        event's. None: it did not exist then."""
        ...

    async def attempts(self, job_id: str) -> tuple[Attempt, ...] | None:
        """Oldest first. None: no such job."""
        ...

    async def poll(self, queues: Sequence[str], types: Sequence[str], limit: int) -> Jobs:
        """Pending jobs that are due, by priority, then as they wait; nothing is taken."""
        ...

    async def queue(self, name: str) -> QueueState | None: ...

    async def queues(self) -> tuple[QueueState, ...]: ...

    async def runtimes(self, queues: Sequence[str] = ()) -> tuple[RuntimeState, ...]:
        """Those that live and those that ended within a day of the log's time."""
        ...

    async def command(self, command_id: str) -> CommandOutcome | None: ...

    async def template(
        self, queue: str, job_type: str, version: int | None = None
    ) -> TemplateVersion | None:
        """The newest where no version is named."""
        ...

    async def templates(self, queues: Sequence[str] = ()) -> tuple[TemplateVersion, ...]:
        """The newest of each."""
        ...

    async def operation(self, operation_id: str) -> Operation | None: ...

    async def count_matching(self, where: Where) -> int:
        """Open jobs that a bulk cancel with this `where` would reach now."""
        ...

    async def positions(self) -> dict[int, int]:
        """Per partition the offset of the last record that the views include; -1: none."""
        ...

    async def consumed(self, partition: int) -> Consumed | None: ...

    async def reached(self, partition: int, offset: int, seconds_max: float) -> bool:
        """Waits until the views include `offset` of the partition; False: they did not in time."""
        ...


__all__ = ["BadCursor", "Job", "Order", "Reads", "ReadsUnavailable", "open_reads"]
