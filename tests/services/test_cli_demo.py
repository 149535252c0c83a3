"""`ledger demo` from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.services.test_cli_dev import pids_below

pytestmark = [pytest.mark.services, pytest.mark.slow]

DEMO = (sys.executable, "-m", "cli.main", "demo")
DEMO_SECONDS = 150
STOP_SECONDS = 60


def test_every_job_ends_as_it_should_and_nothing_is_left() -> None:
    before = _temporary_directories()

    result = subprocess.run(
        [*DEMO, "--jobs", "100", "--json"], capture_output=True, text=True, timeout=DEMO_SECONDS
    )

    report = json.loads(result.stdout)
    assert result.returncode == 0, report
    assert report["counts"] == "100 jobs: 98 succeeded, 1 cancelled, 1 failed"
    assert report["killed_runtime"] in ("runtime-1", "runtime-2")
    types = [event["type"] for event in report["history"]]
    assert types.count("ledger.job.lease_granted.v1") == 2
    assert "ledger.job.attempt_expired.v1" in types
    assert _temporary_directories() == before


def test_a_demo_that_is_interrupted_leaves_nothing_either() -> None:
    before = _temporary_directories()
    process = subprocess.Popen(DEMO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stderr is not None
        while "jobs submitted" not in process.stderr.readline():
            assert process.poll() is None
        pids = pids_below(process.pid)

        process.send_signal(signal.SIGINT)

        assert process.wait(STOP_SECONDS) == 130
    assert len(pids) >= 6
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert _temporary_directories() == before


def _temporary_directories() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("ledger-[a-z0-9_]*"))
