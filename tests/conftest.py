"""Fixtures of every test level that needs servers; where they come from: `support/services.py`."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ledger.domain import open_jobs
from ledger.embedded import Kafka, Postgres
from tests.support import services as backends
from tests.support.processes import Cluster
from tests.support.services import Servers, Services

CLUSTER_PARTITIONS = 4

# The same examples in every run, so that a change is judged by what it changes; new ones by hand,
# and more of them (`tests/support/examples.py`).
settings.register_profile("steady", derandomize=True)
if not os.environ.get("LEDGER_TEST_RANDOM"):
    settings.load_profile("steady")


# Tests are small: of the jobs that wait all but the last are packed, as in a backlog.
open_jobs.RECENT_MAX = 1


def pytest_configure() -> None:
    """A shell lets what it runs in the background ignore SIGINT, and children inherit that; tests
    press Ctrl-C on processes of theirs all the same."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a slow test come first: run beside each other, none of them is left for the end,
    when the others have nothing to do any more."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Both servers; each starts at the first use of its address."""
    with backends.services_from(os.environ) as services:
        yield services


@pytest.fixture
def bootstrap(services: Services) -> str:
    """Kafka's address. Name topics with `topic_prefix`: the broker is shared by all tests."""
    return services.bootstrap


@pytest.fixture
def topic_prefix(bootstrap: str) -> Iterator[str]:
    """Of this test alone, dot included; topics whose names begin with it are deleted afterwards."""
    prefix = f"t{secrets.token_hex(4)}."
    yield prefix
    backends.delete_topics(bootstrap, prefix)


@pytest.fixture(scope="session")
def database_template() -> str:
    """The database that each test's own is a copy of. A folder of tests may override this."""
    return "template1"


@pytest.fixture
def dsn(services: Services, database_template: str) -> Iterator[str]:
    """The address of a database of this test alone."""
    name = f"t{secrets.token_hex(4)}"
    yield backends.create_database(services.postgres, name, database_template)
    backends.drop_database(services.postgres, name)


@pytest.fixture
def server_directory() -> Iterator[Path]:
    """For servers that a test starts itself."""
    with backends.server_directory() as directory:
        yield directory


# --- Real processes, of one ledger a test --------------------------------------------------------
@pytest.fixture
async def cluster(
    bootstrap: str, dsn: str, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """On the servers that all tests share."""
    cluster = Cluster(bootstrap, dsn, topic_prefix, CLUSTER_PARTITIONS, tmp_path)
    await cluster.prepare()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def own_servers(server_directory: Path) -> Iterator[Servers]:
    with (
        Kafka(server_directory / "kafka", fast_start=True) as kafka,
        Postgres(server_directory / "postgres", durable=False) as postgres,
    ):
        yield Servers(kafka, postgres)


@pytest.fixture
async def own_cluster(own_servers: Servers, tmp_path: Path) -> AsyncIterator[Cluster]:
    kafka, postgres = own_servers.kafka, own_servers.postgres
    cluster = Cluster(kafka.bootstrap, postgres.dsn, "", CLUSTER_PARTITIONS, tmp_path)
    await cluster.prepare()
    try:
        yield cluster
    finally:
        cluster.stop()
