"""`python -m tests.support.rival_owner GROUP [INSTANT]`: an owner in a group of its own, so that it
is told, as the true owners are, that every partition is its own. Nobody should ever run this but a
test.

INSTANT, in microseconds since 1970, is what its clock shows when it is first looked at. The log
line `rival.clock` says how far that is behind the machine's.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass

import structlog

from cli import logs
from cli.servers import kafka_of
from cli.settings import load_settings
from ledger.log.topics import Topics
from processors.owner.seams import wall_clock
from processors.owner.service import OwnerService, OwnerSettings

log = structlog.get_logger("rival_owner")


@dataclass(frozen=True, slots=True)
class LoneTopics(Topics):
    group: str = ""

    @property
    def owners_group(self) -> str:
        return f"{self.prefix}{self.group}"


class ShiftedClock:
    def __init__(self, begins_at: int) -> None:
        self._begins_at = begins_at
        self._behind: int | None = None

    def __call__(self) -> int:
        now = wall_clock()
        if self._behind is None:
            self._behind = now - self._begins_at
            log.info("rival.clock", behind=self._behind)
        return now - self._behind


async def main(group: str, begins_at: str = "") -> None:
    settings = load_settings()
    logs.configure("INFO")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    service = OwnerService(
        OwnerSettings(
            connection=kafka_of(settings),
            topics=LoneTopics(settings.prefix, group),
            partitions=settings.partitions,
            ledger_id=settings.ledger_id,
            wall=ShiftedClock(int(begins_at)) if begins_at else wall_clock,
        )
    )
    await service.run(stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
