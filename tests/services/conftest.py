"""What tests of the read models start from."""

from __future__ import annotations

import pytest

from projections.schema import migrate


@pytest.fixture
def views(dsn: str) -> str:
    """The address of a database with empty read models."""
    migrate(dsn)
    return dsn
