"""A worker of the types `go` and `external`: `runtime.py BOOTSTRAP`. The payload says what happens:
how many seconds a step takes, which one fails the first time, whether it heeds a cancellation."""

import os
import sys
import time
from collections import Counter

from ledger.client import AwaitCompletion, Context, JobCancelled, JobFailure, Runtime

TICK_SECONDS = 0.1
runtime = Runtime(f"worker-{os.getpid()}", sys.argv[1], queue="core", slots=4, beat_seconds=0.5)
tried: Counter[tuple[str, str]] = Counter()


@runtime.job("go")
def work(ctx: Context) -> object:
    tried[ctx.job_id, ctx.step] += 1
    ticks = round(ctx.payload.get("seconds", {}).get(ctx.step, 0) / TICK_SECONDS)
    for tick in range(ticks):
        ctx.progress(100 * tick / ticks, ctx.step)
        if ctx.payload.get("stubborn"):
            time.sleep(TICK_SECONDS)
        elif ctx.cancelled.wait(TICK_SECONDS):
            raise JobCancelled
    if ctx.payload.get("fails") == ctx.step and tried[ctx.job_id, ctx.step] == 1:
        raise JobFailure("WORKER_CRASHED", f"{ctx.step} went wrong")
    return {"done_by": runtime.id, "step": ctx.step}


@runtime.job("external")
def hand_over(ctx: Context) -> object:
    """Somebody else will send the result, under the fence of this attempt."""
    raise AwaitCompletion(timeout_seconds=3600)


runtime.run()
