"""`make bench`: every question in turn, a process each, and one table of what was found against
what has to be reached. `python -m benchmarks --help` lists the options.

A benchmark that fails, or takes too long, is shown with its reason; the others go on.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, Timer
from typing import IO

import msgspec
from msgspec import Struct

from benchmarks.results import Result, progress
from benchmarks.table import table, written_into

SECONDS_MAX, FULL_SECONDS_MAX = 600, 3_600
"""Of one program."""
STOP_SECONDS = 60


class Program(Struct, frozen=True):
    name: str
    measures: tuple[str, ...]
    """Shown as failed where it ends before it has said them."""
    short: bool = True
    """Whether it is run unless asked for by name, or with `--full`."""


PROGRAMS = (
    Program(
        "end_to_end",
        (
            "cpu",
            "cpu_busy",
            "rate",
            "cpu_to_pgqueuer",
            "rate_to_pgqueuer",
            "procrastinate_to_cpu",
            "start_p50",
            "start_p99_to_pgqueuer",
            "busy_start_p99",
        ),
    ),
    Program("projection", ("projection", "projection_at_once")),
    Program("replay", ("replay_one", "replay_two")),
    Program("backlog", ("backlog", "backlog_rules")),
    Program("recovery", ("recovery",)),
    Program("memory", ("memory",)),
    Program("timers", ("timers",)),
    Program("idle", ("idle",)),
    Program("storage", ("log_bytes", "postgres_bytes", "wal_bytes")),
    Program("queries", ("get_job", "list_jobs", "poll")),
    Program("long_jobs", ("long_jobs",)),
    Program("partitions", ("partitions",)),
    Program("burst", ("burst",), short=False),
    Program("limits", ("limits",), short=False),
    Program("verify", ("verify",), short=False),
)


def ran(program: Program, *, full: bool) -> Iterator[Result]:
    """What it says; then, for each measure that it owes, why not."""
    words = [sys.executable, "-m", f"benchmarks.{program.name}", *(["--full"] if full else [])]
    owed = dict.fromkeys(program.measures)
    last: deque[str] = deque(maxlen=1)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        limit = FULL_SECONDS_MAX if full else SECONDS_MAX
        overdue = Event()
        timer = Timer(limit, _give_up, (process, overdue))
        echo = Thread(target=_echo, args=(program.name, process.stderr, last), daemon=True)
        timer.start()
        echo.start()
        try:
            for line in process.stdout:
                with suppress(msgspec.DecodeError):
                    result = msgspec.json.decode(line, type=Result)
                    owed.pop(result.measure, None)
                    yield result
            process.wait()
        finally:
            timer.cancel()
            _end(process)
            echo.join()
    why = last[-1] if last else f"it ended with {process.returncode}"
    if overdue.is_set():
        why = f"it took more than {limit} s"
    for name in owed:
        yield Result(name, "", failed=why)


def _echo(name: str, errors: IO[str], last: deque[str]) -> None:
    for line in errors:
        progress(f"  {name}: {line.rstrip()}")
        if line.strip():
            last.append(line.strip())


def _give_up(process: subprocess.Popen[str], overdue: Event) -> None:
    overdue.set()
    _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """An interrupt, so that it stops its servers; else it and all that it has begun is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [program.name for program in PROGRAMS]
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}: only these"
    )
    parser.add_argument("--full", action="store_true", help="the sizes of the gates: takes an hour")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every result there, a line each"
    )
    parser.add_argument(
        "--from",
        type=Path,
        metavar="FILE",
        dest="found",
        help="results of an earlier run: measure nothing",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="the document to put the table into"
    )
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if given.found is None:
        wanted = given.names or [its.name for its in PROGRAMS if its.short or given.full]
        results = measured(wanted, full=given.full, file=given.json)
    else:
        lines = given.found.read_bytes().splitlines()
        results = [msgspec.json.decode(line, type=Result) for line in lines]
    if given.write is not None:
        text = written_into(given.write.read_text(encoding="utf-8"), results)
        given.write.write_text(text, encoding="utf-8")
    print(table(results))


def measured(names: list[str], *, full: bool, file: Path | None) -> list[Result]:
    """Until an interrupt; what was found before it is kept."""
    results: list[Result] = []
    began = time.monotonic()
    if file is not None:
        file.write_bytes(b"")
    with suppress(KeyboardInterrupt):
        for program in PROGRAMS:
            if program.name not in names:
                continue
            progress(f"{time.monotonic() - began:4.0f} s  {program.name}")
            for result in ran(program, full=full):
                results.append(result)
                if file is not None:
                    with file.open("ab") as lines:
                        lines.write(msgspec.json.encode(result) + b"\n")
    progress(f"{time.monotonic() - began:4.0f} s in all")
    return results


if __name__ == "__main__":
    main()
