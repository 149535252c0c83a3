"""The real Kafka and Postgres that tests run against, one of each per test session.

LEDGER_TEST_BACKEND says where they come from:

- `embedded` (the default): child processes of the test run, see `ledger.embedded`;
- `containers`: a local Docker engine, through testcontainers;
- `external`: LEDGER_TEST_KAFKA (bootstrap servers) and LEDGER_TEST_POSTGRES (a `postgresql://`
  address whose user may create databases).

Each server starts when it is first asked for, so a run of pure tests starts none.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psycopg
from aiokafka.admin import AIOKafkaAdminClient
from psycopg import sql

from ledger.embedded import Kafka, Postgres
from ledger.embedded.processes import free_ports

KAFKA_IMAGE = "apache/kafka:4.3.1"
POSTGRES_IMAGE = "postgres:18"
CONTAINER_SECONDS = 120


class Services(Protocol):
    @property
    def bootstrap(self) -> str:
        """Kafka's addresses, as clients take them."""

    @property
    def postgres(self) -> str:
        """The address of a database from which others can be created."""


@dataclass(frozen=True)
class Servers:
    """Of one test alone, which may do to them what it likes."""

    kafka: Kafka
    postgres: Postgres


class Embedded:
    def __init__(self, directory: Path, closing: ExitStack) -> None:
        self._directory = directory
        self._closing = closing

    @cached_property
    def bootstrap(self) -> str:
        kafka = Kafka(self._directory / "kafka", fast_start=True)
        return self._closing.enter_context(kafka).bootstrap

    @cached_property
    def postgres(self) -> str:
        postgres = Postgres(self._directory / "postgres", durable=False)
        return self._closing.enter_context(postgres).dsn


class Containers:
    """testcontainers is imported here, where it is needed: it takes as long as a hundred tests."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing

    @cached_property
    def bootstrap(self) -> str:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        # The broker must know the address it is reached at before it starts, so the port is chosen
        # here; the module that testcontainers has for Kafka knows Confluent's images only.
        [port] = free_ports(1)
        broker = DockerContainer(KAFKA_IMAGE).with_bind_ports(port, port)
        broker.with_envs(
            CLUSTER_ID="bGVkZ2VyLXRlc3RzLWthZg",
            KAFKA_NODE_ID="1",
            KAFKA_PROCESS_ROLES="broker,controller",
            KAFKA_LISTENERS=f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:9093",
            KAFKA_ADVERTISED_LISTENERS=f"PLAINTEXT://127.0.0.1:{port}",
            KAFKA_LISTENER_SECURITY_PROTOCOL_MAP="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            KAFKA_CONTROLLER_LISTENER_NAMES="CONTROLLER",
            KAFKA_CONTROLLER_QUORUM_VOTERS="1@127.0.0.1:9093",
            KAFKA_AUTO_CREATE_TOPICS_ENABLE="false",
            KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR="1",
            KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR="1",
            KAFKA_TRANSACTION_STATE_LOG_MIN_ISR="1",
            KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS="0",
            KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS="1000",
        )
        started = LogMessageWaitStrategy("Kafka Server started")
        broker.waiting_for(started.with_startup_timeout(CONTAINER_SECONDS))
        self._closing.enter_context(broker)
        return f"127.0.0.1:{port}"

    @cached_property
    def postgres(self) -> str:
        from testcontainers.community.postgres import PostgresContainer

        server = PostgresContainer(
            POSTGRES_IMAGE, username="ledger", password="ledger", dbname="ledger", driver=None
        )
        return self._closing.enter_context(server).get_connection_url()


class External:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    @property
    def bootstrap(self) -> str:
        return self._settings["LEDGER_TEST_KAFKA"]

    @property
    def postgres(self) -> str:
        return self._settings["LEDGER_TEST_POSTGRES"]


@contextmanager
def services_from(settings: Mapping[str, str]) -> Iterator[Services]:
    with ExitStack() as closing:
        match settings.get("LEDGER_TEST_BACKEND", "embedded"):
            case "embedded":
                directory = closing.enter_context(server_directory())
                yield Embedded(directory, closing)
            case "containers":
                yield Containers(closing)
            case "external":
                yield External(settings)
            case other:
                raise ValueError(
                    f"LEDGER_TEST_BACKEND is {other!r}; it can be embedded, containers or external"
                )


@contextmanager
def server_directory() -> Iterator[Path]:
    """A short path that other users may enter, as a Postgres started by root needs.

    pytest's own `tmp_path` is neither.
    """
    directory = Path(tempfile.mkdtemp(prefix="ledger-test-"))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def create_database(server: str, name: str, template: str | None = None) -> str:
    """Creates a database, a copy of `template` if named; returns its address."""
    query = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    _administer(server, query.format(sql.Identifier(name), sql.Identifier(template or "template1")))
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def drop_database(server: str, name: str) -> None:
    query = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
    _administer(server, query.format(sql.Identifier(name)))


def _administer(server: str, query: sql.Composed) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(query)


def delete_topics(bootstrap: str, prefix: str) -> None:
    """A broker slows down with every topic that it keeps, so each test takes its own away."""

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            names = [name for name in await admin.list_topics() if name.startswith(prefix)]
            await admin.delete_topics(names)
        finally:
            await admin.close()

    # A loop of its own that is never the current one: the test's loop stays in place.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(delete())
