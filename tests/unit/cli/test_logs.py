"""A log line is one JSON object, whatever it tells."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from cli import logs


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_no_text_can_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    forged = 'x\r\n{"event":"owner.took_over"}\u2028{"event":"y"}'

    structlog.get_logger("ours").warning("job.refused", detail=forged)
    logging.getLogger("theirs").warning("said %s", forged)

    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["job.refused", f"said {forged}"]
    assert json.loads(lines[0])["detail"] == forged


def test_an_exception_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()

    try:
        raise ValueError("first\nsecond")
    except ValueError:
        structlog.get_logger().exception("worker.crashed")

    [line] = capsys.readouterr().err.splitlines()
    assert "first\nsecond" in json.loads(line)["exception"]


def test_libraries_say_only_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("DEBUG")

    logging.getLogger("aiokafka.consumer").info("heartbeat")
    structlog.get_logger().debug("owner.turn")

    assert "heartbeat" not in (said := capsys.readouterr().err)
    assert "owner.turn" in said
