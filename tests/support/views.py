"""Looks at the read models of several schemas in one database."""

from __future__ import annotations

from projections.compare import compare
from projections.schema import connect


def differences(dsn: str, left: str, right: str) -> list[str]:
    """Between the read models of two schemas."""
    with connect(dsn, schema=left) as one, connect(dsn, schema=right) as other:
        return [str(difference) for difference in compare(one, other)]
