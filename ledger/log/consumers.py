"""Starts and stops aiokafka's consumers, bounded; each module that reads holds its own."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.errors import KafkaError

from ledger.log.connection import FETCH_BYTES_MAX, Connection
from ledger.log.errors import LogUnavailable


async def log_consumer(
    connection: Connection,
    role: str,
    *,
    isolation: str = "read_uncommitted",
    fetch_seconds: float | None = None,
) -> Any:
    """One that reads by `assign` and `seek` alone: no group, no commits, no reset of offsets.
    `fetch_seconds`: None, as `Bounds` says."""
    held_back = connection.bounds.fetch_seconds if fetch_seconds is None else fetch_seconds
    return await started(
        connection.clients.consumer(
            **connection.client(role),
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            max_partition_fetch_bytes=FETCH_BYTES_MAX,
            fetch_max_wait_ms=int(held_back * 1000),
            isolation_level=isolation,
        ),
        connection,
    )


async def started(consumer: Any, connection: Connection) -> Any:
    """Raises `LogUnavailable`, the consumer stopped."""
    # Cancelled inside its bootstrap aiokafka leaves a connection open that nobody can close; so the
    # start goes on to its end, which is bounded, and only then is it stopped.
    starting = asyncio.ensure_future(_start(consumer, connection))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        if starting.exception() is None:
            await stop(consumer, connection)
        raise
    return consumer


async def _start(consumer: Any, connection: Connection) -> None:
    try:
        async with asyncio.timeout(connection.bounds.connect_seconds):
            await consumer.start()
    except (KafkaError, TimeoutError) as error:
        await stop(consumer, connection)
        raise LogUnavailable(f"{connection.bootstrap} does not answer") from error
    except BaseException:
        await stop(consumer, connection)
        raise


async def stop(consumer: Any, connection: Connection) -> None:
    """Bounded, and silent about a broker that is gone."""
    seconds = connection.bounds.close_seconds
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(seconds):
            await consumer.stop()
            return
    except (KafkaError, TimeoutError):
        pass
    except asyncio.CancelledError:
        # A task of aiokafka's that it cancels before its first step raises that at us.
        if _is_cancelled():
            raise
    # It waits for answers that do not come; a member left half stopped would keep its partitions.
    coordinator = consumer._coordinator
    for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task"):
        task = getattr(coordinator, name, None)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=seconds)
    for part in (consumer._fetcher, consumer._client):
        if part is not None:
            try:
                async with asyncio.timeout(seconds):
                    await part.close()
            except (KafkaError, TimeoutError):
                pass
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise


def _is_cancelled() -> bool:
    """Whether somebody wants the current task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
