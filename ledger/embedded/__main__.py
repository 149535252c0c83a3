"""`python -m ledger.embedded`: fetch what the servers need, or erase the data of a stack."""

from __future__ import annotations

import sys
from pathlib import Path

from ledger.embedded.downloads import KAFKA_VERSION, kafka_jars, postgres_programs
from ledger.embedded.java import java
from ledger.embedded.processes import EmbeddedError
from ledger.embedded.stack import Stack

USAGE = "usage: python -m ledger.embedded fetch | erase DIRECTORY"


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["fetch"]:
                print(f"Java      {java()}")
                print(f"Kafka     {KAFKA_VERSION}, {len(kafka_jars())} jars")
                print(f"Postgres  {postgres_programs()}")
            case ["erase", directory]:
                Stack(Path(directory)).erase()
            case _:
                print(USAGE, file=sys.stderr)
                return 2
    except EmbeddedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
