"""A short storm with few kinds of faults, as the program is run by hand; docs/storms.md."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 30
SEED = 1
KINDS = (
    "kill owner",
    "freeze owner",
    "kill runtime",
    "kill projector",
    "kill the leader",
    "kill postgres",
    "restore postgres",
    "half-open",
    "poison",
    "duplicates",
)
PATIENCE_SECONDS = 900.0
"""A machine that is busy with other things takes several times as long."""


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_a_storm_on_three_brokers_breaks_no_promise() -> None:
    words = ("--seconds", str(SECONDS), "--seed", str(SEED), "--small", "--kinds", ",".join(KINDS))
    storm = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    print(storm.stdout)
    assert storm.returncode == 0
    assert storm.stdout.splitlines()[-1] == "violations: 0"
