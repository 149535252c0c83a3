"""What can be said of the comparison without running a peer."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import PEERS, PeersUnavailable, environment
from benchmarks.peers.__main__ import OURS, RIVALS, table
from benchmarks.peers.environment import REQUIREMENTS, peers_python, pinned_versions
from benchmarks.peers.running import PROGRAMS


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was twice as fast in the second; the peer was always as fast as ours."""
    rows = table(
        {
            OURS: [{"jobs_per_second": 1_000.0}, {"jobs_per_second": 2_000.0}],
            "peer": [{"jobs_per_second": 1_000.0}, {"jobs_per_second": 2_000.0}],
        }
    )
    assert cells(rows[-1])[0] == "peer"
    assert cells(rows[-1])[5] == "1.00x"


def test_a_round_that_failed_counts_for_nothing() -> None:
    rows = table(
        {
            OURS: [{"cpu_paces_per_job": 100.0}, {"cpu_paces_per_job": 100.0}, {}],
            "peer": [{"cpu_paces_per_job": 300.0}, {}, {"cpu_paces_per_job": 900.0}],
            "never": [{}, {}, {}],
        }
    )
    assert cells(rows[-2])[6] == "3.00x"
    assert set(cells(rows[-1])[1:]) == {"-"}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_every_rival_has_a_program_and_a_pinned_version() -> None:
    assert {rival.peer for rival in RIVALS} == set(PEERS)
    assert all((PROGRAMS / peer.program).exists() for peer in PEERS.values())
    locked = REQUIREMENTS.read_text()
    assert all(f"{name}=={number} " in locked for name, number in pinned_versions().items())


def test_without_an_index_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(1, "pip", output="no route\nERROR: no such version\n")

    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(subprocess, "run", refused)
    with pytest.raises(PeersUnavailable, match=r"no such version[\s\S]*make bench-peers"):
        peers_python()
    # What was begun is not taken for whole.
    with pytest.raises(PeersUnavailable):
        peers_python()
