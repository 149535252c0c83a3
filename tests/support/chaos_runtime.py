"""`python -m tests.support.chaos_runtime ID QUEUE SLOTS`: a runtime that tests kill and freeze.

LEDGER_TEST_MEMORY: so many bytes of address space it may take beyond those at its start.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path

import structlog

from cli import logs
from cli.servers import kafka_of
from cli.settings import load_settings
from ledger.client.job_context import Context, JobFailure
from ledger.client.runtime import Runtime
from ledger.objects import open_store

log = structlog.get_logger("chaos_runtime")
CHUNK = 8 * 1024 * 1024


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

    @runtime.job("told")
    async def told(ctx: Context) -> object:
        log.info("told.ran", job=ctx.job_id, fence=ctx.fence)
        if ctx.attempt == 1:
            await asyncio.sleep(ctx.payload.get("seconds", 0.0))
        return {"by": name}

    @runtime.job("deadly")
    async def deadly(ctx: Context) -> object:
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    @runtime.job("hungry")
    def hungry(ctx: Context) -> object:
        eaten = []
        while True:
            eaten.append(b"x" * CHUNK)
            ctx.progress(message=f"{len(eaten) * CHUNK} bytes")

    if bytes_max := os.environ.get("LEDGER_TEST_MEMORY"):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + int(bytes_max), resource.RLIM_INFINITY))
    runtime.run()


if __name__ == "__main__":
    main()
