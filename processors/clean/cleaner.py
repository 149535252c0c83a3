"""The cleaner: a service of the worker, for the partitions that this process owns. Where no owner
runs beside it, it cleans them all: what is asked or deleted twice is no news."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from ledger.domain.ids import LEDGER_QUEUE, SECOND, Micros
from ledger.log.connection import Connection
from ledger.log.errors import LogError
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics
from ledger.objects import ObjectError, open_store
from processors.clean.orphans import Orphans
from processors.clean.owners import Owners
from processors.clean.results import Results
from processors.clean.seams import Seams
from projections.reads import ReadsUnavailable, open_reads

CONNECTIONS_MAX = 2
"""To Postgres."""
EXPECTED = (LogError, ReadsUnavailable, ObjectError)
"""They pass, or somebody is told by the health endpoint; a later round goes on."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class CleanerSettings:
    connection: Connection
    dsn: str
    topics: Topics = field(default_factory=Topics)
    partitions: int = 16
    ledger_id: str = "ledger"
    schema: str = "ledger"
    objects: str = ""
    """As LEDGER_OBJECTS has it; empty: only inline results are cleaned up."""
    round_seconds: float = 5.0
    """Between two looks at what is due."""
    orphan_seconds: float = 192 * 3600.0
    """How old an object is before it counts as one whose command will not come any more. Longer
    than an idempotency key is remembered: whoever repeats a command under it puts its object
    anew."""


class Cleaner:
    """`run` until `stop` is set."""

    def __init__(
        self,
        settings: CleanerSettings,
        *,
        owned: Callable[[], frozenset[int]],
        now: Callable[[], Micros],
    ) -> None:
        self._settings = settings
        self._owned = owned
        self._now = now
        self._results: Results | None = None
        self._owners: Owners | None = None
        self._orphans: Orphans | None = None
        self._errors: dict[str, str] = {}
        """Of each part, since it last went well."""

    async def run(self, stop: asyncio.Event) -> None:
        """Raises `InvalidAddress` and `LogUnavailable` at its start only."""
        async with AsyncExitStack() as closing:
            seams = await self._open(closing)
            self._results = Results(seams)
            self._owners = Owners(seams)
            if seams.objects is not None:
                age = round(self._settings.orphan_seconds * SECOND)
                self._orphans = Orphans(seams, seams.objects, age)
            while not stop.is_set():
                more = await self._round()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0 if more else self._settings.round_seconds):
                        await stop.wait()

    def health(self) -> dict[str, Any]:
        """For the health endpoint."""
        results, owners, orphans = self._results, self._owners, self._orphans
        return {
            "behind_seconds": round(results.behind_seconds, 3) if results else 0.0,
            "withdrawn": results.withdrawn if results else 0,
            "deleted": results.deleted if results else 0,
            "removals": owners.running if owners else 0,
            "removed": owners.removed if owners else 0,
            "orphans": orphans.deleted if orphans else 0,
            "failing": len(self._errors),
            "last_error": next(iter(self._errors.values()), None),
        }

    async def _open(self, closing: AsyncExitStack) -> Seams:
        settings = self._settings
        outbox = Outbox(settings.connection, role="cleaner")
        offsets = Offsets(settings.connection)
        for client in (outbox, offsets):
            await client.start()
            closing.push_async_callback(client.close)
        reads = await closing.enter_async_context(
            open_reads(settings.dsn, schema=settings.schema, connections_max=CONNECTIONS_MAX)
        )
        objects = open_store(settings.objects) if settings.objects else None
        if objects is not None:
            closing.push_async_callback(objects.close)
        return Seams(
            reads=reads,
            objects=objects,
            outbox=outbox,
            offsets=offsets,
            topics=settings.topics,
            partitions=settings.partitions,
            source=f"ledger/{settings.ledger_id}",
            owned=self._owned,
            now=self._now,
        )

    async def _round(self) -> bool:
        """Whether there is more to do at once. One part that cannot go on holds up no other."""
        assert self._results is not None
        assert self._owners is not None
        more = await self._tried("results", self._results.round)
        await self._tried("owners", self._owners.round)
        sweeps = partition_of(LEDGER_QUEUE, self._settings.partitions) in self._owned()
        if self._orphans is not None and sweeps:
            more = await self._tried("orphans", self._orphans.round) or more
        return more

    async def _tried(self, part: str, work: Callable[[], Any]) -> bool:
        try:
            more = await work()
        except EXPECTED as error:
            if self._errors.get(part) != str(error):
                log.warning("cleaner.failed", part=part, reason=str(error))
            self._errors[part] = str(error)
            return False
        except Exception as error:  # Nothing that is to be cleaned is worth the owner's end.
            log.exception("cleaner.failed", part=part)
            self._errors[part] = repr(error)
            return False
        self._errors.pop(part, None)
        return bool(more)
