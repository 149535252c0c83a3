"""What Postgres cannot hold is escaped and marked, and different texts stay different."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.storable import (
    BYTES_MAX,
    MARK,
    NUMBER_MAX,
    NUMBER_MIN,
    storable,
    tamed,
    tamed_items,
)
from tests.unit.projections.histories import random_history

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)


@given(ANY_TEXT)
def test_any_text_becomes_one_that_postgres_takes(text: str) -> None:
    stored = storable(text)
    assert "\x00" not in stored
    assert len(stored.encode()) <= BYTES_MAX


@given(ANY_TEXT, ANY_TEXT)
def test_different_texts_stay_different(one: str, other: str) -> None:
    assert (storable(one) == storable(other)) == (one == other)


@pytest.mark.parametrize("text", ["", "plain", "ünïcode", "\\u0000", "tab\tnewline\n", "日本"])
def test_a_plain_text_stays_as_it_is(text: str) -> None:
    assert storable(text) == text


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\x00b", MARK + "a\\u0000b"),
        ("\\\x00", MARK + "\\\\\\u0000"),
        ("\ud800", MARK + "\\ud800"),
        (MARK, MARK + MARK),
    ],
)
def test_a_broken_text_is_escaped_and_marked(text: str, stored: str) -> None:
    assert storable(text) == stored


def test_of_a_long_text_the_digest_stands_for_the_rest() -> None:
    one, other = storable("x" * 100_000), storable("x" * 100_001)
    assert one.startswith(MARK + "xxx")
    assert one != other
    assert len(one.encode()) <= BYTES_MAX


def test_numbers_and_surrogates_are_tamed_wherever_they_are() -> None:
    assert tamed([2**80, (-(2**80), True), {"a": "\ud800"}, 5, None]) == [
        NUMBER_MAX,
        (NUMBER_MIN, True),
        {"a": "?"},
        5,
        None,
    ]


@pytest.mark.parametrize("seed", range(5))
def test_what_rules_write_is_tame(seed: int) -> None:
    script = random_history(Random(seed), 150)
    assert tamed_items(script.items) == script.items
