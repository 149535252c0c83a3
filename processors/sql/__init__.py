"""The statements of the reactions, one a file; the search path says in which schema."""

from __future__ import annotations

from importlib.resources import files


def statement(name: str) -> bytes:
    return files(__package__).joinpath(f"{name}.sql").read_bytes()
