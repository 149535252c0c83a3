"""What examples are made of, and how their processes are read."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from cli.run_example import EXAMPLES, main, names, processes

ALLOWED = {"httpx", "websockets", "ledger.client", "examples.telling"}
FILES = sorted(EXAMPLES.glob("*/*.py"))


def test_a_process_is_a_name_and_a_command(tmp_path: Path) -> None:
    file = tmp_path / "Procfile"
    file.write_text("one: python a.py $PORT 'two words'\nother: ledger worker\n")
    assert processes(file, {"PORT": "7000"}) == {
        "one": ["a.py", "7000", "two words"],
        "other": ["-m", "cli.main", "worker"],
    }


def test_without_a_name_the_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.split() == names()


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job_cor"]) == 2
    assert "job_core" in capsys.readouterr().err


@pytest.mark.parametrize("name", names())
def test_the_last_process_is_the_story_and_the_readme_is_short(name: str) -> None:
    environment = dict.fromkeys(("LEDGER_KAFKA", "LEDGER_API_URL", "MODEL_PORT"), "x")
    *_, story = processes(EXAMPLES / name / "Procfile", environment).values()
    assert story[:2] == ["-m", f"examples.{name}.story"]
    readme = (EXAMPLES / name / "README.md").read_text(encoding="utf-8").splitlines()
    assert f"    make example NAME={name}" in [line.split("  #")[0].rstrip() for line in readme]
    assert len(readme) <= 12


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_example_imports_only_what_its_readers_have(file: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or ".")
    strangers = {
        name
        for name in imported
        if name.split(".")[0] not in sys.stdlib_module_names | {"websockets"} | ALLOWED
        and name not in ALLOWED
    }
    assert strangers == set()
