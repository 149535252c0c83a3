"""The two sources of a projector behind one seam.

Where the owner of a partition lives in this process, it feeds the proven entries, with the jobs as
they left them. At the start, after any gap and for partitions without an owner here, the log is
read from the checkpoint. Rivals are settled by the checkpoint's compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec import Struct

from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job
from ledger.log.effective import Cursor, Effective
from projections.projector import Projector

Source = Callable[[int, Cursor], AsyncIterator[list[Effective]]]
"""Reads a partition's effective items from a cursor on, without end. An empty list says that the
end of the log was reached for now. `ledger.log.entries_reader.read` with its connection bound."""


class PartitionHealth(Struct, frozen=True, gc=False):
    offset: int
    """The checkpoint: the next offset to read."""
    fed: bool
    lag_seconds: float
    """Age of the oldest event that is known here and not applied; 0: none."""
    error: str | None
    """Why the last attempt failed; None once one has succeeded."""


class ProjectorFeed:
    """One a process. `follow`, `offer`, `unfollow` belong to the event loop and never block."""

    def __init__(
        self,
        projector: Projector,
        source: Source,
        *,
        now: Callable[[], Micros],
        buffered_events_max: int = 50_000,
    ) -> None: ...

    def follow(self, partition: int) -> None:
        """Keep this partition's views up to date, from the log until something is offered that
        continues its checkpoint. Again: no news."""
        ...

    def offer(
        self,
        partition: int,
        before: int,
        items: Sequence[Effective],
        jobs: Mapping[JobId, Job] | None = None,
    ) -> bool:
        """Proven items, in order; see `Batch`. False: there is no room, the log will be read."""
        ...

    def unfollow(self, partition: int) -> None:
        """What was offered and not yet begun is dropped: the next owner's projector goes on from
        the checkpoint. Again: no news."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then what was offered is applied, within a bounded time. Raises only what
        no retry can cure: `CheckpointLost`, `LogBroken`."""
        ...

    def health(self) -> dict[int, PartitionHealth]: ...
