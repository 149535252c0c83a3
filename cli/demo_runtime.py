"""`python -m cli.demo_runtime NAME`: one runtime of the demo, written as any user's would be."""

from __future__ import annotations

import asyncio
import sys

from cli import demo_jobs, logs
from cli.servers import kafka_of
from cli.settings import load_settings
from ledger.client.job_context import Context, JobCancelled, JobFailure
from ledger.client.runtime import Runtime

SLOTS = 100
STUCK_SECONDS = 300.0
"""Longer than the demo lasts: whoever waits for this must be killed."""


def runtime_named(name: str) -> Runtime:
    settings = load_settings()
    runtime = Runtime(
        name,
        kafka_of(settings),
        queue=demo_jobs.QUEUE,
        slots=SLOTS,
        drain_seconds=1.0,
        partitions=settings.partitions,
        prefix=settings.prefix,
    )

    @runtime.job(demo_jobs.GREETING)
    async def greet(ctx: Context) -> object:
        return {"greeting": f"hello, {ctx.payload['number']}"}

    @runtime.job(demo_jobs.FLAKY)
    async def fail_once(ctx: Context) -> object:
        if ctx.attempt == 1:
            raise JobFailure("MODEL_TIMEOUT", "the model did not answer in time")
        return {"attempt": ctx.attempt}

    @runtime.job(demo_jobs.DOOMED)
    async def fail_always(ctx: Context) -> object:
        raise JobFailure("TEMPORARY_PROVIDER_ERROR", f"no luck in attempt {ctx.attempt}")

    @runtime.job(demo_jobs.PATIENT)
    async def wait_for_the_cancel(ctx: Context) -> object:
        ctx.progress(10, "waiting", "somebody will cancel this")
        await ctx.cancelled
        raise JobCancelled

    @runtime.job(demo_jobs.CRASHING)
    async def hang_once(ctx: Context) -> object:
        if ctx.attempt == 1:
            ctx.progress(50, "half way", "and here the process is killed")
            await asyncio.sleep(STUCK_SECONDS)
        return {"finished_by": name}

    return runtime


def main(arguments: list[str]) -> int:
    logs.configure()
    [name] = arguments
    runtime_named(name).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
