"""`ledger demo` from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.test_cli_dev import pids_below

pytestmark = [pytest.mark.services, pytest.mark.slow]

DEMO = (sys.executable, "-m", "cli.main", "demo")
DEMO_SECONDS = 150
STOP_SECONDS = 60


def test_every_job_ends_as_it_should_and_nothing_is_left(server_directory: Path) -> None:
    result = subprocess.run(
        [*DEMO, "--jobs", "100", "--json"],
        env=_with_data_in(server_directory),
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
    )

    report = json.loads(result.stdout)
    assert result.returncode == 0, report
    assert report["counts"] == "100 jobs: 98 succeeded, 1 cancelled, 1 failed"
    assert report["killed_runtime"] in ("runtime-1", "runtime-2")
    types = [event["type"] for event in report["history"]]
    assert types.count("ledger.job.lease_granted.v1") == 2
    assert "ledger.job.attempt_expired.v1" in types
    assert list(server_directory.iterdir()) == []


def test_a_demo_that_is_interrupted_leaves_nothing_either(server_directory: Path) -> None:
    process = subprocess.Popen(
        DEMO,
        env=_with_data_in(server_directory),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        while "jobs submitted" not in process.stderr.readline():
            assert process.poll() is None
        pids = pids_below(process.pid)

        process.send_signal(signal.SIGINT)

        assert process.wait(STOP_SECONDS) == 130
    assert len(pids) >= 6
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert list(server_directory.iterdir()) == []


def _with_data_in(directory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory)}
