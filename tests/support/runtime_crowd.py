"""`python -m tests.support.runtime_crowd PREFIX COUNT QUEUE SLOTS`: many runtimes in a process."""

from __future__ import annotations

import asyncio
import sys

from cli import logs
from cli.servers import kafka_of
from cli.settings import load_settings
from ledger.client.job_context import Context
from ledger.client.runtime import Runtime


async def crowd(prefix: str, count: int, queue: str, slots: int) -> None:
    settings = load_settings()
    async with asyncio.TaskGroup() as serving:
        for number in range(count):
            runtime = Runtime(
                f"{prefix}-{number}",
                kafka_of(settings),
                queue=queue,
                slots=slots,
                beat_seconds=1.0,
                partitions=settings.partitions,
                prefix=settings.prefix,
            )

            @runtime.job("work")
            async def work(ctx: Context) -> object:
                await asyncio.sleep(ctx.payload.get("seconds", 0.0))
                return {"fence": ctx.fence}

            serving.create_task(runtime.serve())


if __name__ == "__main__":
    logs.configure("INFO")
    asyncio.run(crowd(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
