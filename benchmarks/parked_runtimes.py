"""Many runtimes without a job: `python -m benchmarks.parked_runtimes BOOTSTRAP QUEUE[,QUEUE…]
COUNT HOW`.

Their beats, as real ones send them, from one process: what a thousand processes cost is not the
question, what they cost the ledger is. `HOW`: `tidy` as `Runtime` does, twice a period by clocks
that are a few milliseconds apart, or `anyhow`, at instants spread over the period, as runtimes in
plain Kafka may. Until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import defaultdict
from itertools import count, groupby
from random import Random

from ledger.client.layout import connection_to, partitions_of
from ledger.domain.commands import Beat
from ledger.domain.ids import CommandId, Micros, QueueName, RuntimeId, Session
from ledger.log.command_codec import command_record, partition_for
from ledger.log.outbox import Outbox
from ledger.log.records import Outgoing
from ledger.log.topics import Topics

PERIOD_SECONDS = 5
"""Between two beats of a runtime, as `Runtime` has it."""
SKEW_SECONDS = 0.005
"""Standard deviation of the machines' clocks."""
STEP_SECONDS = 0.002
"""Beats nearer to each other than that are sent together."""
SLOTS = 10


def instants(many: int, how: str) -> list[tuple[float, list[int]]]:
    """When in a period which of the runtimes beat, in order."""
    random = Random(many)
    steps = []
    for number in range(many):
        half = number * 2 // many * PERIOD_SECONDS / 2 + random.gauss(0, SKEW_SECONDS)
        at = half if how == "tidy" else random.uniform(0, PERIOD_SECONDS)
        steps.append((round(at / STEP_SECONDS), number))
    together = groupby(sorted(steps), key=lambda one: one[0])
    return [(step * STEP_SECONDS, [number for _, number in its]) for step, its in together]


async def beat(bootstrap: str, queues: list[str], many: int, how: str, stop: asyncio.Event) -> None:
    connection, topics = connection_to(bootstrap), Topics()
    partitions = await partitions_of(connection, topics)
    outbox = Outbox(connection)
    await outbox.start()
    began = time.time() // 1 + 1  # noqa: TID251 (as a sender's clock)
    try:
        for period in count():
            for instant, numbers in instants(many, how):
                due = began + period * PERIOD_SECONDS + instant
                try:
                    async with asyncio.timeout(max(0.0, due - time.time())):  # noqa: TID251
                        await stop.wait()
                        return
                except TimeoutError:
                    pass
                records: dict[int, list[Outgoing]] = defaultdict(list)
                for number in numbers:
                    queue = QueueName(queues[number % len(queues)])
                    command = Beat(
                        RuntimeId(f"parked-{number}"),
                        Session(how),
                        queue,
                        period + 1,
                        ("noop",),
                        SLOTS,
                    )
                    record = command_record(
                        command,
                        CommandId(f"parked-{number}-{period}"),
                        source="benchmarks",
                        sent_at=Micros(time.time_ns() // 1000),  # noqa: TID251
                    )
                    records[partition_for(command, partitions)].append(record)
                for partition, its in records.items():
                    await outbox.send(topics.commands, partition, its)
    finally:
        await outbox.close()


async def run(bootstrap: str, queues: str, many: str, how: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await beat(bootstrap, queues.split(","), int(many), how, stop)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:5]))
