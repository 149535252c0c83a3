"""SQL by name: one statement a file, parameters only. A line `-- include: queries/matching` stands
for the named file."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, LiteralString

_INCLUDE = re.compile(r"^[ ]*-- include: ([a-z_/]+)$", re.MULTILINE)


@cache
def statement(name: str) -> LiteralString:
    """`queries/job` is the file `queries/job.sql` beside this one."""
    # Our own files are as good as literals.
    text: Any = files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    text = _INCLUDE.sub(lambda found: statement(found[1]).rstrip(), text)
    return text  # type: ignore[no-any-return]
