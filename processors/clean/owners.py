"""Removal of an owner's objects: references withdrawn, objects deleted, the operation ended.

It covers what was asked for before it: jobs that were created by then, and objects of theirs. A job
that is still open keeps its objects until it ends, and so long the operation goes on. All that it
needs to know is in the views and the store, so it goes on wherever its partition is owned.
"""

from __future__ import annotations

import structlog
from msgspec import Struct

from ledger.domain.commands import Command, ConfirmRemoved, RemoveObjects, WithdrawResult
from ledger.domain.events import Labels
from ledger.domain.ids import LEDGER_QUEUE, SECOND, JobId, Micros
from ledger.domain.job import Job, objects_of
from ledger.domain.object_keys import owner_prefix
from ledger.domain.retention import closing_of
from ledger.log.crash_points import reach
from ledger.log.partitions import partition_of
from processors.clean.orphans import unreferred
from processors.clean.results import ASK_AGAIN_US
from processors.clean.seams import Ends, Seams
from projections.answers import Removal

JOBS_MAX = 500
"""Looked at in one page."""
PAGES_MAX = 20
"""Of one operation in one round."""
UPLOAD_US = 900 * SECOND
"""Within so long an object's command has been sent, or never will be."""

log = structlog.get_logger(__name__)


class Left(Struct, gc=False):
    """What of an operation is not done yet."""

    open: int = 0
    """Jobs that have not ended."""
    ended: int = 0
    """Jobs whose references are withdrawn, or are to be, and whose objects are there."""
    young: int = 0
    """Objects whose command may be under way."""
    pages: int = 0
    """1: not all was looked at."""

    def __bool__(self) -> bool:
        return bool(self.open or self.ended or self.young or self.pages)


class _Progress:
    """Of one operation, in this process."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.asked: dict[JobId, Micros] = {}
        """When each job was last asked for."""
        self.objects: dict[JobId, int] = {}
        """How many each had."""
        self.orphans = 0
        self.left = Left()


class Owners:
    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._partition = partition_of(LEDGER_QUEUE, seams.partitions)
        self._progress: dict[str, _Progress] = {}
        self.running = 0
        """Operations."""
        self.removed = 0
        """Objects."""

    async def round(self) -> None:
        """One step of every operation. Raises what log, views and store raise."""
        if self._partition not in self._seams.owned():
            self._progress.clear()
            self.running = 0
            return
        removals = await self._seams.reads.removals()
        reach("cleaner.after_read")
        self.running = len(removals)
        known = {removal.operation_id for removal in removals}
        for operation_id in self._progress.keys() - known:
            del self._progress[operation_id]
        for removal in removals:
            await self._step(removal)

    async def _step(self, removal: Removal) -> None:
        progress = self._progress.get(removal.operation_id)
        if progress is None:
            progress = _Progress(await self._seams.ends())
            self._progress[removal.operation_id] = progress
        if not await self._seams.shows(progress.ends):
            return
        left = Left()
        await self._withdraw(removal, progress, left)
        if not left:
            await self._delete_rest(removal, progress, left)
        if left != progress.left:
            progress.left = left
            log.info(
                "cleaner.owner_waits",
                operation_id=removal.operation_id,
                open_jobs=left.open,
                ended_jobs=left.ended,
                young_objects=left.young,
            )
        if not left:
            await self._confirm(removal.operation_id, progress)

    async def _withdraw(self, removal: Removal, progress: _Progress, left: Left) -> None:
        after = ""
        for _ in range(PAGES_MAX):
            jobs = await self._seams.reads.owned(
                labels_of(removal.asked), removal.started_at, after=after, limit=JOBS_MAX
            )
            reach("cleaner.after_read")
            left.open += sum(job.end is None for job in jobs)
            left.ended += sum(job.end is not None for job in jobs)
            await self._ask(removal, progress, [job for job in jobs if is_to_be_withdrawn(job)])
            if len(jobs) < JOBS_MAX:
                return
            after = jobs[-1].id
        left.pages = 1

    async def _ask(self, removal: Removal, progress: _Progress, jobs: list[Job]) -> None:
        now = self._seams.now()
        new = [job for job in jobs if now - progress.asked.get(job.id, 0) >= ASK_AGAIN_US]
        asks: list[tuple[Command, str]] = [
            (
                WithdrawResult(job.id, "owner_removed", closing_of(job)),
                f"clean-{job.id}-{removal.operation_id}",
            )
            for job in new
        ]
        if not asks:
            return
        await self._seams.ask(asks)
        progress.asked |= dict.fromkeys((job.id for job in new), now)
        progress.objects |= {job.id: len(objects_of(job)) for job in new}
        log.info("cleaner.owner_withdrawal_asked", jobs=len(new), operation_id=removal.operation_id)

    async def _delete_rest(self, removal: Removal, progress: _Progress, left: Left) -> None:
        """Objects of the owner that no job refers to. What a newer job refers to is that one's."""
        store = self._seams.objects
        if store is None:
            return
        old = self._seams.now() - UPLOAD_US
        prefix = owner_prefix(removal.asked.user, removal.asked.project)
        after: str | None = None
        while True:
            page = await store.listing(prefix, after)
            reach("cleaner.after_page")
            covered = {o.key: o for o in page.objects if o.modified_at <= removal.started_at}
            orphans = await unreferred(self._seams, list(covered))
            gone = [key for key in orphans if covered[key].modified_at < old]
            left.young += len(orphans) - len(gone)
            if gone:
                await store.delete_many(gone)
                reach("cleaner.after_owner_deleted")
                progress.orphans += len(gone)
            if page.after is None:
                return
            after = page.after

    async def _confirm(self, operation_id: str, progress: _Progress) -> None:
        removed = progress.orphans + sum(progress.objects.values())
        await self._seams.ask([(ConfirmRemoved(operation_id, removed), f"clean-{operation_id}")])
        self.removed += removed
        log.info("cleaner.owner_removed", operation_id=operation_id, objects=removed)
        # Asked again if the views do not show its end for long.
        progress.ends = await self._seams.ends()


def labels_of(asked: RemoveObjects) -> Labels:
    labels = {"user": asked.user}
    return labels if asked.project is None else {**labels, "project": asked.project}


def is_to_be_withdrawn(job: Job) -> bool:
    return job.end is not None and not job.payload_withdrawn and not job.erased
