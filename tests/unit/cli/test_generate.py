"""The documents that are made from the code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cli.documents import events_document, kafka_document, rejections_document
from cli.examples import example
from cli.generate import brought_up_to_date, main
from ledger.domain import commands, events
from ledger.domain.rejections import Rejection
from ledger.log.entry_codec import event_from


def test_the_stored_documents_are_those_that_the_code_makes() -> None:
    assert main(["--check"]) == 0


def test_a_document_that_differs_is_named_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "events.md"
    place.write_text("old\n")

    assert not brought_up_to_date(place, "new\n", write=False)

    assert place.read_text() == "old\n"
    assert "-old" in (said := capsys.readouterr().err)
    assert "+new" in said


@pytest.mark.parametrize("name", events.TYPES)
def test_an_example_is_an_event_that_the_log_reads(name: str) -> None:
    stored = example(events.TYPES[name])

    read = event_from(name.encode(), b"key", stored)

    assert type(read) is events.TYPES[name]
    assert msgspec.json.encode(read) == stored


@pytest.mark.parametrize("name", commands.TYPES)
def test_an_example_is_a_command_that_an_owner_reads(name: str) -> None:
    msgspec.json.decode(example(commands.TYPES[name]), type=commands.TYPES[name])


def test_every_type_and_every_code_is_listed() -> None:
    said = events_document() + kafka_document()

    assert all(f"### `{name}`" in said for name in (*events.TYPES, *commands.TYPES))
    assert all(f"`{code}`" in rejections_document() for code in Rejection)
