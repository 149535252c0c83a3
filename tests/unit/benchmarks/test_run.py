"""A benchmark that fails does not take the others with it."""

from __future__ import annotations

from benchmarks.__main__ import PROGRAMS, Program, ran
from benchmarks.gates import BY_NAME


def test_one_that_fails_is_shown_with_its_reason() -> None:
    results = list(ran(Program("nowhere", ("first", "second")), full=False))

    assert [result.measure for result in results] == ["first", "second"]
    assert all("No module named benchmarks.nowhere" in result.failed for result in results)
    assert all(result.ours is None for result in results)


def test_every_gate_is_owed_by_one_benchmark() -> None:
    owed = [measure for program in PROGRAMS for measure in program.measures]

    assert len(owed) == len(set(owed))
    assert BY_NAME.keys() <= set(owed)
