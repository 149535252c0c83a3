"""SQL by name: one statement a file, parameters only."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import LiteralString, cast


@cache
def statement(name: str) -> LiteralString:
    """`queries/job` is the file `queries/job.sql` beside this one."""
    text = files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return cast(LiteralString, text)
