"""Raw records of a topic, as they lie there."""

from __future__ import annotations

from ledger.log.connection import Connection
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.records import Record


async def records_of(connection: Connection, topic: str, *partitions: int) -> list[Record]:
    """Every record that is in these partitions now, each one's in order."""
    found: list[Record] = []
    intake = Intake(connection, topic, isolation="read_uncommitted")
    await intake.start()
    try:
        for partition in partitions:
            async with Offsets(connection) as offsets:
                end = await offsets.end(topic, partition)
            intake.follow(partition, 0)
            arrived = intake.arrived(partition)
            while intake.position(partition) < end:
                await arrived.wait()
                arrived.clear()
                found += intake.take(partition, 10_000)
            intake.unfollow(partition)
    finally:
        await intake.close()
    return found
