from __future__ import annotations

from tests.unit.client.wire_conversation import GUIDE, brought_up_to_date


def test_the_guides_records_are_what_the_code_writes() -> None:
    """If not: `python -m tests.unit.client.wire_conversation`."""
    guide = GUIDE.read_text(encoding="utf-8")
    assert guide == brought_up_to_date(guide)
