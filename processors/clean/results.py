"""Results whose time is over, jobs that failed for good: withdrawn, then deleted, then recorded.

Each step is asked for by what the views show, so that whoever takes over goes on where another
stopped: an object is deleted only once an entry that nobody can take back has withdrawn it.
"""

from __future__ import annotations

import structlog

from ledger.domain.commands import Command, ConfirmDeleted, WithdrawResult
from ledger.domain.ids import SECOND, JobId, Micros
from ledger.domain.job import Job, objects_to_delete
from ledger.domain.retention import CONFIRMED_MAX, closing_of
from ledger.log.crash_points import reach
from ledger.objects import PAGE_MAX, StoreUnavailable
from processors.clean.seams import Seams
from projections.answers import Removable

JOBS_MAX = 500
"""Looked at in one page."""
PAGES_MAX = 20
"""Of one round."""
ASK_AGAIN_US = 30 * SECOND
"""After which what the views do not show to have happened is asked for once more."""

log = structlog.get_logger(__name__)


class Results:
    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._asked: dict[tuple[JobId, int], Micros] = {}
        """By job and version: when it was last asked for."""
        self.withdrawn = 0
        self.deleted = 0
        self.behind_seconds = 0.0
        """How long ago the oldest that is due fell due."""

    async def round(self) -> bool:
        """Whether there is more to do at once. Raises what log, views and store raise; what one of
        them holds up does not hold up what needs only the others."""
        now = self._seams.now()
        partitions = sorted(self._seams.owned())
        self._forget(now)
        self.behind_seconds = 0.0
        after: tuple[Micros, str] = (Micros(0), "")
        unavailable: StoreUnavailable | None = None
        for _ in range(PAGES_MAX if partitions else 0):
            page = await self._seams.reads.removable(now, partitions, after=after, limit=JOBS_MAX)
            reach("cleaner.after_read")
            if page:
                self._measure(page, now)
            asked = [one.job for one in page if self._is_time(one.job, now)]
            await self._withdraw([job for job in asked if not objects_to_delete(job)], now)
            if unavailable is None:
                try:
                    await self._delete([job for job in asked if objects_to_delete(job)], now)
                except StoreUnavailable as error:
                    unavailable = error
            if len(page) < JOBS_MAX:
                break
            after = page[-1].due_at, page[-1].job.id
        else:
            return bool(partitions)
        if unavailable is not None:
            raise unavailable
        return False

    async def _withdraw(self, jobs: list[Job], now: Micros) -> None:
        if not jobs:
            return
        asks: list[tuple[Command, str]] = [
            (WithdrawResult(job.id, "expired", closing_of(job)), f"clean-{job.id}-{job.version}")
            for job in jobs
        ]
        await self._seams.ask(asks)
        self._note(jobs, now)
        self.withdrawn += len(jobs)
        log.info("cleaner.withdrawal_asked", jobs=len(jobs))

    async def _delete(self, jobs: list[Job], now: Micros) -> None:
        if not jobs:
            return
        store = self._seams.objects
        if store is None:
            raise StoreUnavailable(
                f"{len(jobs)} jobs have objects to delete, and LEDGER_OBJECTS is not set here"
            )
        # What is not there counts as deleted, and of a store that is away nothing is there.
        await store.check()
        keys = [key for job in jobs for key in objects_to_delete(job)]
        for first in range(0, len(keys), PAGE_MAX):
            reach("cleaner.after_withdrawn")
            await store.delete_many(keys[first : first + PAGE_MAX])
            reach("cleaner.after_deleted")
        asks: list[tuple[Command, str]] = [
            (
                ConfirmDeleted(job.id, objects_to_delete(job)[:CONFIRMED_MAX]),
                f"clean-{job.id}-{job.version}-deleted",
            )
            for job in jobs
        ]
        await self._seams.ask(asks)
        self._note(jobs, now)
        self.deleted += len(keys)
        log.info("cleaner.deleted", jobs=len(jobs), objects=len(keys))

    def _is_time(self, job: Job, now: Micros) -> bool:
        asked_at = self._asked.get((job.id, job.version))
        return asked_at is None or now - asked_at >= ASK_AGAIN_US

    def _note(self, jobs: list[Job], now: Micros) -> None:
        for job in jobs:
            self._asked[job.id, job.version] = now

    def _forget(self, now: Micros) -> None:
        for key in [key for key, at in self._asked.items() if now - at >= ASK_AGAIN_US]:
            del self._asked[key]

    def _measure(self, page: tuple[Removable, ...], now: Micros) -> None:
        """What was only withdrawn early has no time by which it was due."""
        due = [one.due_at for one in page if not objects_to_delete(one.job)]
        late = max((now - at for at in due), default=0) / SECOND
        self.behind_seconds = max(self.behind_seconds, late)
