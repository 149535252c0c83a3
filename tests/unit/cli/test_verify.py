"""`ledger verify` and what it says, on archives: no server is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from cli.main import app
from ledger.domain.entries import Entry
from tests.support.written_log import DAMAGES, a_few_jobs, archived, records_of, rewritten

ITEMS = a_few_jobs()
LOG = records_of(ITEMS)


def verify(*words: object, ends_with: int = 0) -> Result:
    result = CliRunner().invoke(app, ["verify", *map(str, words)])
    assert result.exit_code == ends_with, (words, result.output, result.exception)
    return result


def report(*words: object, ends_with: int = 0) -> Any:
    return json.loads(verify(*words, "--json", ends_with=ends_with).stdout)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return archived(LOG, tmp_path)


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """Its last job is cancelled twice."""
    last = ITEMS[-1]
    assert isinstance(last, Entry)
    return archived(records_of([*ITEMS, replace(last, number=last.number + 1)]), tmp_path)


def test_a_sound_log_is_said_to_be_sound(sound: Path) -> None:
    said = verify("--file", sound).stdout
    assert "verify: ok 23 events in 1 partitions; read models not compared" in said
    assert "5 succeeded, 1 cancelled" in said
    assert "5 ledger.job.lease_granted.v1" in said


def test_a_report_has_all_that_was_counted(sound: Path) -> None:
    found = report("--file", sound, "--deep")
    (partition,) = found["partitions"]
    assert found["ok"]
    assert found["deep"]
    assert not found["rows_compared"]
    assert (partition["partition"], partition["end"]) == (0, len(LOG))
    assert partition["events"] == sum(partition["types"].values()) == 23
    assert partition["jobs"]["requested"] == 6
    assert partition["commands"]["accepted"] == 13
    assert partition["violations"] == []


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_located(name: str, tmp_path: Path) -> None:
    damaged, at = DAMAGES[name](LOG)
    path = archived(damaged, tmp_path)
    said = verify("--file", path, ends_with=1).stdout
    assert f"ledger.events.v1[0] at offset {at}: " in said
    assert "verify: FAILED 1 logs broken" in said
    (partition,) = report("--file", path, ends_with=1)["partitions"]
    assert partition["broken_at"] == at


def test_a_violation_comes_with_its_places_and_a_command_to_look_at_it(wrong: Path) -> None:
    said = verify("--file", wrong, ends_with=1).stdout
    found = report("--file", wrong, ends_with=1)
    violation = found["partitions"][0]["violations"][0]
    assert (violation["rule"], violation["offset"]) == ("I10", len(LOG))
    assert violation["look"] == f"ledger job history {violation['job_id']}"
    assert f"I10 in partition 0, entry {violation['entry']} at offset {len(LOG)}: job " in said
    assert violation["look"] in said
    assert not found["ok"]


# --- Parts of it ---------------------------------------------------------------------------------
def test_a_range_is_told_of_on_its_own(wrong: Path) -> None:
    assert report("--file", wrong, "--to", len(LOG))["ok"]
    late = report("--file", wrong, "--from", len(LOG), ends_with=1)["partitions"][0]
    assert (late["events"], late["violation_count"] > 0) == (1, True)
    assert report("--file", wrong, "--from", len(LOG) + 1)["partitions"][0]["entries"] == 0


def test_a_range_is_of_one_partition(sound: Path, tmp_path: Path) -> None:
    other = archived(LOG, tmp_path, partition=1)
    said = verify("--file", sound, "--file", other, "--from", 3, ends_with=2).output
    assert "--from and --to are of one partition" in said
    verify("--file", sound, "--file", other, "--partition", 0, "--from", 3)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    assert "is no archive of a log" in verify("--file", tmp_path / "other", ends_with=2).output


# --- What was seen before ------------------------------------------------------------------------
@pytest.fixture
def before(sound: Path, tmp_path: Path) -> Path:
    noted = tmp_path / "verified.json"
    noted.write_text(verify("--file", sound, "--json").stdout)
    return noted


def test_a_log_that_went_on_holds_what_was_reported(before: Path, wrong: Path) -> None:
    (partition,) = report("--file", wrong, "--against", before, ends_with=1)["partitions"]
    assert not partition["broken"]


def test_a_log_that_was_cut_off_does_not(before: Path, tmp_path: Path) -> None:
    short = archived(LOG[:-1], tmp_path)
    assert report("--file", short)["ok"]
    (partition,) = report("--file", short, "--against", before, ends_with=1)["partitions"]
    assert partition["broken_at"] == len(LOG) - 1
    assert "verified.json saw" in partition["broken"]


def test_a_log_that_was_rolled_back_and_went_on_does_not(before: Path, tmp_path: Path) -> None:
    other = archived(rewritten(LOG), tmp_path)
    assert report("--file", other)["ok"]
    (partition,) = report("--file", other, "--against", before, ends_with=1)["partitions"]
    assert partition["broken_at"] is not None
    assert "another history" in partition["broken"]


def test_a_report_that_is_none_is_refused(sound: Path) -> None:
    said = verify("--file", sound, "--against", sound, ends_with=2).output
    assert "is no report of `ledger verify --json`" in said


# --- By several processes ------------------------------------------------------------------------
def test_partitions_are_checked_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.verify.SMALL_RECORDS", 0)
    damaged, at = DAMAGES["an edited value"](LOG)
    paths = [archived(damaged if n == 1 else LOG, tmp_path, partition=n) for n in range(3)]
    words = [word for path in paths for word in ("--file", path)]
    found = report(*words, "--processes", 2, "--deep", ends_with=1)["partitions"]
    assert [one["partition"] for one in found] == [0, 1, 2]
    assert [one["broken_at"] for one in found] == [None, at, None]
    assert found[0]["events"] == found[2]["events"] == 23
