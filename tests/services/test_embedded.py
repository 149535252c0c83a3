"""Real servers, started, stopped, killed and restarted: what every other test of ours rests on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from ledger.embedded import (
    AlreadyRunning,
    EmbeddedError,
    Kafka,
    Postgres,
    Stack,
    downloads,
    processes,
)
from tests.support.services import create_database
from tests.support.services import server_directory as directory_of_servers

pytestmark = pytest.mark.services

CHILD_SECONDS = 60.0

RUN_A_STACK = """
import signal, sys
from pathlib import Path
from ledger.embedded import Stack
with Stack(Path(sys.argv[1]), durable=False, fast_start=True) as stack:
    print(*stack.kafka.pids.values(), stack.postgres.pid, flush=True)
    signal.pause()
"""

RUN_POSTGRES = """
import signal, sys
from pathlib import Path
from ledger.embedded import Postgres
with Postgres(Path(sys.argv[1]), durable=False) as postgres:
    print(postgres.pid, flush=True)
    signal.pause()
"""

START_A_STACK = """
import sys
from pathlib import Path
from ledger.embedded import Stack
print("starting", flush=True)
with Stack(Path(sys.argv[1]), durable=False, fast_start=True) as stack:
    print("started", flush=True)
"""


@pytest.fixture(scope="module")
def kafka_directory() -> Iterator[Path]:
    with directory_of_servers() as directory:
        yield directory


@pytest.fixture(scope="module")
def one_kafka(kafka_directory: Path) -> Iterator[Kafka]:
    with Kafka(kafka_directory, fast_start=True) as kafka:
        yield kafka


@pytest.fixture
def kafka(one_kafka: Kafka) -> Kafka:
    """One for all, alive; each test has a topic of its own."""
    if not one_kafka.pids:
        one_kafka.start()
    return one_kafka


@pytest.fixture
def postgres(server_directory: Path) -> Iterator[Postgres]:
    with Postgres(server_directory, durable=False) as postgres:
        yield postgres


class TestKafka:
    async def test_what_was_acknowledged_outlives_a_kill_and_a_restart(self, kafka: Kafka) -> None:
        bootstrap = kafka.bootstrap
        await create_topic(bootstrap, "kept")
        await append(bootstrap, "kept", b"one")
        kafka.kill(1)
        assert kafka.pids == {}

        kafka.restart(1)

        assert kafka.bootstrap == bootstrap
        assert await first_value(bootstrap, "kept") == b"one"

    async def test_a_paused_broker_answers_again_once_resumed(self, kafka: Kafka) -> None:
        await create_topic(kafka.bootstrap, "resumed")
        kafka.pause(1)
        assert state_of(kafka.pids[1]) == "T"
        kafka.resume(1)
        await append(kafka.bootstrap, "resumed", b"one")

    def test_a_broker_that_cannot_start_says_why(
        self, kafka: Kafka, server_directory: Path
    ) -> None:
        taken = int(kafka.bootstrap.rpartition(":")[2])
        other = Kafka(server_directory / "other", port=taken, fast_start=True)
        with pytest.raises(EmbeddedError, match=r"(?s)Kafka node 1 ended.*Address already in use"):
            other.start()
        assert other.pids == {}

    def test_a_paused_broker_can_be_stopped(self, kafka: Kafka) -> None:
        kafka.pause(1)
        kafka.stop()
        assert kafka.pids == {}

    async def test_data_outlives_a_stop_and_a_start_on_other_ports(
        self, kafka: Kafka, kafka_directory: Path
    ) -> None:
        await create_topic(kafka.bootstrap, "kept-on")
        await append(kafka.bootstrap, "kept-on", b"one")
        kafka.stop()
        with pytest.raises(EmbeddedError, match="not running"):
            _ = kafka.bootstrap

        with Kafka(kafka_directory, fast_start=True) as again:
            assert await first_value(again.bootstrap, "kept-on") == b"one"

    @pytest.mark.slow
    async def test_a_cluster_of_three_serves_on_while_one_is_dead(
        self, server_directory: Path
    ) -> None:
        with Kafka(server_directory, cluster_size=3, fast_start=True) as cluster:
            await create_topic(cluster.bootstrap, "replicated", replicas=3)
            cluster.kill(1)
            await append(cluster.bootstrap, "replicated", b"one")
            cluster.restart(1)
            assert sorted(cluster.pids) == [1, 2, 3]
            assert await first_value(cluster.bootstrap, "replicated") == b"one"


class TestPostgres:
    def test_what_was_committed_outlives_a_kill_and_a_start(self, postgres: Postgres) -> None:
        address = postgres.dsn
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        postgres.kill()
        assert postgres.pid is None

        postgres.start()

        assert postgres.dsn == address
        assert value(address, "SELECT number FROM kept") == 1

    def test_data_outlives_a_stop(self, postgres: Postgres, server_directory: Path) -> None:
        with psycopg.connect(postgres.dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        postgres.stop()

        with Postgres(server_directory, durable=False) as again:
            assert value(again.dsn, "SELECT number FROM kept") == 1

    def test_a_kill_cuts_open_sessions(self, postgres: Postgres) -> None:
        with closing(psycopg.connect(postgres.dsn)) as connection:
            postgres.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")

    def test_a_database_is_a_copy_of_its_template(self, postgres: Postgres) -> None:
        with psycopg.connect(postgres.create_database("template")) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        copy = postgres.create_database("copy", "template")
        assert value(copy, "SELECT number FROM kept") == 1
        postgres.drop_database("copy")
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(copy)

    def test_a_stranger_is_not_let_in(self, postgres: Postgres) -> None:
        user, _, server = postgres.dsn.rpartition("@")
        assert user
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"postgresql://ledger:guess@{server}")

    def test_it_does_not_run_as_root(self, postgres: Postgres) -> None:
        assert postgres.pid is not None
        assert os.stat(f"/proc/{postgres.pid}").st_uid != 0

    def test_it_serves_from_a_directory_that_only_the_user_may_enter(self, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        postgres = Postgres(closed / "postgres", durable=False)
        with postgres:
            assert value(postgres.dsn, "SELECT 1") == 1
        data = Path(os.path.realpath(closed / "postgres" / "data"))
        postgres.erase()
        assert not data.exists()

    def test_it_starts_again_on_the_heels_of_one_whose_parent_was_killed(
        self, server_directory: Path
    ) -> None:
        for _ in range(5):
            with child(RUN_POSTGRES, server_directory) as parent:
                assert line_of(parent).isdigit()
                parent.kill()
            with Postgres(server_directory, durable=False) as postgres:
                assert value(postgres.dsn, "SELECT 1") == 1

    def test_a_second_one_in_the_same_directory_is_refused(
        self, postgres: Postgres, server_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "REMAINS_SECONDS", 0.1)
        with pytest.raises(EmbeddedError, match=f"process {postgres.pid}: end it"):
            Postgres(server_directory).start()
        assert value(postgres.dsn, "SELECT 1") == 1

    def test_durable_is_the_default(self, server_directory: Path) -> None:
        with Postgres(server_directory) as postgres:
            assert value(postgres.dsn, "SHOW fsync") == "on"
            assert value(postgres.dsn, "SHOW synchronous_commit") == "on"


class TestStack:
    def test_nothing_is_left_running_by_a_parent_that_is_killed(
        self, server_directory: Path
    ) -> None:
        with child(RUN_A_STACK, server_directory) as parent:
            servers = [int(pid) for pid in line_of(parent).split()]
            assert all(map(runs, servers))
            ends = [os.pidfd_open(pid) for pid in servers]
            parent.kill()
            for end in ends:
                assert select.select([end], [], [], CHILD_SECONDS)[0], "a server outlived it"
                os.close(end)

        # The data is whole, and the lock is not held by a ghost.
        with Stack(server_directory, durable=False, fast_start=True) as again:
            assert value(again.addresses.postgres, "SELECT 1") == 1

    def test_an_interrupt_while_it_starts_leaves_nothing(self, server_directory: Path) -> None:
        with child(START_A_STACK, server_directory) as parent:
            assert line_of(parent) == "starting"
            os.killpg(parent.pid, signal.SIGINT)
            parent.wait(CHILD_SECONDS)
            assert parent.returncode == -signal.SIGINT
        assert Stack.running(server_directory) is None
        assert not servers_of(server_directory)

    def test_an_interrupt_once_it_runs_leaves_nothing(self, server_directory: Path) -> None:
        with child(RUN_A_STACK, server_directory) as parent:
            line_of(parent)
            os.killpg(parent.pid, signal.SIGINT)
            parent.wait(CHILD_SECONDS)
        assert Stack.running(server_directory) is None
        assert not servers_of(server_directory)
        assert not (server_directory / "addresses.json").exists()

    def test_a_second_one_is_told_who_runs_the_first(self, server_directory: Path) -> None:
        with child(RUN_A_STACK, server_directory) as parent:
            line_of(parent)
            with pytest.raises(AlreadyRunning) as refused:
                Stack(server_directory).start()
            assert refused.value.pid == parent.pid
            assert refused.value.addresses is not None
            assert value(refused.value.addresses.postgres, "SELECT 1") == 1
            running = Stack.running(server_directory)
            assert running is not None
            assert running.pid == parent.pid
            parent.kill()

    def test_a_temporary_one_removes_its_directory(self) -> None:
        with Stack(durable=False, fast_start=True) as stack:
            directory = stack.directory
            assert value(stack.addresses.postgres, "SELECT 1") == 1
        assert not directory.exists()

    def test_a_failure_of_one_server_stops_the_other(
        self, postgres: Postgres, server_directory: Path
    ) -> None:
        taken = int(postgres.dsn.rpartition(":")[2].partition("/")[0])
        home = server_directory / "stack"
        with pytest.raises(EmbeddedError, match="Postgres ended"):
            Stack(home, postgres_port=taken, fast_start=True).start()
        assert Stack.running(home) is None
        assert not servers_of(home)


class TestDownloads:
    def test_a_damaged_jar_is_noticed_and_fetched_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [jar, *_] = downloads.kafka_jars()
        monkeypatch.setenv("LEDGER_CACHE", str(tmp_path))
        place = tmp_path / jar.parent.name
        place.mkdir()
        (place / jar.name).write_bytes(jar.read_bytes()[:-1])

        fetched = downloads.kafka_jars()

        assert fetched[0].parent == place
        assert fetched[0].read_bytes() == jar.read_bytes()

    def test_a_machine_without_maven_is_told_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LEDGER_CACHE", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(EmbeddedError, match="apt-get install maven"):
            downloads.kafka_jars()
        assert not list(tmp_path.iterdir())

    def test_an_installed_kafka_can_be_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LEDGER_KAFKA_LIBS", str(tmp_path))
        with pytest.raises(EmbeddedError, match="holds no jar"):
            downloads.kafka_jars()
        (tmp_path / "kafka.jar").touch()
        assert downloads.kafka_jars() == [tmp_path / "kafka.jar"]


def test_each_test_has_a_database_and_a_topic_prefix_of_its_own(
    dsn: str, topic_prefix: str
) -> None:
    assert value(dsn, "SELECT current_database()") == dsn.rpartition("/")[2]
    assert topic_prefix.startswith("t")


def test_a_test_database_copies_the_template_it_names(dsn: str) -> None:
    name = dsn.rpartition("/")[2]
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
    server = dsn.replace(f"/{name}", "/postgres")
    assert value(create_database(server, f"{name}copy", name), "SELECT number FROM kept") == 1


def child(program: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], CHILD_SECONDS)[0], "it said nothing in time"
    return process.stdout.readline().strip()


def runs(pid: int) -> bool:
    return state_of(pid) not in ("", "Z", "X")


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def servers_of(directory: Path) -> list[int]:
    """Processes that name the directory on their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in words:
            found.append(int(place.parent.name))
    return found


def value(address: str, query: str) -> object:
    with psycopg.connect(address) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


async def create_topic(bootstrap: str, name: str, *, replicas: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 1, replicas)])
    finally:
        await admin.close()


async def append(bootstrap: str, topic: str, record: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(topic, record, partition=0)


async def first_value(bootstrap: str, topic: str) -> bytes:
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        record = await consumer.getone()
    return bytes(record.value)
