"""Planted bugs: what each changes, and which tests have to notice it. Read from `bugs.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

ROOT = Path(__file__).parents[2]
BUGS = Path(__file__).with_name("bugs.toml")


class Stale(Exception):
    """The text that the bug changes is not there, or stands there more than once."""


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    old: str
    new: str


class Bug(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    wrong: str
    """What it breaks, in a sentence."""
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]
    """Tests, by file or id, of which one at least has to fail."""
    quick: bool = False
    """Whether it is planted in the ordinary tests, too: no servers, and seconds only."""


def bugs() -> dict[str, Bug]:
    """By name."""
    known: dict[str, dict[str, Any]] = tomllib.loads(BUGS.read_text())
    return {name: convert({"name": name, **fields}, Bug) for name, fields in known.items()}


def plant(bug: Bug, tree: Path) -> None:
    """Raises `Stale`, and has changed nothing then."""
    changed: dict[Path, str] = {}
    for edit in bug.edits:
        path = tree / edit.file
        text = changed[path] if path in changed else path.read_text() if path.is_file() else ""
        if (found := text.count(edit.old)) != 1:
            raise Stale(f"{bug.name}: its old text stands {found} times in {edit.file}, not once")
        changed[path] = text.replace(edit.old, edit.new)
    for path, text in changed.items():
        path.write_text(text)
