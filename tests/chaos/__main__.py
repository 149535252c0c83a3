"""`python -m tests.chaos`: a storm on three brokers; see docs/storms.md. Ends with 1 if something
that must hold did not."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from processors.owner.seams import wall_clock
from tests.chaos.faults import KINDS
from tests.chaos.storm import Plan, Storm
from tests.chaos.verdict import Verdict

EVIDENCE = Path("docs/evidence.md")
EVERY = frozenset(kind for kinds in KINDS.values() for kind in kinds)


def main() -> int:
    plan, is_recorded = parsed()
    directory = Path(tempfile.mkdtemp(prefix="ledger-storm-"))
    # As root, Postgres runs as another user, who has to get in.
    directory.chmod(0o711)
    storm = Storm(plan, directory)
    try:
        verdict = asyncio.run(storm.run())
    except BaseException:
        print(f"the storm broke off; its logs: {directory}; again: {plan.words}", flush=True)
        raise
    tell(verdict, storm)
    if verdict.violations:
        print(f"logs and data: {directory}\nagain: {plan.words}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    if is_recorded:
        record(verdict, storm)
    print(f"violations: {len(verdict.violations)}")
    return 1 if verdict.violations else 0


def parsed() -> tuple[Plan, bool]:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="of faults")
    parser.add_argument("--seed", type=int, help="one is chosen and printed if absent")
    parser.add_argument("--small", action="store_true", help="fewer processes")
    parser.add_argument("--kinds", help=f"of faults, with commas: {', '.join(sorted(EVERY))}")
    said = parser.parse_args()
    kinds = EVERY if said.kinds is None else frozenset(said.kinds.split(","))
    if unknown := kinds - EVERY:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    seed = secrets.randbits(32) if said.seed is None else said.seed
    return Plan(seed, said.seconds, kinds, said.small), os.environ.get("RECORD") == "1"


def tell(verdict: Verdict, storm: Storm) -> None:
    for violation in verdict.violations:
        print(f"VIOLATION {violation}")
    print(f"reached: {counted(verdict.seen)}")
    print(f"faults: {counted(storm.faults)}")
    print(f"jobs: {verdict.jobs:,}, events: {verdict.events:,}")


def record(verdict: Verdict, storm: Storm) -> None:
    day = datetime.fromtimestamp(wall_clock() / 1_000_000, UTC).date()
    row = (
        *(day, storm.plan.seed, f"{storm.plan.seconds:g}", counted(storm.faults)),
        *(f"{verdict.jobs:,}", f"{verdict.events:,}", len(verdict.violations)),
    )
    with EVIDENCE.open("a") as evidence:
        evidence.write(f"| {' | '.join(map(str, row))} |\n")


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()) if count)


if __name__ == "__main__":
    raise SystemExit(main())
