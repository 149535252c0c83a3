from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.canonical import canonical, sha256_hex
from ledger.domain.strict_json import (
    MalformedJson,
    UnsafeInteger,
    check,
    check_integers,
    check_text,
)

SAFE = 2**53 - 1
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-SAFE, SAFE) | texts
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_the_fast_path_is_the_library(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(values)
def test_every_value_is_as_the_library_says(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


# From 2^53 on a double's form looks like an integer that is not safe.
@given(values.filter(lambda value: not any(abs(x) > SAFE for x in floats_of(value))))
def test_the_form_survives_a_strict_parse(value: object) -> None:
    form = canonical(value)
    assert canonical(check(form)) == form


@given(values)
def test_white_space_and_order_of_keys_do_not_change_the_hash(value: object) -> None:
    loose = json.dumps(value, indent=1, sort_keys=True).encode()
    assert sha256_hex(json.loads(loose)) == sha256_hex(value)


@pytest.mark.parametrize("value", [2**53, {"a": [-(2**53)]}, {"é": 2**70}, [1.5, 2**53]])
def test_an_unsafe_integer_has_no_canonical_form(value: object) -> None:
    with pytest.raises(UnsafeInteger):
        canonical(value)


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}, float("nan"), [1e999], {1: 2}, b"x"])
def test_what_is_no_json_value_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no JSON value"):
        canonical(value)


def floats_of(value: object) -> Iterator[float]:
    match value:
        case float():
            yield value
        case list() | dict():
            for item in value.values() if isinstance(value, dict) else value:
                yield from floats_of(item)


def texts_of(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from texts_of(item)
        case dict():
            for key, item in value.items():
                yield key
                yield from texts_of(item)


PIECES = r"""{ } [ ] " : , \ \u 0000 d800 dc00 1e400 NaN - 1 0 true null "a" é Infinity {} []"""
fragments = st.sampled_from([*PIECES.split(), " ", "\x00", "9" * 20])


@given(st.lists(fragments, max_size=30).map("".join) | st.text(max_size=30))
def test_the_decoder_is_total_and_never_laxer_than_the_standard_one(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    try:
        value = check(data, depth_max=8)
    except MalformedJson:
        return
    assert value == json.loads(data)
    for each in texts_of(value):
        check_text(each)
    try:
        check_integers(value)
    except UnsafeInteger:
        return
    canonical(value)
