"""Real processes, of one ledger a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.embedded import Kafka, Postgres
from tests.support.processes import Cluster

PARTITIONS = 4


def _cluster(
    monkeypatch: pytest.MonkeyPatch, directory: Path, *, bootstrap: str, dsn: str, prefix: str
) -> Cluster:
    for name, value in {
        "LEDGER_KAFKA": bootstrap,
        "LEDGER_POSTGRES": dsn,
        "LEDGER_PREFIX": prefix,
        "LEDGER_PARTITIONS": str(PARTITIONS),
    }.items():
        monkeypatch.setenv(name, value)
    return Cluster(bootstrap, dsn, prefix, PARTITIONS, directory)


@pytest.fixture
async def cluster(
    bootstrap: str,
    dsn: str,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Cluster]:
    """On the servers that all tests share."""
    cluster = _cluster(monkeypatch, tmp_path, bootstrap=bootstrap, dsn=dsn, prefix=topic_prefix)
    await cluster.prepare()
    try:
        yield cluster
    finally:
        cluster.stop()


@dataclass(frozen=True)
class Servers:
    """Of one test alone, which may do to them what it likes."""

    kafka: Kafka
    postgres: Postgres


@pytest.fixture
def own_servers(server_directory: Path) -> Iterator[Servers]:
    with (
        Kafka(server_directory / "kafka", fast_start=True) as kafka,
        Postgres(server_directory / "postgres", durable=False) as postgres,
    ):
        yield Servers(kafka, postgres)


@pytest.fixture
async def own_cluster(
    own_servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    cluster = _cluster(
        monkeypatch,
        tmp_path,
        bootstrap=own_servers.kafka.bootstrap,
        dsn=own_servers.postgres.dsn,
        prefix="",
    )
    await cluster.prepare()
    try:
        yield cluster
    finally:
        cluster.stop()
