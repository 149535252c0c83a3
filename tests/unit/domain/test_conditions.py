"""Conditions: what may be written, and that whatever is undefined makes them false."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.conditions import LENGTH_MAX, Condition, compiled
from ledger.domain.wrong import Wrong

pytestmark = pytest.mark.rule("S2.5")

PAYLOAD: dict[str, Any] = {
    "count": 3,
    "share": 0.5,
    "whole": 1.0,
    "text": "abc",
    "list": [1, 2, 3],
    "nothing": None,
    "yes": True,
    "deep": {"er": {"est": 1}},
    "all": 1,
    "a b": 1,
}
LABELS = {"user": "u-1"}
STEPS: dict[str, Any] = {
    "check": {"status": "succeeded", "output": {"score": 0.7}},
    "draft": {"status": "skipped", "output": None},
}


def condition(text: str) -> Condition:
    found = compiled(text)
    assert isinstance(found, Condition), found
    return found


def holds(text: str) -> bool:
    return condition(text).holds(PAYLOAD, LABELS, STEPS)


def refusal(text: str) -> str:
    found = compiled(text)
    assert isinstance(found, Wrong)
    assert found.pointer == ""
    assert 0 < len(found.message) < 300
    return found.message


@pytest.mark.parametrize(
    "text",
    [
        "payload.count == 3",
        "payload.count == 3.0",
        "payload.whole == 1",
        "payload.count > 2.5 && payload.share < 1",
        "payload.text == 'abc' || false",
        'payload["text"] == "abc"',
        "payload['a b'] == 1",
        "payload.deep.er.est + 1 == 2",
        "double(payload.count) * payload.share == 1.5",
        "payload.list[0] == 1 && 3 in payload.list",
        "size(payload.list) == 3 && payload.text.size() == 3",
        "payload.nothing == null",
        "payload.yes",
        "!(payload.count == 4)",
        "payload.yes ? payload.count == 3 : false",
        "has(payload.text) && !has(payload.missing)",
        "payload.text.startsWith('a') && payload.text.endsWith('c') && payload.text.contains('b')",
        "payload.text.matches('^[a-c]+$')",
        r"payload.text.matches(r'^\w{3}$')",
        "labels.user == 'u-1'",
        "'user' in labels",
        "steps.check.status == 'succeeded'",
        "steps['check'].output.score >= 0.7",
        "steps.draft.output == null",
        "payload.all == 1",
        "'map(x)' != payload.text // exists(",
        "payload.missing == 1 || payload.count == 3",
        "string(payload.count) == '3' && int('3') == payload.count",
        "true",
    ],
)
def test_what_is_so_holds(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "payload.count == 4",
        "payload.missing",
        "payload.missing == 1",
        "payload.missing != 1",
        "!payload.missing",
        "!(payload.missing == 1)",
        "payload.missing == payload.absent",
        "payload.missing == null",
        "payload.missing ? true : true",
        "payload.missing.deeper == 1",
        "payload.nothing.deeper == 1",
        "payload.text.deeper == 1",
        "payload.list[3] == 1",
        "payload.list[-1] == 3",
        "payload.list['0'] == 1",
        "payload.text > 1",
        "payload.text + 1 == 2",
        "payload.count + payload.share > 1",
        "payload.count",
        "payload.text",
        "payload.count ? true : true",
        "payload.count / 0 == 1",
        "payload.count + 9223372036854775807 > 0",
        "int(payload.text) == 1",
        "int(1e300 * double(payload.count)) > 0",
        "payload.count.matches('3')",
        "payload.text.startsWith(1)",
        "size(payload.count) == 1",
        "labels.team == 'x'",
        "steps.gone.status == 'succeeded'",
        "steps.draft.output.score > 0",
        "has(payload.text.deeper)",
    ],
)
def test_what_is_undefined_or_of_another_type_makes_it_false(text: str) -> None:
    assert not holds(text)


@pytest.mark.parametrize("macro", ["all", "exists", "exists_one", "existsOne", "map", "filter"])
@pytest.mark.parametrize(
    "call",
    ["payload.list.{}(x, x > 0)", "payload.list\n. {} (payload, payload > 0)", "[1].{}(x, true)"],
)
def test_macros_that_walk_over_lists_are_refused(macro: str, call: str) -> None:
    assert refusal(call.format(macro)).startswith(f"{macro}(…)")


@pytest.mark.parametrize(
    "text",
    [
        "now() > 1",
        "timestamp('2026-01-01T00:00:00Z') == payload.at",
        "duration('1h') > duration('1s')",
        "type(payload.count) == int",
        "dyn(payload.count) == 1",
        "bytes(payload.text) == b'abc'",
        "matches(payload.text, 'a')",
        "payload.text.has()",
        "payload.text.string()",
        "payload.frobnicate()",
        "uint(payload.count) == 3u",
    ],
)
def test_only_the_listed_functions_can_be_called(text: str) -> None:
    assert "(…)" in refusal(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "character 1"),
        ("payload.count ==", "character 17"),
        ("payload.count = 3", "'='"),
        ("payload.count == 3;", "';'"),
        ("payload.text == abc", "quote a text"),
        (".payload.count == 3", "leading dot"),
        ("b'abc' == payload.text", "b: only"),
        ("'''abc''' == payload.text", "triple"),
        ("payload{count: 3}", "messages"),
        ("true\0", "character 5"),
        ("т == 1", "character 1"),
        ("payload.text == 'a\nb'", "character 17"),
        ("payload[?'count'] == 3", "'[?'"),
        ("cel.bind(x, 1, x == 1)", "cel: only"),
        ("optional.of(payload.count).hasValue()", "optional: only"),
        ("9223372036854775808 > payload.count", "invalid int"),
        ("(" * 120 + "true" + ")" * 120, "deep"),
        ("1", "neither true nor false"),
        ("'true'", "neither true nor false"),
        ("1 / 0 == 1", "undefined"),
    ],
)
def test_what_is_not_of_the_grammar_is_refused_with_what_to_change(text: str, says: str) -> None:
    assert says in refusal(text)


def test_five_hundred_characters_fit_and_one_more_does_not() -> None:
    text = "payload.count == 3"
    longest = text + " " * (LENGTH_MAX - len(text))
    assert holds(longest)
    assert f"{LENGTH_MAX} characters" in refusal(longest + " ")


@pytest.mark.parametrize(
    "text",
    [
        "steps == {}",
        "size(steps) == 1",
        "'check' in steps",
        "steps.check == null",
        "steps.check.error == 'x'",
        "steps[payload.text].status == 'x'",
        "steps['ch' + 'eck'].status == 'x'",
        r"steps['ch\x65ck'].status == 'x'",
    ],
)
def test_steps_are_asked_for_by_name_and_only_for_status_and_output(text: str) -> None:
    assert ".status and .output" in refusal(text)


@pytest.mark.parametrize(
    ("text", "steps", "pointers"),
    [
        ("true", [], []),
        ("payload.a.b == 1", [], ["/payload/a/b"]),
        ("payload['a/b'].c[0].d == 1", [], ["/payload/a~1b/c"]),
        ("payload.a == 1 && payload.a.b == 2", [], ["/payload/a"]),
        ("payload.a.matches('x')", [], ["/payload/a"]),
        ("size(payload) == 1", [], ["/payload"]),
        (r"payload['a\'b'].c == 1", [], ["/payload"]),
        ("payload.list[payload.at] == 1", [], ["/payload/at", "/payload/list"]),
        ("payload.steps.x == 1", [], ["/payload/steps/x"]),
        ("payload.a == 'steps.x.status'", [], ["/payload/a"]),
        (
            "steps.a.status == 'failed' || steps['b'].output.x > labels.y.size()",
            ["a", "b"],
            ["/labels/y", "/steps/a/status", "/steps/b/output/x"],
        ),
    ],
)
def test_a_condition_tells_what_it_looks_at(
    text: str, steps: list[str], pointers: list[str]
) -> None:
    found = condition(text)
    assert (sorted(found.steps), list(found.pointers)) == (steps, pointers)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("payload.text.matches('(')", "unclosed group"),
        ("payload.text.matches('(?=a)')", "look-around"),
        ("payload.text.matches('a)|(b')", "unopened group"),
        ("payload.text.matches(payload.pattern)", "as a text"),
        ("payload.text.matches('a' + 'b')", "as a text"),
        ("payload.text.matches()", "as a text"),
        (r"payload.text.matches(r'\w{200}')", "too large"),
        (r"payload.text.matches('((x{100}){100}){100}')", "larger than"),
        (" || ".join([r"payload.text.matches(r'\w{9}\W{9}')"] * 9), "too large"),
        (r"payload.text.matches(r'(?x) \w{50} # ')", "too large"),
    ],
)
def test_patterns_are_bounded_and_stand_in_the_text(text: str, says: str) -> None:
    assert says in refusal(text)


def test_an_ordinary_pattern_is_let_through() -> None:
    assert not holds(r"payload.text.matches(r'^[\w.+-]+@[\w-]+\.[a-z]{2,10}$')")
    assert holds("payload.text.matches('(?x) ^abc$ # three letters')")


def test_a_pattern_that_stops_others_does_not_stop_this_engine() -> None:
    found = condition("payload.text.matches('^(a+)+$')")
    assert not found.holds({"text": "a" * 50_000 + "b"}, {}, {})


def test_it_sees_of_a_payload_what_it_would_see_of_all() -> None:
    found = condition("has(payload.a.b) && payload.a.b == payload['c'] && size(payload.list) == 2")
    big = {"a": {"b": 1, "x": [0] * 1000}, "c": 1, "list": [1, 2], "rest": "y" * 10_000}
    assert found.holds(big, LABELS, STEPS)
    assert not found.holds([], LABELS, STEPS)
    assert not found.holds(None, LABELS, STEPS)
    assert not found.holds({"a": 1, "c": 1, "list": [1, 2]}, LABELS, STEPS)


def test_integers_beyond_64_bits_raise_nothing() -> None:
    assert not condition("payload.count + 1 == 5").holds({"count": 2**200}, {}, {})


def test_several_threads_may_ask_at_once() -> None:
    found = condition("payload.count > 10 && steps.check.output.score > 0.5")
    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(lambda n: found.holds({"count": n}, {}, STEPS), range(1000))
    assert list(asked) == [count > 10 for count in range(1000)]


def test_the_same_text_is_compiled_once() -> None:
    assert compiled("payload.count == 7") is compiled("payload.count == 7")


WORDS = (
    "payload labels steps .check .status .output .count .text .list .missing [0] ['a'] ( ) [ ] { }"
    " , : ? + - * / % == != < <= > >= && || ! in 1 0 1.5 1u 'x' \"y\" r'z' true false null has("
    " size( .size() .matches('x') .contains( string( int( double( .map( .all( x // \n \\ ' \""
)
PIECES = st.sampled_from(WORDS.split(" "))


@given(st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=60)))
@settings(max_examples=500, deadline=None)
def test_any_text_is_refused_or_answers_true_or_false(text: str) -> None:
    found = compiled(text)
    if isinstance(found, Wrong):
        assert found.message
    else:
        assert found.holds(PAYLOAD, LABELS, STEPS) in (True, False)
        assert found.holds(None, {}, {}) in (True, False)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_any_payload_is_answered_and_a_value_is_itself(payload: Any) -> None:
    whole = condition("payload == payload.a || payload.a.b > 1 || payload.a[0] == payload.b")
    assert whole.holds(payload, {}, {}) in (True, False)
    assert condition("payload == payload").holds(payload, {}, {})
