"""A runtime whose jobs do nothing: `python -m benchmarks.noop_runtime BOOTSTRAP QUEUE[,QUEUE…]
SLOTS NAME`.

With a payload `{"sent": microseconds}` it prints, at its end, how many
microseconds each job took from then to its start.
"""

from __future__ import annotations

import gc
import sys
import time

from cli import logs
from ledger.client.job_context import Context
from ledger.client.runtime import Runtime


def main() -> None:
    bootstrap, queues, slots, name = sys.argv[1:5]
    gc.set_threshold(50_000, 20, 50)
    logs.configure("WARNING")
    runtime = Runtime(name, bootstrap, queue=queues.split(","), slots=int(slots))
    waited: list[int] = []

    @runtime.job("noop")
    async def noop(ctx: Context) -> dict[str, int]:
        sent = ctx.payload.get("sent")
        if sent:
            waited.append(time.time_ns() // 1000 - sent)  # noqa: TID251 (two processes compare)
        return {"sum": 1}

    runtime.run()
    for micros in waited:
        print(micros)


if __name__ == "__main__":
    main()
