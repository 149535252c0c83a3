"""`python -m tests.support.rival_owner`: an owner in a group of its own, so that it is told, as the
true owners are, that every partition is its own. Nobody should ever run this but a test."""

from __future__ import annotations

import asyncio
import signal

from cli import logs
from cli.servers import kafka_of
from cli.settings import load_settings
from ledger.log.topics import Topics
from processors.owner.service import OwnerService, OwnerSettings


class RivalTopics(Topics):
    @property
    def owners_group(self) -> str:
        return f"{self.prefix}rivals"


async def main() -> None:
    settings = load_settings()
    logs.configure("INFO")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    service = OwnerService(
        OwnerSettings(
            connection=kafka_of(settings),
            topics=RivalTopics(settings.prefix),
            partitions=settings.partitions,
            ledger_id=settings.ledger_id,
        )
    )
    await service.run(stop)


if __name__ == "__main__":
    asyncio.run(main())
