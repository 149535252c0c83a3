"""How late timers fire where very many are armed: `python -m benchmarks.timers [--full]`. JSON
lines.

Jobs that may wait for hours each have one armed, all in one partition; others may wait for seconds,
and expire one after another. Late is what lies between that instant and the broker's clock as it
took the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from benchmarks.load import percentile, request, submit
from benchmarks.results import Result, progress, run
from benchmarks.stack import BenchStack, bench_stack
from ledger.domain.events import JobExpired, JobRequested
from ledger.domain.ids import parse_rfc3339
from ledger.log.connection import Connection
from ledger.log.entry_codec import event_from
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.records import Record
from ledger.log.topics import Topics

ARMED = 100_000
FULL_ARMED = 1_000_000
PROBES = 1_000
FIRST_SECONDS, LAST_SECONDS = 5.0, 20.0
"""After which the first and the last probe expire."""
QUEUE = "armed"


def armed(queue: str, number: int) -> dict[str, Any]:
    return request(queue, number, start_timeout_seconds=7_200 + number % 7_200)


def probe(queue: str, number: int) -> dict[str, Any]:
    share = number / PROBES
    seconds = FIRST_SECONDS + share * (LAST_SECONDS - FIRST_SECONDS)
    return request(queue, number, type="probe", start_timeout_seconds=round(seconds, 3))


async def events_end(stack: BenchStack) -> int:
    async with Offsets(Connection(bootstrap=stack.kafka)) as offsets:
        return await offsets.end(Topics().events, 0)


async def records_from(stack: BenchStack, first: int) -> list[Record]:
    connection, topic = Connection(bootstrap=stack.kafka), Topics().events
    end = await events_end(stack)
    intake = Intake(connection, topic, isolation="read_uncommitted")
    await intake.start()
    found: list[Record] = []
    try:
        intake.follow(0, first)
        arrived = intake.arrived(0)
        while intake.position(0) < end:
            await arrived.wait()
            arrived.clear()
            found += intake.take(0, 10_000)
    finally:
        await intake.close()
    return found


def lateness(records: list[Record]) -> list[float]:
    """Milliseconds, in order."""
    due: dict[str, float] = {}
    late: list[float] = []
    for record in records:
        headers = dict(record.headers)
        event = event_from(headers["ce_type"] or b"", record.key or b"", record.value or b"")
        if isinstance(event, JobRequested) and event.type == "probe":
            assert event.start_timeout_us is not None
            at = parse_rfc3339((headers["ce_time"] or b"").decode())
            due[event.job_id] = (at + event.start_timeout_us) / 1e3
        elif isinstance(event, JobExpired):
            late.append(record.timestamp - due.pop(event.job_id))
    if due:
        raise SystemExit(f"{len(due)} jobs did not expire")
    return sorted(late)


def measure(full: bool) -> Iterator[Result]:
    many = FULL_ARMED if full else ARMED
    with bench_stack(partitions=1, snapshots=True, open_bytes_max=str(1 << 36)) as stack:
        stack.worker()
        asyncio.run(submit(stack, [QUEUE], many, armed))
        stack.wait_until("pending", many, QUEUE, seconds=1_800)
        progress(f"{many:,} timers are armed")
        first = asyncio.run(events_end(stack))
        asyncio.run(submit(stack, [QUEUE], PROBES, probe))
        stack.wait_until("expired", PROBES, QUEUE, seconds=LAST_SECONDS + 120)
        late = lateness(asyncio.run(records_from(stack, first)))
    yield Result(
        "timers",
        "ms",
        ours=percentile(late, 0.99),
        detail=f"{many:,} armed",
        is_reduced=not full,
        figures={"p50_ms": percentile(late, 0.5), "max_ms": late[-1], "probes": len(late)},
    )


if __name__ == "__main__":
    run(measure, __doc__)
