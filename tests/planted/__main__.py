"""Plants each bug of `bugs.toml` in a copy of the tree and runs the tests that have to notice it.

    python -m tests.planted [--list] [--only NAME]

Exit code 1 unless every bug is caught.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.planted.bugs import bugs
from tests.planted.catching import catch


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument("--list", action="store_true", help="the bugs, and who catches them")
    parser.add_argument("--only", metavar="NAME", help="this one")
    asked = parser.parse_args()
    known = bugs()
    if asked.only and asked.only not in known:
        parser.error(f"no bug is called {asked.only}: see --list")
    chosen = [known[asked.only]] if asked.only else list(known.values())
    if asked.list:
        for bug in chosen:
            print(f"{bug.name}{' (quick)' if bug.quick else ''}: {bug.wrong}")
            print(f"    {' '.join(bug.caught_by)}")
        return 0
    caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as both:
        for found in both.map(catch, chosen):
            caught += found.how == "caught"
            print(f"{found.bug}: {found.how} {found.by}".rstrip(), flush=True)
    print(f"caught: {caught} of {len(chosen)}")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
