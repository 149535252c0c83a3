"""`ledger api` as a process: how it starts and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.local import answers
from ledger.embedded.processes import Child, free_ports
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

START_SECONDS = 60.0
STOP_SECONDS = 30.0
API = (sys.executable, "-m", "cli.main", "api")


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> Ledger:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        return ledger


@pytest.fixture(autouse=True)
def settings(
    ledger: Ledger, bootstrap: str, topic_prefix: str, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_KAFKA", bootstrap)
    monkeypatch.setenv("LEDGER_POSTGRES", dsn)
    monkeypatch.setenv("LEDGER_PREFIX", topic_prefix)
    monkeypatch.setenv("LEDGER_PARTITIONS", str(ledger.partitions))


def test_it_ends_with_0_when_it_is_asked_to(server_directory: Path) -> None:
    [port] = free_ports(1)
    child = Child(
        [*API, "--port", str(port)], log=server_directory / "api.log", directory=Path.cwd()
    )
    child.wait_until(
        lambda _: answers(f"http://127.0.0.1:{port}/healthz"), name="the api", seconds=START_SECONDS
    )

    child.send(signal.SIGTERM)

    child.wait(name="the api", seconds=STOP_SECONDS)  # Raises for any other exit code.


def test_a_taken_port_ends_it_with_5_and_a_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        result = _run("--port", str(port))

    assert result.returncode == 5
    assert f"the api could not start at 127.0.0.1:{port}" in result.stderr
    assert "--port takes another port" in result.stderr


def test_without_kafka_it_ends_with_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_KAFKA", "127.0.0.1:1")

    assert _run("--port", "0").returncode == 5


def test_listening_beyond_loopback_is_warned_about() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()

        result = _run("--host", "0.0.0.0", "--port", str(taken.getsockname()[1]))

    assert "the api asks nobody who they are" in result.stderr


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    """Of an api that cannot start."""
    return subprocess.run([*API, *words], capture_output=True, text=True, timeout=START_SECONDS)
