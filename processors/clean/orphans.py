"""Objects that no job refers to: of commands that were refused, never sent, or answered by an
earlier job; of steps that were done again. Told by the views, once those show all that was asked.
"""

from __future__ import annotations

from hashlib import sha256

import structlog

from ledger.domain.ids import Micros
from ledger.log.crash_points import reach
from ledger.objects import ObjectConflict, ObjectError, ObjectStore
from processors.clean.seams import Ends, Seams

PAGES_MAX = 20
"""Of the store, in one round."""
REST_US = 3_600_000_000
"""Between two passes over the whole store."""

OURS = "_ledger/"
"""Objects of the ledger's own: this marker, snapshots."""
MARKER = f"{OURS}whose"
"""An object that says which ledger sweeps here: to another one all of its objects are orphans."""

log = structlog.get_logger(__name__)


class NotOurs(ObjectError):
    """The store is another ledger's to sweep."""


class Orphans:
    """`age_us`: younger ones are left, for their command may be under way still."""

    def __init__(self, seams: Seams, store: ObjectStore, age_us: int) -> None:
        self._seams = seams
        self._store = store
        self._age_us = age_us
        self._ends: Ends | None = None
        self._before = Micros(0)
        self._after: str | None = None
        self._rests_until = Micros(0)
        self._found = 0
        self.deleted = 0

    async def round(self) -> bool:
        """Some pages of a pass; whether there are more. Raises what log, views and store raise."""
        now = self._seams.now()
        if now < self._rests_until:
            return False
        if self._ends is None:
            await self._mark()
            self._ends = await self._seams.ends()
            self._before = Micros(now - self._age_us)
        if not await self._seams.shows(self._ends):
            return False
        for _ in range(PAGES_MAX):
            if not await self._page():
                await self._end(now)
                return False
        return True

    async def _mark(self) -> None:
        """Raises `ObjectConflict` where another ledger was first."""
        whose = f"{self._seams.source} {self._seams.topics.events}\n".encode()
        try:
            digest = sha256(whose).hexdigest()
            await self._store.put(MARKER, whose, sha256=digest, size=len(whose))
            reach("cleaner.after_mark")
        except ObjectConflict as error:
            raise NotOurs(
                f"another ledger sweeps in this object store (see the object {MARKER}):"
                " give each its own folder or prefix in LEDGER_OBJECTS; nothing was swept"
            ) from error

    async def _page(self) -> bool:
        """Whether there is another one."""
        page = await self._store.listing("", self._after)
        reach("cleaner.after_page")
        old = [found.key for found in page.objects if found.modified_at < self._before]
        await self._sweep([key for key in old if not key.startswith(OURS)])
        self._after = page.after
        return page.after is not None

    async def _sweep(self, keys: list[str]) -> None:
        orphans = await unreferred(self._seams, keys)
        if not orphans:
            return
        reach("cleaner.before_orphans_deleted")
        await self._store.delete_many(orphans)
        reach("cleaner.after_orphans_deleted")
        self._found += len(orphans)
        self.deleted += len(orphans)
        log.info("cleaner.orphans_deleted", objects=len(orphans), first=orphans[0])

    async def _end(self, now: Micros) -> None:
        unfinished = await self._store.sweep_unfinished(self._before)
        reach("cleaner.after_swept")
        log.info("cleaner.store_swept", orphans=self._found, unfinished=unfinished)
        self._ends = self._after = None
        self._found = 0
        self._rests_until = Micros(now + REST_US)


async def unreferred(seams: Seams, keys: list[str]) -> list[str]:
    """Of a page of objects those that no job refers to."""
    if not keys:
        return []
    referred = await seams.reads.referred(keys)
    reach("cleaner.after_read")
    return [key for key in keys if key not in referred]
