"""Schemas: which are taken, what they say of a value, and that no check can take for ever."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from ledger.domain.schemas import (
    ERRORS_MAX,
    MESSAGE_MAX,
    PATTERNS_MAX,
    POINTER_MAX,
    SCHEMA_BYTES_MAX,
    UNFOLDED_MAX,
    Schema,
    compiled,
)
from ledger.domain.wrong import Wrong

pytestmark = pytest.mark.rule("S2.1")

REQUEST = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 5},
        "count": {"type": "integer", "minimum": 0},
        "a/b": {"properties": {"~c": {"type": "array", "items": {"type": "string"}}}},
    },
    "required": ["text"],
    "additionalProperties": False,
}


def schema(content: Any) -> Schema:
    found = compiled(json.dumps(content).encode())
    assert isinstance(found, Schema), found
    return found


def refusal(content: Any) -> Wrong:
    found = compiled(json.dumps(content).encode())
    assert isinstance(found, Wrong)
    assert 0 < len(found.message) <= MESSAGE_MAX
    return found


def pointers(content: Any, value: object) -> list[str]:
    return [error.pointer for error in schema(content).errors(value)]


# --- Values --------------------------------------------------------------------------------------
def test_what_meets_the_schema_has_no_errors() -> None:
    assert schema(REQUEST).errors({"text": "abc", "count": 3, "a/b": {"~c": ["x"]}}) == ()


def test_each_error_has_the_place_of_what_is_wrong() -> None:
    value = {"count": -1, "a/b": {"~c": ["x", 1]}, "other~": 1}
    assert sorted(pointers(REQUEST, value)) == ["/a~1b/~0c/1", "/count", "/other~0", "/text"]


def test_raw_bytes_are_as_good_as_the_value() -> None:
    assert schema(REQUEST).errors(Raw(b'{"text":"abc"}')) == ()
    assert schema(REQUEST).errors(Raw(b"{}")) == (Wrong("/text", "required"),)


@pytest.mark.parametrize("value", [1, 1.0, -0.0, 1e3, 2**53, 2**70, 2.0**80])
def test_a_number_without_a_fraction_is_an_integer_however_it_is_written(value: float) -> None:
    assert schema({"type": "integer"}).errors(value) == ()


@pytest.mark.parametrize("value", [1.5, True, "1", None])
def test_what_has_a_fraction_or_is_no_number_is_no_integer(value: object) -> None:
    assert pointers({"type": "integer"}, value) == [""]


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        ({"maximum": 2**53}, 2**53, 2**53 + 1),
        ({"const": 1}, 1.0, True),
        ({"multipleOf": 0.1}, 0.3, 0.35),
        ({"enum": [2**64]}, 2**64, 2**64 + 1),
        ({"uniqueItems": True}, [1, True], [1, 1.0]),
        ({"maxLength": 2}, "👍👍", "👍👍👍"),
    ],
)
def test_numbers_and_texts_are_compared_as_json_not_as_python(
    content: Any, good: object, bad: object
) -> None:
    assert pointers(content, good) == []
    assert pointers(content, bad) == [""]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", "2026-03-01T00:00:00Z", "2026-03-01"),
        ("date", "2024-02-29", "2026-02-29"),
        ("email", "a@example.org", "a"),
        ("uuid", "0192d3a4-0000-7000-8000-000000000000", "0192"),
        ("uri", "https://example.org/", "//"),
        ("something-of-ours", "x", None),
    ],
)
def test_known_formats_are_asserted_and_others_are_notes(
    name: str, good: str, bad: str | None
) -> None:
    assert pointers({"format": name}, good) == []
    if bad is not None:
        assert pointers({"format": name}, bad) == [""]


def test_messages_and_pointers_are_short_and_do_not_quote_the_value() -> None:
    secret = "s3cret" * 1000
    content = {
        "properties": {
            "text": {"maxLength": 3, "pattern": "^a", "enum": ["b" * 500], "minimum": 1}
        },
        "additionalProperties": {"not": {}},
        "anyOf": [{"required": ["x"]}],
    }
    errors = schema(content).errors({"text": secret, "k" * 1000: secret})
    assert len(errors) >= 4
    for error in errors:
        assert "s3cret" not in error.message
        assert len(error.message) <= MESSAGE_MAX
        assert len(error.pointer) <= POINTER_MAX


def test_a_key_too_long_for_a_pointer_is_told_by_its_parent() -> None:
    value = {"a": {"k" * 300: 1}}
    content = {"properties": {"a": {"additionalProperties": {"type": "string"}}}}
    assert pointers(content, value) == ["/a"]


def test_no_more_errors_are_told_than_asked_for() -> None:
    texts = schema({"items": {"type": "string"}})
    assert len(texts.errors([1] * 100)) == ERRORS_MAX
    assert [error.pointer for error in texts.errors([1] * 100, many=2)] == ["/0", "/1"]


def test_of_a_large_value_the_first_error_is_told() -> None:
    assert pointers({"items": {"type": "string"}}, ["a", *range(30_000)]) == ["/1"]
    alternatives = {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    assert pointers(alternatives, ["a", *range(100)])[0] == "/1"
    told = schema(alternatives).errors(list(range(30_000)))
    assert [error.pointer for error in told] == [""]
    assert "too large to say where" in told[0].message


def test_several_threads_may_ask_at_once() -> None:
    found = schema(REQUEST)
    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(lambda n: found.errors({"text": "a" * (n % 10)}), range(1000))
    assert [bool(errors) for errors in asked] == [n % 10 > 5 for n in range(1000)]


# --- Schemas that are none -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        ({"type": "strin"}, "/type"),
        ({"properties": {"a/b": {"minimum": "1"}}}, "/properties/a~1b/minimum"),
        ({"required": "text"}, "/required"),
        ({"items": [{}]}, "/items"),
        ([], ""),
        ("string", ""),
        (1, ""),
        (None, ""),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema"),
        ({"$schema": 1}, "/$schema"),
        ({"$schema": []}, "/$schema"),
        ({"pattern": "("}, "/pattern"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "/properties/a/pattern"),
        ({"pattern": r"(a)\1"}, "/pattern"),
        ({"pattern": r"\p{L}{100}"}, "/pattern"),
        ({"patternProperties": {"(": {}}}, "/patternProperties/("),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(content: Any, pointer: str) -> None:
    assert refusal(content).pointer == pointer


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":1,"a":2}', b'{"type":NaN}', b"\xff", b"[" * 99])
def test_what_is_no_strict_json_is_no_schema(data: bytes) -> None:
    assert isinstance(compiled(data), Wrong)


def test_a_schema_is_bounded_in_size() -> None:
    data = b'{"title":"' + b"x" * (SCHEMA_BYTES_MAX - 12) + b'"}'
    assert len(data) == SCHEMA_BYTES_MAX
    assert isinstance(compiled(data), Schema)
    assert isinstance(compiled(data + b" "), Wrong)


def test_a_schema_is_bounded_in_patterns() -> None:
    content = {"properties": {f"p{n}": {"pattern": "a"} for n in range(PATTERNS_MAX)}}
    assert pointers(content, {"p3": "b"}) == ["/p3"]
    assert "patterns" in refusal({**content, "pattern": "b"}).message


@pytest.mark.parametrize("content", [True, {}, {"title": "x"}, Raw(b'{ "type" : "string" }')])
def test_small_schemas_are_schemas(content: Any) -> None:
    data = content if isinstance(content, Raw) else json.dumps(content).encode()
    found = compiled(data)
    assert isinstance(found, Schema)
    assert found.errors("x") == ()


def test_the_same_bytes_are_compiled_once() -> None:
    assert compiled(b'{"type":"null"}') is compiled(Raw(b'{"type":"null"}'))


# --- References ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        ({"$ref": "http://example.org/x"}, "/$ref"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "/$ref"),
        ({"$ref": "file:///etc/passwd"}, "/$ref"),
        ({"$ref": "other.json#/a"}, "/$ref"),
        ({"$ref": ""}, "/$ref"),
        ({"$dynamicRef": "http://example.org/x#a"}, "/$dynamicRef"),
        ({"$id": "http://example.org/x", "$ref": "y"}, "/$ref"),
        ({"$defs": {"never used": {"$ref": "#/$defs/gone"}}}, "/$defs/never used/$ref"),
        ({"properties": {"a": {"$ref": "#nowhere"}}}, "/properties/a/$ref"),
        ({"$ref": "#/const", "const": {}}, "/$ref"),
        ({"items": {"$id": "http://example.org/x"}}, "/items/$id"),
    ],
)
def test_a_reference_to_anything_but_a_part_of_the_schema_is_refused(
    content: Any, pointer: str
) -> None:
    assert refusal(content).pointer == pointer


@pytest.mark.parametrize(
    "content",
    [
        {"$ref": "#/$defs/text", "$defs": {"text": {"type": "string"}}},
        {"$ref": "#/definitions/text", "definitions": {"text": {"type": "string"}}},
        {"$ref": "#text", "$defs": {"x": {"$anchor": "text", "type": "string"}}},
        {"$dynamicRef": "#text", "$defs": {"x": {"$dynamicAnchor": "text", "type": "string"}}},
        {"$ref": "#/$defs/a%25b~1c", "$defs": {"a%b/c": {"type": "string"}}},
        {"$id": "http://example.org/x", "$ref": "#/$defs/t", "$defs": {"t": {"type": "string"}}},
        {"properties": {"$ref": {"type": "integer"}}, "type": "string"},
        {"enum": ["x", {"$ref": "http://example.org/y"}]},
    ],
)
def test_a_reference_into_the_schema_is_followed(content: Any) -> None:
    assert pointers(content, "x") == []
    assert pointers(content, 1) == [""]


def test_a_tree_may_refer_to_itself() -> None:
    tree = {
        "properties": {"name": {"type": "string"}, "below": {"items": {"$ref": "#"}}},
        "additionalProperties": False,
    }
    value: dict[str, Any] = {"name": 1}
    for _ in range(15):
        value = {"name": "x", "below": [value]}
    assert pointers(tree, value) == ["/below/0" * 15 + "/name"]


@pytest.mark.parametrize(
    "content",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"if": {"$ref": "#"}, "then": {"$ref": "#"}},
        {"$dynamicAnchor": "x", "anyOf": [{"$dynamicRef": "#x"}]},
    ],
)
def test_a_circle_of_references_is_answered(content: Any) -> None:
    assert schema(content).errors({"a": [1]}) == ()


def doubling(keyword: str, times: int) -> dict[str, Any]:
    """As many ways to the last definition as two to the power of `times`."""

    def twice(n: int) -> dict[str, Any]:
        return {keyword: [{"$ref": f"#/$defs/d{n}"}, {"$ref": f"#/$defs/d{n}"}]}

    definitions = {f"d{n}": twice(n + 1) for n in range(times)}
    return {"$defs": {**definitions, f"d{times}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_without_end_are_refused(keyword: str) -> None:
    assert "bounded time" in refusal(doubling(keyword, 400)).message
    assert "bounded time" in refusal(doubling(keyword, 12)).message
    assert pointers(doubling(keyword, 3), 1)[0] == ""


def test_references_that_lie_too_deep_are_refused() -> None:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1500)}
    assert "too deep" in refusal({"$defs": {**chain, "d1500": {}}, "$ref": "#/$defs/d0"}).message


def test_a_large_schema_without_such_references_is_taken() -> None:
    content = {"properties": {f"p{n}": {"type": "string"} for n in range(1500)}}
    assert UNFOLDED_MAX > 1500
    assert pointers(content, {"p7": 1}) == ["/p7"]


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def test_alternatives_that_go_on_below_are_checked_at_every_depth() -> None:
    either = {
        "anyOf": [
            {"type": "array", "items": {"$ref": "#"}, "minItems": 0},
            {"type": "array", "items": {"$ref": "#"}, "maxItems": 9},
            {"type": "string"},
        ]
    }
    assert pointers(either, nested(3)) == [""]
    told = schema(either).errors(nested(60))
    assert [error.pointer for error in told] == [""]
    assert "too large to say where" in told[0].message


# --- Against another implementation --------------------------------------------------------------
CONTENTS = [
    REQUEST,
    {"type": "array", "items": {"type": ["integer", "null"]}, "uniqueItems": True, "maxItems": 3},
    {"anyOf": [{"type": "string"}, {"type": "number", "multipleOf": 0.5}]},
    {"oneOf": [{"minimum": 2}, {"maximum": 4}], "type": "number"},
    {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"not": {"const": None}}},
    {
        "properties": {"a": True},
        "allOf": [{"properties": {"b": True}}],
        "unevaluatedProperties": False,
    },
    {
        "prefixItems": [{"type": "string"}],
        "contains": {"type": "integer"},
        "unevaluatedItems": False,
    },
]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text("abé", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "text", "count", "a/b", "~c"]), inner)
    ),
    max_leaves=8,
)


@given(st.sampled_from(CONTENTS), ANY)
@settings(max_examples=300, deadline=None)
def test_the_verdict_is_that_of_another_implementation(content: Any, value: Any) -> None:
    other = jsonschema.Draft202012Validator(content)
    assert (schema(content).errors(value) == ()) == other.is_valid(value)


KEYWORDS = [
    *("type", "properties", "items", "$ref", "$dynamicRef", "$defs", "anyOf", "allOf", "not"),
    *("enum", "dependencies", "pattern", "patternProperties", "required", "if", "$anchor", "a"),
]
LEAF: st.SearchStrategy[Any] = st.sampled_from(
    [True, None, 1, "#", "#/$defs/a", "#a", "a", "object", "(", {}, []]
)
SHAPED = st.recursive(
    LEAF,
    lambda inner: (
        st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4) | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


@given(SHAPED)
@settings(max_examples=300, deadline=None)
def test_any_json_is_a_schema_or_refused(content: Any) -> None:
    found = compiled(json.dumps(content).encode())
    if isinstance(found, Schema):
        assert isinstance(found.errors({"a": [1]}), tuple)
    else:
        assert found.message
