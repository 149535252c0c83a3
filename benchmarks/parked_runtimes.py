"""Many runtimes without a job: `python -m benchmarks.parked_runtimes BOOTSTRAP QUEUE[,QUEUE…]
COUNT`.

Their beats, as real ones send them, from one process: what a thousand processes cost is not the
question, what they cost the ledger is. Until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import defaultdict
from itertools import count

from ledger.client.layout import connection_to, partitions_of
from ledger.domain.commands import Beat
from ledger.domain.ids import CommandId, Micros, QueueName, RuntimeId, Session
from ledger.log.command_codec import command_record, partition_for
from ledger.log.outbox import Outbox
from ledger.log.records import Outgoing
from ledger.log.topics import Topics

PERIOD_SECONDS = 5.0
"""Between two beats of a runtime, as `Runtime` has it."""
TICKS = 500
"""Of a period: runtimes beat on their own, not together."""
SLOTS = 10


async def beat(bootstrap: str, queues: list[str], many: int, stop: asyncio.Event) -> None:
    connection, topics = connection_to(bootstrap), Topics()
    partitions = await partitions_of(connection, topics)
    outbox = Outbox(connection)
    await outbox.start()
    try:
        for tick in count():
            due = time.monotonic() + PERIOD_SECONDS / TICKS
            records: dict[int, list[Outgoing]] = defaultdict(list)
            for number in range(tick % TICKS, many, TICKS):
                queue = QueueName(queues[number % len(queues)])
                command = Beat(
                    RuntimeId(f"parked-{number}"),
                    Session("parked"),
                    queue,
                    tick // TICKS + 1,
                    ("noop",),
                    SLOTS,
                )
                record = command_record(
                    command,
                    CommandId(f"parked-{number}-{tick}"),
                    source="benchmarks",
                    sent_at=Micros(time.time_ns() // 1000),  # noqa: TID251 (as a sender's clock)
                )
                records[partition_for(command, partitions)].append(record)
            for partition, its in records.items():
                await outbox.send(topics.commands, partition, its)
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await stop.wait()
                    return
            except TimeoutError:
                pass
    finally:
        await outbox.close()


async def run(bootstrap: str, queues: str, many: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await beat(bootstrap, queues.split(","), int(many), stop)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:4]))
