"""`python -m tests.support.restless_owner TIMES SECONDS`: a worker's owner that joins the group and
leaves it again, so many times within so many seconds. Each makes two rebalances."""

from __future__ import annotations

import asyncio
import sys

import structlog

from cli import logs
from cli.servers import kafka_of
from cli.settings import load_settings
from ledger.log.errors import LogError
from processors.owner.service import OwnerService, OwnerSettings

log = structlog.get_logger(__name__)


async def main(times: int, seconds: float) -> None:
    settings = load_settings()
    logs.configure("INFO")
    owner = OwnerSettings(
        connection=kafka_of(settings),
        topics=settings.topics,
        partitions=settings.partitions,
        ledger_id=settings.ledger_id,
        mode=settings.mode,
    )
    for _ in range(times):
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds / times, stop.set)
        try:
            await OwnerService(owner).run(stop)
        except LogError as error:  # A broker is away, too: the next time.
            log.warning("restless_owner.failed", reason=repr(error))
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
