"""What counts as reached, and how it is shown."""

from __future__ import annotations

import pytest

from benchmarks.gates import BY_NAME, GATES, Verdict, judge, met
from benchmarks.results import Result, Versions
from benchmarks.table import BEGIN, END, table, verdicts_of, written_into

FASTEST = {"at most": 0.0, "at least": 1e9}
VERSIONS = Versions("0.1.0", "abc", "3.11", "4.3.1", "18.6", "0.14", "3.3")


def all_at_their_best() -> list[Result]:
    return [Result(gate.name, gate.unit, ours=FASTEST[gate.direction]) for gate in GATES]


@pytest.mark.parametrize(
    ("name", "ours", "verdict"),
    [
        ("cpu", 150.0, Verdict(True, True)),
        ("cpu", 150.1, Verdict(True, False)),
        ("cpu", 250.0, Verdict(True, False)),
        ("cpu", 250.1, Verdict(False, False)),
        ("rate", 8_000.0, Verdict(True, True)),
        ("rate", 4_000.0, Verdict(True, False)),
        ("rate", 3_999.9, Verdict(False, False)),
        ("start_p50", 6.0, Verdict(None, True)),
        ("start_p50", 6.1, Verdict(None, False)),
    ],
)
def test_a_figure_on_the_bound_reaches_it(name: str, ours: float, verdict: Verdict) -> None:
    assert judge(BY_NAME[name], ours) == verdict


def test_an_aim_about_a_harder_peer_is_judged_by_its_own_figure() -> None:
    gate = BY_NAME["cpu_to_pgqueuer"]

    assert judge(gate, 0.9, ours_to_aim=1.2) == Verdict(True, False)
    assert judge(gate, 0.9, ours_to_aim=0.9) == Verdict(True, True)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_an_aim_is_never_easier_than_its_gate(gate: object) -> None:
    its = next(one for one in GATES if one is gate)
    if its.gate is None:
        assert its.target in {one.target for one in GATES if one.gate is not None}
    else:
        assert judge(its, its.aim).passed


def test_names_are_unique_and_targets_are_p1_to_p14() -> None:
    assert len(BY_NAME) == len(GATES)
    assert {gate.target for gate in GATES} == {f"P{number}" for number in range(1, 15)}


def test_a_target_is_met_when_every_gate_of_it_is() -> None:
    best = {result.measure: result for result in all_at_their_best()}
    assert met(verdicts_of(best).items()) == (14, 14)

    too_much = best | {"wal_bytes": Result("wal_bytes", "B", ours=2_601.0)}
    assert met(verdicts_of(too_much).items()) == (13, 14)


def test_a_missing_aim_is_no_missed_gate() -> None:
    slow = {result.measure: result for result in all_at_their_best()}
    slow["start_p50"] = Result("start_p50", "ms", ours=1_000.0)

    assert met(verdicts_of(slow).items()) == (14, 14)


def test_what_was_not_measured_is_not_met() -> None:
    assert met(verdicts_of({}).items()) == (0, 14)

    failed = [Result(gate.name, gate.unit, failed="no network") for gate in GATES]
    said = table(failed)

    assert said.endswith("gates: 0 of 14")
    assert "cpu_to_pgqueuer: no network" in said
    assert said.count("not measured") == len(GATES)


def test_the_table_shows_ours_the_floor_and_their_ratio() -> None:
    result = Result(
        "projection",
        "x",
        ours=0.66,
        ours_as_beside=43_000,
        beside=65_000,
        beside_is="rows/s",
    )

    [line] = [line for line in table([result]).splitlines() if "P7" in line]

    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2:] == ["43,000", "65,000 (rows/s)", "0.66", "≥ 0.6", "≥ 0.8", "yes"]


@pytest.mark.parametrize(
    ("ours", "is_reduced", "said"),
    [(5.0, True, "yes, at this size"), (5.0, False, "yes"), (11.0, True, "no")],
)
def test_a_gate_met_at_less_than_its_size_says_so(ours: float, is_reduced: bool, said: str) -> None:
    result = Result("recovery", "s", ours=ours, is_reduced=is_reduced)

    [line] = [line for line in table([result]).splitlines() if "P10" in line]

    assert line.strip("|").split("|")[-1].strip() == said


def test_what_has_no_gate_is_shown_below_and_counts_for_nothing() -> None:
    said = table(
        [*all_at_their_best(), Result("get_job", "us", ours=900.0, detail="CPU of a request")]
    )

    assert "get job: CPU of a request" in said
    assert "900 us" in said
    assert said.endswith(f"aims: {len(GATES)} of {len(GATES)}\ngates: 14 of 14")


def test_a_document_gets_the_table_between_its_markers_and_keeps_the_rest() -> None:
    results = [Result("cpu", "us", ours=200.0, load=0.5, cores=2, versions=VERSIONS)]

    once = written_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", results)

    assert once.startswith(f"before\n{BEGIN}\n")
    assert once.endswith(f"{END}\nafter\n")
    assert "old" not in once
    assert "Measured on 2 cores, load 0.5 to 0.5, commit abc" in once
    assert written_into(once, results) == once


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="benchmarks: begin"):
        written_into("no markers", all_at_their_best())
