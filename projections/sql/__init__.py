"""SQL by name: one statement a file, parameters only."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, LiteralString


@cache
def statement(name: str) -> LiteralString:
    """`queries/job` is the file `queries/job.sql` beside this one."""
    # Our own files are as good as literals.
    text: Any = files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return text  # type: ignore[no-any-return]
