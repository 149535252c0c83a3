from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent

Golden = Callable[[str, object], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing: "
        "only for a type that no log holds yet",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, found)`: `found` is what the file of that name says."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, found: object) -> None:
        path = HERE / f"{name}.json"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(found, indent=2, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
        assert path.exists(), f"no {path.name}: run this file with --update-golden"
        assert json.loads(path.read_text(encoding="utf-8")) == found

    return compare
