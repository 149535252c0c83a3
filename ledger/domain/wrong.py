"""What is wrong in a template, a schedule or a payload, told as a value."""

from __future__ import annotations

from typing import final

from msgspec import Struct


@final
class Wrong(Struct, frozen=True, gc=False):
    """One thing that is wrong, in words that say what to change."""

    pointer: str
    """JSON pointer, relative to what was checked; empty for the whole of it."""
    message: str
