"""Many runs of the real code: no rule is broken, each run can be had again, and a failing one is
made small. More of them: `make simulate`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.simulation.coverage import RARE, STATES
from tests.simulation.faults import AnyFault, Freeze, Kill, Truncate
from tests.simulation.shrinking import shrunk
from tests.simulation.world import World

SECONDS_MAX = 900
"""Of one command, on a machine that is busy with others."""


def simulate(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_sixty_worlds_break_no_rule_and_meet_what_is_hard() -> None:
    *table, last = simulate("--seeds", "60").splitlines()
    assert last == "seeds: 60, violations: 0"
    reached = {state for count, state in (line.split(maxsplit=1) for line in table) if count != "0"}
    assert reached >= set(STATES) - RARE


def test_the_same_seed_is_the_same_run_whatever_the_hashes_of_texts_are() -> None:
    runs = {simulate("--seeds", "1", "--from", "3", PYTHONHASHSEED=seed) for seed in ("1", "2")}
    assert len(runs) == 1
    assert re.search(r"digest: [0-9a-f]{64}", runs.pop())


def test_another_seed_is_another_run() -> None:
    assert World(3).run().digest != World(4).run().digest


def test_records_that_are_gone_after_an_unclean_election_are_noticed() -> None:
    told = World(0, [Truncate(at=14.0, partition=0, records=6)]).run().violations
    assert any("acknowledged records are gone" in found.detail for found in told)


def test_of_many_faults_those_are_left_that_it_takes() -> None:
    faults: list[AnyFault] = [Freeze(at=n, process="owner0", seconds=1.0) for n in range(11)]
    needed = {3, 9}

    def fails(some: Sequence[AnyFault]) -> bool:
        return needed <= {fault.at for fault in some}

    assert [fault.at for fault in shrunk(faults, fails)] == sorted(needed)


def test_what_fails_without_faults_is_made_small_to_none() -> None:
    faults = [Kill(at=n, process="owner0", back_in=1.0) for n in range(5)]
    assert shrunk(faults, lambda _: True) == []
