"""Templates as the views last showed them, in memory: what a request asks of them costs no query.
While somebody asks they are looked at again and again, those of all queues that are asked about at
once. So what is told here may be old, and is to be used accordingly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog

from ledger.domain.ids import QueueName
from projections.answers import TemplateVersion
from projections.reads import Reads, ReadsUnavailable

LOOK_SECONDS = 2.0
"""Between two looks."""
QUEUES_MAX = 1_000
"""Looked at; those that were first asked about go first."""
VERSIONS_MAX = 1_000
"""Kept of older ones."""
OLDER_MAX = 20
"""Versions that are not the newest, asked for in one look."""

log = structlog.get_logger(__name__)

Kind = tuple[QueueName, str, int]
"""A queue, a type, a version: what it says never changes."""


class Catalogue:
    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._queues: dict[QueueName, Mapping[str, TemplateVersion]] = {}
        self._older: dict[Kind, TemplateVersion] = {}
        self._wanted: dict[Kind, None] = {}
        self._asked = asyncio.Event()

    def of(self, queue: QueueName) -> Mapping[str, TemplateVersion]:
        """The newest of each type, as far as they are known; by the next look they will be."""
        self._asked.set()
        its = self._queues.get(queue)
        if its is None:
            its = self._queues[queue] = {}
            _trim(self._queues, QUEUES_MAX)
        return its

    def version(self, queue: QueueName, job_type: str, number: int) -> TemplateVersion | None:
        """None: not known, or not yet."""
        newest = self.of(queue).get(job_type)
        if newest is None or newest.version == number:
            return newest
        kind = queue, job_type, number
        found = self._older.get(kind)
        if found is None and len(self._wanted) < OLDER_MAX:
            self._wanted[kind] = None
        return found

    async def look(self) -> None:
        """Raises `ReadsUnavailable`."""
        found: dict[QueueName, dict[str, TemplateVersion]] = {queue: {} for queue in self._queues}
        if found:
            for newest in (await self._reads.templates(tuple(found))).items:
                found[QueueName(newest.queue)][newest.type] = newest
        self._queues.update((queue, its) for queue, its in found.items() if queue in self._queues)
        wanted, self._wanted = self._wanted, {}
        for kind in wanted:
            older = await self._reads.template(*kind)
            if older is not None:
                self._older[kind] = older
                _trim(self._older, VERSIONS_MAX)

    async def keep(self) -> None:
        """For ever. While the views are away, what was seen stays."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self.look()
            except ReadsUnavailable as error:
                log.info("catalogue_not_looked_at", reason=str(error))
            except Exception:  # What is kept here is a help: the owner needs none of it.
                log.exception("catalogue_failed")
            await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def opened_catalogue(reads: Reads) -> AsyncIterator[Catalogue]:
    catalogue = Catalogue(reads)
    keeping = asyncio.create_task(catalogue.keep())
    try:
        yield catalogue
    finally:
        keeping.cancel()
        await asyncio.wait((keeping,))


def _trim(table: dict[Any, Any], size_max: int) -> None:
    while len(table) > size_max:
        del table[next(iter(table))]
