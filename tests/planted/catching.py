"""Whether tests notice a planted bug. It is planted in a copy of the tree, never in the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from msgspec import Struct

from tests.planted.bugs import ROOT, Bug, Stale, plant

CPU_SECONDS_MAX = 30
"""Of each process of a run: what the machine does besides does not count."""
SECONDS_MAX = 600
"""Of a run that hangs."""
PARTS = (
    *("ledger", "processors", "projections", "api", "cli"),
    *("tests", "examples", "benchmarks", "pyproject.toml"),
)
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)


class Caught(Struct, frozen=True):
    bug: str
    how: Literal["caught", "missed", "stale", "broken", "too long"]
    by: str = ""
    """The test that failed; else what the run said last. `broken`: none failed, and it went wrong
    otherwise, as where a server did not start."""


def catch(bug: Bug) -> Caught:
    with TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        try:
            plant(bug, tree)
        except Stale as error:
            return Caught(bug.name, "stale", str(error))
        return _run(bug, tree)


def copy_tree(tree: Path) -> None:
    """With its compiled files: only what is changed is compiled anew."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part)
        else:
            shutil.copy2(source, tree / part)


def _run(bug: Bug, tree: Path) -> Caught:
    options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not planted")
    limited = ("sh", "-c", f'ulimit -t {CPU_SECONDS_MAX}; exec "$@"', "sh")
    command = (*limited, sys.executable, "-m", "pytest", *options, *bug.caught_by)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        run = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        return Caught(bug.name, "too long")
    if run.returncode == 1 and (failed := _FAILED.search(run.stdout)):
        return Caught(bug.name, "caught", failed.group(1))
    last = (run.stdout.strip() or run.stderr.strip()).rpartition("\n")[2]
    if run.returncode == 0:
        return Caught(bug.name, "missed", last)
    return Caught(bug.name, "too long" if run.returncode < 0 else "broken", last)
