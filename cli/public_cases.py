"""What went wrong for users of other job systems, and what happens here: read off the docstrings of
the tests in `tests/public_cases`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("tests/public_cases")
NAME = re.compile(r"test_c(\d\d)_\w+\.py")
CITED = re.compile(r"[\w.-]+/[\w.-]+ (PR )?#\d+")

HEAD = """# Public cases

Made by `make generate` from the tests' docstrings; `make check` fails when it is not true.

Faults that users of other job systems have reported in public, in our words. Each is a test that
fails if the whole kind of fault came back. What G… promises: [guarantees](guarantees.md).

| case | the report | what happens here | test |
|---|---|---|---|
"""


def public_cases_document() -> str:
    """Raises ValueError for a test without a report, or a number that is used twice."""
    root = Path(__file__).resolve().parent.parent
    rows: dict[int, str] = {}
    for number, place, docstring in _cases(root):
        report, blank, here = docstring.partition("\n\n")
        if not blank or CITED.match(report) is None:
            raise ValueError(f"{place}: its docstring cites no report, or does not say what we do")
        if number in rows:
            raise ValueError(f"{place}: case {number} has a test already")
        link = f"[{place.name}](../{place})"
        rows[number] = f"| {number} | {_cell(report)} | {_cell(here)} | {link} |\n"
    return HEAD + "".join(row for _, row in sorted(rows.items()))


def _cases(root: Path) -> Iterator[tuple[int, Path, str]]:
    for place in sorted((root / FOLDER).glob("test_*.py")):
        named = NAME.fullmatch(place.name)
        if named is None:
            raise ValueError(f"{place}: name it test_cNN_….py")
        docstring = ast.get_docstring(ast.parse(place.read_text(encoding="utf-8")))
        yield int(named[1]), place.relative_to(root), docstring or ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
