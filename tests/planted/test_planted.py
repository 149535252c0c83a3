"""The bugs that are planted in the ordinary tests, too: `make planted` does all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.bugs import ROOT, Bug, bugs, plant
from tests.planted.catching import catch

KNOWN = bugs()
QUICK = [name for name, bug in KNOWN.items() if bug.quick]


@pytest.mark.planted
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    found = catch(KNOWN[name])
    assert found.how == "caught", found


@pytest.mark.parametrize("bug", KNOWN.values(), ids=KNOWN)
def test_a_bug_can_still_be_planted(bug: Bug, tmp_path: Path) -> None:
    for edit in bug.edits:
        copy = tmp_path / edit.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / edit.file).read_text())
    plant(bug, tmp_path)
    for test in bug.caught_by:
        file, _, function = test.partition("::")
        assert function in (ROOT / file).read_text(), test
