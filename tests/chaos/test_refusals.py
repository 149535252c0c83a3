"""A worker that would not be safe does not start, and says which setting is why."""

from __future__ import annotations

import pytest

from ledger.log.admin import Admin
from tests.support.processes import Cluster


async def ended(cluster: Cluster, **variables: str) -> str:
    child = cluster.worker(**variables)
    await cluster.until(lambda: not child.alive, seconds=60, what="the worker has ended")
    return child.output


@pytest.mark.parametrize(
    ("topic", "setting", "value"),
    [
        ("events", "cleanup.policy", "compact"),
        ("events", "retention.ms", "86400000"),
        ("commands", "retention.ms", "86400000"),
        ("requests", "message.timestamp.type", "CreateTime"),
        ("events", "unclean.leader.election.enable", "true"),
    ],
)
async def test_a_topic_that_could_lose_records_is_refused(
    cluster: Cluster, topic: str, setting: str, value: str
) -> None:
    name = getattr(cluster.topics, topic)
    async with Admin(cluster.connection) as admin:
        await admin.set(name, {setting: value})
    said = await ended(cluster)
    assert name in said
    assert setting in said


async def test_another_partition_count_than_the_ledgers_is_refused(cluster: Cluster) -> None:
    said = await ended(cluster, LEDGER_PARTITIONS=str(cluster.partitions + 1))
    assert cluster.topics.events in said
    assert f"{cluster.partitions}" in said


async def test_the_log_of_another_ledger_is_refused(cluster: Cluster) -> None:
    child = cluster.worker()
    await cluster.until(
        lambda: len(cluster.logged("owner.took_over")) == cluster.partitions,
        seconds=60,
        what="every partition was taken over",
    )
    child.kill()
    said = await ended(cluster, LEDGER_LEDGER_ID="another")
    assert "is the log of ledger ledger" in said
