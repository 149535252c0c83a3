"""Of the unit tests: pure, no server, no clock."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rule(*numbers): the requirements that a test is about")
