"""`python -m tests.support.chaos_runtime ID QUEUE SLOTS`: a runtime that tests kill and freeze."""

from __future__ import annotations

import asyncio
import sys

from cli import logs
from cli.servers import kafka_of
from cli.settings import load_settings
from ledger.client.job_context import Context, JobFailure
from ledger.client.runtime import Runtime
from ledger.objects import open_store


def main() -> None:
    name, queue, slots = sys.argv[1:4]
    logs.configure("INFO")
    settings = load_settings()
    runtime = Runtime(
        name,
        kafka_of(settings),
        queue=queue.split(","),
        slots=int(slots),
        drain_seconds=2.0,
        beat_seconds=1.0,
        partitions=settings.partitions,
        prefix=settings.prefix,
        objects=open_store(settings.objects) if settings.objects else None,
    )

    @runtime.job("work")
    async def work(ctx: Context) -> object:
        await asyncio.sleep(ctx.payload.get("seconds", 0.0))
        return {"by": name, "attempt": ctx.attempt}

    @runtime.job("flaky")
    async def flaky(ctx: Context) -> object:
        if ctx.attempt == 1:
            raise JobFailure("MODEL_TIMEOUT", "the first try never works")
        return {"by": name}

    @runtime.job("hopeless")
    async def hopeless(ctx: Context) -> object:
        raise JobFailure("INVALID_SNAPSHOT", "it never works", retryable=False)

    @runtime.job("large")
    async def large(ctx: Context) -> object:
        """In and out by the object store."""
        return {"text": ctx.payload["text"][::-1]}

    @runtime.job("pipeline")
    async def pipeline(ctx: Context) -> object:
        return {"pages": ["sea", "moon"], "step": ctx.step}

    runtime.run()


if __name__ == "__main__":
    main()
