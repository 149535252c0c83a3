"""Real processes, of one ledger a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.processes import Cluster


@pytest.fixture
async def cluster(
    bootstrap: str,
    dsn: str,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Cluster]:
    partitions = 4
    for name, value in {
        "LEDGER_KAFKA": bootstrap,
        "LEDGER_POSTGRES": dsn,
        "LEDGER_PREFIX": topic_prefix,
        "LEDGER_PARTITIONS": str(partitions),
    }.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster(bootstrap, dsn, topic_prefix, partitions, tmp_path)
    await cluster.prepare()
    try:
        yield cluster
    finally:
        cluster.stop()
