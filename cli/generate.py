"""`python -m cli.generate [--check]`: writes the documents that are made from the code.

With `--check` it writes nothing, names what differs, and exits with 1 if anything does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import msgspec

from cli.documents import (
    crash_points_document,
    events_document,
    kafka_document,
    rejections_document,
)
from cli.public_cases import public_cases_document
from cli.requirement_tests import requirements_document

USAGE = "usage: python -m cli.generate [--check]"
DIFF_LINES_MAX = 40


def openapi_document() -> str:
    from api.app import DOCUMENT

    return msgspec.json.format(msgspec.json.encode(DOCUMENT), indent=2).decode() + "\n"


DOCUMENTS: dict[str, Callable[[], str]] = {
    "docs/events.md": events_document,
    "docs/kafka.md": kafka_document,
    "docs/rejections.md": rejections_document,
    "docs/crash-points.md": crash_points_document,
    "docs/openapi.json": openapi_document,
    "docs/public-cases.md": public_cases_document,
    "docs/requirements.md": requirements_document,
}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(USAGE, file=sys.stderr)
        return 2
    root = Path(__file__).resolve().parent.parent
    differing = [
        name
        for name, made in DOCUMENTS.items()
        if not brought_up_to_date(root / name, made(), write=not arguments)
    ]
    if differing:
        print(f"{', '.join(differing)}: run `make generate`", file=sys.stderr)
    return 1 if differing else 0


def brought_up_to_date(place: Path, text: str, *, write: bool) -> bool:
    """False: it differs, and was left as it is."""
    there = place.read_text(encoding="utf-8") if place.exists() else ""
    if there == text:
        return True
    if write:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        print(f"wrote {place.name}")
        return True
    lines = list(unified_diff(there.splitlines(), text.splitlines(), "stored", "made", lineterm=""))
    print("\n".join([str(place), *lines[:DIFF_LINES_MAX]]), file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
