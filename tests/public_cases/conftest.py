"""A ledger that stands for all cases which harm only their own runtimes, each in queues of its own;
and ledgers without views, for those which kill owners."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import Cluster
from tests.support.services import Services, create_database, delete_topics, drop_database

STANDING_PARTITIONS = 2
WORKER = "worker"


@pytest.fixture(scope="session")
def standing_ledger(
    services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    name = f"p{secrets.token_hex(4)}"
    dsn = create_database(services.postgres, name)
    directory = tmp_path_factory.mktemp("standing")
    cluster = Cluster(services.bootstrap, dsn, f"{name}.", STANDING_PARTITIONS, directory)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(cluster.prepare())
    cluster.lone_worker(WORKER)
    try:
        yield cluster
    finally:
        cluster.stop()
        delete_topics(services.bootstrap, cluster.prefix)
        drop_database(services.postgres, name)


@pytest.fixture
def standing(standing_ledger: Cluster) -> Iterator[Cluster]:
    """Whatever a case starts beside the worker ends with it."""
    yield standing_ledger
    for name in standing_ledger.children.keys() - {WORKER}:
        standing_ledger.kill(name)
    assert standing_ledger.children[WORKER].alive, standing_ledger.tails()


NewLedger = Callable[[], Awaitable[Cluster]]


@pytest.fixture
async def new_ledger(bootstrap: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[NewLedger]:
    """Of one partition each, without views, as many as a case wants."""
    made: list[Cluster] = []

    async def new() -> Cluster:
        number = len(made)
        directory = tmp_path / f"ledger-{number}"
        directory.mkdir()
        cluster = Cluster(bootstrap, "", f"{topic_prefix}{number}.", 1, directory)
        made.append(cluster)
        await cluster.prepare()
        return cluster

    yield new
    for cluster in made:
        cluster.stop()
