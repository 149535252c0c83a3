"""How many examples the costly properties try."""

from __future__ import annotations

import os

IS_DEEP = bool(os.environ.get("LEDGER_TEST_RANDOM"))
"""Then the examples are new ones, too: see `tests/conftest.py`."""


def examples(deep: int) -> int:
    """So many by hand, a third of them in every run: those are the same each time, and most of what
    they could find the first have found."""
    return deep if IS_DEEP else deep // 3
