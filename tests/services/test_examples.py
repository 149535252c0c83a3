"""The stories of examples/ as `make example` runs them: each checks its own claims as it goes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.run_example import HISTORY, names
from tests.services.test_cli_dev import pids_below

pytestmark = [pytest.mark.services, pytest.mark.slow]

RUN = (sys.executable, "-m", "cli.run_example")
RUN_SECONDS = 180
STOP_SECONDS = 60
CLAIMS = {
    "ai_runtime_jobs": [
        "refused: 422 IDEMPOTENCY_KEY_REUSED, the same idempotency key came with other content",
        "it succeeds in attempt 2 of 4, which is retry 1 of 3",
        "refused: 409 RESULT_ALREADY_EXISTS, another result was accepted before this one",
        "refused: 409 LEASE_STALE, fence 1 is not current; the last one given is 2",
        "the runtime hears of it at its next heartbeat",
    ],
    "generation_pipeline": [
        "each stage keeps to its range, 0-20-60-80-100",
        "the second submitter gets the first one's id",
        "it was sent back three times, not more",
        "refused: 429 QUEUE_FULL, 3 jobs are pending: more may not be",
        "the bytes are those of the reference",
        "the picture is gone",
    ],
    "job_core": [
        "refused: 409 DUPLICATE_ACTIVE, an equal job has not ended yet",
        "it kept version 1 of its template",
        "its first step may not be cut short: it finished",
        "refused: 409 CANCEL_NOT_SUPPORTED, the job's template allows no cancel",
        "refused: 409 NOT_REPEATABLE, an equal job has succeeded",
        "five runs are foretold, at 09:00 there",
    ],
    "model_middleware": [
        "the ledger's record does not have it",
        "never more than two of a tenant at the same time",
        "1st, 2nd, 3rd, 1st",
        "collecting again gives the same answer",
        "the failed job was erased",
    ],
}
"""What must have been found true on the way, by example."""


def test_every_example_has_its_claims_here() -> None:
    assert names() == sorted(CLAIMS)


@pytest.mark.rule("S1.1", "S1.3", "S1.4", "S1.6", "S1.7", "S1.8", "S1.9", "S1.10", "S1.11")
def test_the_ledger_can_be_the_ai_runtime_jobs(server_directory: Path) -> None:
    assert_told("ai_runtime_jobs", server_directory)


@pytest.mark.rule("S2.1", "S2.2", "S2.3", "S2.5", "S2.6", "S2.7", "S2.10")
def test_the_ledger_can_be_the_job_core(server_directory: Path) -> None:
    assert_told("job_core", server_directory)


@pytest.mark.rule("S3.1", "S3.2", "S3.3", "S3.4", "S3.5", "S3.6", "S3.7")
def test_the_ledger_can_be_the_generation_pipeline(server_directory: Path) -> None:
    assert_told("generation_pipeline", server_directory)


@pytest.mark.rule("S4.1", "S4.2", "S4.3", "S4.5", "S4.6", "S4.7")
def test_the_ledger_can_be_the_model_middleware(server_directory: Path) -> None:
    assert_told("model_middleware", server_directory)


def assert_told(name: str, server_directory: Path) -> None:
    """To its end, with all that it claims."""
    result = subprocess.run(
        [*RUN, name],
        env=_with_data_in(server_directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
    )
    *told, last = result.stdout.splitlines()
    assert (result.returncode, last) == (0, f"example: ok {name}"), result.stdout
    assert [claim for claim in CLAIMS[name] if f"  = {claim}" not in told] == []
    histories = [number for number, text in enumerate(told) if text.startswith(HISTORY)]
    assert histories
    for number in histories:
        columns, first = told[number + 1 : number + 3]
        assert columns.split() == ["seq", "at", "event", "by", "position", "what"]
        assert re.match(r"1 +\S+ \S+ +requested +\S+ +\d+:\d+ ", first)
    assert list(server_directory.iterdir()) == []


def test_an_example_that_is_interrupted_leaves_nothing(server_directory: Path) -> None:
    process = subprocess.Popen(
        [*RUN, "job_core"],
        env=_with_data_in(server_directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("  = "):
            assert process.poll() is None
        pids = pids_below(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS) == 130
    assert len(pids) >= 6
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert list(server_directory.iterdir()) == []


def _with_data_in(directory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory)}
