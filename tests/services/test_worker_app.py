"""The worker process: how it starts, what it says of itself, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from cli.local import answers
from ledger.domain.commands import RequestJob
from ledger.domain.ids import QueueName
from ledger.embedded.processes import Child, EmbeddedError, free_ports
from projections.schema import connect
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

START_SECONDS = 60.0
STOP_SECONDS = 40.0
PARTITIONS = 2


class Worker:
    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.port = port

    def wait_until_ready(self) -> None:
        self.child.wait_until(
            lambda _: answers(f"http://127.0.0.1:{self.port}/readyz"),
            name="the worker",
            seconds=START_SECONDS,
        )

    def get(self, path: str) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    @property
    def report(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/healthz")[1]))

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its log; every line must be JSON."""
        return [json.loads(line) for line in self.child.output.splitlines()]

    def until(self, holds: Callable[[], bool], name: str) -> None:
        self.child.wait_until(lambda _: holds(), name=name, seconds=START_SECONDS)


Start = Callable[..., Worker]


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> Ledger:
    async with ledger_on(bootstrap, topic_prefix, partitions=PARTITIONS) as ledger:
        return ledger


@pytest.fixture
def start(
    bootstrap: str,
    topic_prefix: str,
    dsn: str,
    server_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Start]:
    """A worker as a process of its own; `ledger worker` and the words given."""
    monkeypatch.setenv("LEDGER_KAFKA", bootstrap)
    monkeypatch.setenv("LEDGER_POSTGRES", dsn)
    monkeypatch.setenv("LEDGER_PREFIX", topic_prefix)
    monkeypatch.setenv("LEDGER_PARTITIONS", str(PARTITIONS))
    started: list[Child] = []

    def start(*words: str) -> Worker:
        [port] = free_ports(1)
        child = Child(
            [
                *(sys.executable, "-m", "cli.main", "worker"),
                *("--health-port", str(port), *words),
            ],
            log=server_directory / f"worker-{len(started)}.log",
            directory=Path.cwd(),
        )
        started.append(child)
        return Worker(child, port)

    yield start
    for child in started:
        child.stop(signal.SIGTERM, seconds=STOP_SECONDS)


@pytest.mark.usefixtures("ledger")
def test_it_owns_and_projects_every_partition_and_hands_over_on_sigterm(start: Start) -> None:
    worker = start()
    worker.wait_until_ready()

    report = worker.report
    assert report["runs"] == "owner and projector"
    assert [facts["owner"] for facts in report["owner"]["partitions"].values()] == [True, True]
    assert sorted(report["projector"]["partitions"]) == ["0", "1"]

    worker.child.stop(signal.SIGTERM, seconds=STOP_SECONDS)

    assert not worker.child.alive
    names = [event["event"] for event in worker.events]
    assert names[0] == "worker.starting"
    assert names[-1] == "worker.stopped"


@pytest.mark.usefixtures("ledger")
def test_another_takes_over_from_one_that_leaves(start: Start) -> None:
    first = start()
    first.wait_until_ready()
    second = start()
    second.until(lambda: _owned(second) == 1, "sharing")

    first.child.stop(signal.SIGTERM, seconds=STOP_SECONDS)

    second.until(lambda: _owned(second) == PARTITIONS, "taking over")


@pytest.mark.usefixtures("ledger")
async def test_faust_makes_no_topic_and_joins_no_group(start: Start, bootstrap: str) -> None:
    worker = start()
    worker.wait_until_ready()

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topics = await admin.list_topics()
        groups = [group[0] for group in await admin.list_consumer_groups()]
    finally:
        await admin.close()
    assert [name for name in [*topics, *groups] if "ledger-worker" in name] == []


async def test_what_it_decides_is_counted_by_the_rates_agent(
    start: Start, ledger: Ledger, dsn: str
) -> None:
    worker = start()
    worker.wait_until_ready()

    async with ledger.client() as client:
        for _ in range(5):
            await client.ask(RequestJob(type="t", queue=QueueName("q")))

    def counted() -> bool:
        with connect(dsn) as connection:
            row = connection.execute("SELECT sum(count) FROM job_rates WHERE queue = 'q'")
            return row.fetchone() == (5,)

    worker.until(counted, "counting")
    assert worker.report["rates"]["quarantined"] == 0


def test_topics_that_are_not_there_end_it_with_1_and_the_reason(start: Start) -> None:
    worker = start()

    assert _exit_code(worker) == 1

    [crash] = [event for event in worker.events if event["event"] == "worker.crashed"]
    assert "ledger topics apply" in crash["reason"]


@pytest.mark.usefixtures("ledger")
def test_exactly_once_is_refused_whoever_asks_for_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESSING_GUARANTEE", "exactly_once")

    worker = start()

    assert _exit_code(worker) == 2
    assert "exactly_once is refused" in worker.child.output


@pytest.mark.usefixtures("ledger")
def test_the_health_endpoint_answers_three_questions_and_no_other(start: Start) -> None:
    worker = start("--only", "projector")
    worker.wait_until_ready()

    assert worker.report["runs"] == "projector"
    assert worker.report["owner"] == {"partitions": {}}
    status, text = worker.get("/metrics")
    assert status == 200
    assert b"ledger_worker_lag_seconds 0.0\n" in text
    assert b'ledger_worker_projector_offset{partition="1"}' in text
    assert worker.get("/secrets")[0] == 404
    assert _posted(worker.port) == 405


@pytest.mark.usefixtures("ledger")
def test_it_listens_on_loopback_only(start: Start) -> None:
    worker = start()
    worker.wait_until_ready()

    listening = subprocess.run(
        ["ss", "-ltnpH"], capture_output=True, text=True, check=True
    ).stdout.splitlines()

    ours = [line.split()[3] for line in listening if f"pid={worker.child.pid}," in line]
    assert ours == [f"127.0.0.1:{worker.port}"]


def _owned(worker: Worker) -> int:
    try:
        owned = worker.report["owner"]["partitions"].values()
    except (OSError, ValueError):
        return -1
    return sum(facts["owner"] for facts in owned)


def _exit_code(worker: Worker) -> int:
    """Of a worker that ends by itself."""
    with pytest.raises(EmbeddedError, match="ended with status") as ended:
        worker.until(lambda: False, "the worker")
    return int(str(ended.value).partition("status ")[2].split()[0])


def _posted(port: int) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", data=b"{}", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
