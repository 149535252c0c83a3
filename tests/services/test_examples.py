"""The stories of examples/ as `make example` runs them: each checks its own claims as it goes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.run_example import HISTORY, names
from tests.services.test_cli_dev import pids_below
from tests.support.services import server_directory

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

RUN = (sys.executable, "-m", "cli.run_example")
STOP_SECONDS = 60
KEPT = "kept until Ctrl-C"
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


@dataclass
class Telling:
    """All of them, one after the other, on a ledger that is kept."""

    process: subprocess.Popen[str]
    directory: Path
    output: list[str]

    def of(self, name: str) -> list[str]:
        """What was said of it, to the line that says how it went."""
        ends = [n for n, text in enumerate(self.output) if text.startswith("example: ")]
        begins = [0, *(end + 1 for end in ends)]
        told = [self.output[begin : end + 1] for begin, end in zip(begins, ends, strict=False)]
        [mine] = [lines for lines in told if name in lines[-1]]
        return mine


@pytest.fixture(scope="module")
def telling() -> Iterator[Telling]:
    with server_directory() as directory:
        process = subprocess.Popen(
            [*RUN, *CLAIMS, "--keep"],
            env={**os.environ, "TMPDIR": str(directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            assert process.stdout is not None
            output: list[str] = []
            try:
                for text in process.stdout:
                    output.append(text.rstrip("\n"))
                    if text.startswith(KEPT):
                        break
                yield Telling(process, directory, output)
            finally:
                process.send_signal(signal.SIGINT)


def test_every_example_has_its_claims_here() -> None:
    assert names() == sorted(CLAIMS)


@pytest.mark.rule("S1.1", "S1.3", "S1.4", "S1.6", "S1.7", "S1.8", "S1.9", "S1.10", "S1.11")
def test_the_ledger_can_be_the_ai_runtime_jobs(telling: Telling) -> None:
    assert_told("ai_runtime_jobs", telling)


@pytest.mark.rule("S2.1", "S2.2", "S2.3", "S2.5", "S2.6", "S2.7", "S2.10")
def test_the_ledger_can_be_the_job_core(telling: Telling) -> None:
    assert_told("job_core", telling)


@pytest.mark.rule("S3.1", "S3.2", "S3.3", "S3.4", "S3.5", "S3.6", "S3.7")
def test_the_ledger_can_be_the_generation_pipeline(telling: Telling) -> None:
    assert_told("generation_pipeline", telling)


@pytest.mark.rule("S4.1", "S4.2", "S4.3", "S4.5", "S4.6", "S4.7")
def test_the_ledger_can_be_the_model_middleware(telling: Telling) -> None:
    assert_told("model_middleware", telling)


def assert_told(name: str, telling: Telling) -> None:
    """To its end, with all that it claims."""
    *told, last = telling.of(name)
    assert last == f"example: ok {name}", "\n".join(telling.output)
    assert [claim for claim in CLAIMS[name] if f"  = {claim}" not in told] == []
    histories = [number for number, text in enumerate(told) if text.startswith(HISTORY)]
    assert histories
    for number in histories:
        columns, first = told[number + 1 : number + 3]
        assert columns.split() == ["seq", "at", "event", "by", "position", "what"]
        assert re.match(r"1 +\S+ \S+ +requested +\S+ +\d+:\d+ ", first)


def test_examples_that_are_interrupted_leave_nothing(telling: Telling) -> None:
    process = telling.process
    assert process.poll() is None, "\n".join(telling.output)
    pids = pids_below(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(STOP_SECONDS) == 130
    assert len(pids) >= 6
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert list(telling.directory.iterdir()) == []
