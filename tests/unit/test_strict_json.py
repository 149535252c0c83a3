from __future__ import annotations

import json

import pytest

from ledger.domain.strict_json import (
    MalformedJson,
    UnsafeInteger,
    check,
    check_integers,
    check_text,
)

REFUSED = {
    "empty": b"",
    "blank": b"  ",
    "bad UTF-8": b'"\xff"',
    "an overlong form": b'"\xc0\x80"',
    "a surrogate as bytes": b'"\xed\xa0\x80"',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "NaN": b'{"a":NaN}',
    "Infinity": b"[Infinity]",
    "-Infinity": b"-Infinity",
    "1e400": b"[1e400]",
    "-1e200000": b"-1e200000",
    "400 digits": b"1" * 400,
    "400 digits and a point": b"1" * 400 + b".5",
    "a long fraction": b"0." + b"3" * 400,
    "duplicate keys": b'{"a":1,"a":2}',
    "duplicate keys by escape": b'{"a":1,"\\u0061":2}',
    "duplicate keys deep inside": b'[{"x":{"a":1,"b":2,"a":1}}]',
    "NUL": b'"\\u0000"',
    "NUL in a key": b'{"\\u0000":1}',
    "a raw NUL": b'"\x00"',
    "a raw line feed in a text": b'"\n"',
    "a lone high surrogate": b'"\\ud800"',
    "a lone low surrogate": b'"\\uDC00"',
    "a lone surrogate in a key": b'{"\\udfff":1}',
    "two high surrogates": b'"\\ud83d\\ud83d"',
    "surrogates the wrong way round": b'"\\ude00\\ud83d"',
    "a high surrogate, then a text that looks like a low one": b'"\\ud83d\\\\ude00"',
    "too deep": b"[" * 65 + b"]" * 65,
    "far too deep": b"[" * 100_000 + b"]" * 100_000,
    "too deep with objects": b'{"a":' * 65 + b"1" + b"}" * 65,
    "too deep behind brackets in texts": b'["]",' * 70 + b"1" + b',"["]' * 70,
    "too deep behind brackets and escapes": b'["\\"]",' * 70 + b"1" + b',"["]' * 70,
    "never closed": b"[" * 70,
    "a trailing comma": b"[1,]",
    "two values": b"{} {}",
    "a comment": b"{} // no",
    "a single quote": b"{'a':1}",
    "a leading zero": b"01",
    "a bare plus": b"+1",
    "a lone backslash": b'"\\"',
    "an unknown escape": b'"\\x41"',
}

ACCEPTED = {
    "an escaped backslash before u0000": rb'"\\u0000"',
    "a surrogate pair": b'"\\ud83d\\ude00"',
    "two pairs": b'"\\ud83d\\ude00\\ud83d\\ude00"',
    "non-ASCII": '{"Grüße":"日本 😀"}'.encode(),
    "numbers": b"[0,-0,1.5,-2e-3,1E5,9007199254740991,12345678901234567890]",
    "brackets in a text": b'"' + b"[" * 500 + b'"',
    "brackets and quotes in a text": b'["' + b'\\"[' * 500 + b'"]',
    "digits in a text": b'"' + b"7" * 500 + b'"',
    "64 levels": b"[" * 64 + b"]" * 64,
    "many empty lists": b"[" + b",".join([b"[]"] * 1000) + b"]",
    "space around": b' \t\r\n{"a" : [ true , false , null ] }\n',
    "a control character as escape": b'"\\u0001\\u001f"',
    "DEL and line separators": '"\x7f\u2028"'.encode(),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_no_store_could_keep_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedJson):
        check(data)


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_strict_json_means_what_json_loads_means(data: bytes) -> None:
    assert check(data) == json.loads(data)


def test_the_reason_quotes_none_of_the_content() -> None:
    with pytest.raises(MalformedJson) as refused:
        check(b'{"password":"hunter2","password":"hunter3"}')
    assert "hunter" not in str(refused.value)
    assert "password" not in str(refused.value)


def test_each_bound_is_the_callers() -> None:
    assert check(b"[[1]]", bytes_max=5, depth_max=2) == [[1]]
    with pytest.raises(MalformedJson, match="longer than 4 bytes"):
        check(b"[[1]]", bytes_max=4)
    with pytest.raises(MalformedJson, match="deeper than 1"):
        check(b"[[1]]", depth_max=1)
    with pytest.raises(MalformedJson, match="more than 20 digits"):
        check(b"123456789012345678901", digits_max=20)
    many = json.dumps({f"k{i}": ":" for i in range(100)}).encode()
    assert check(many, keys_max=100)
    with pytest.raises(MalformedJson, match="more than 99 keys"):
        check(many, keys_max=99)


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        (2**53, ""),
        (-(2**53), ""),
        ({"a": [1, {"b": 2**60}]}, "/a/1/b"),
        ({"a/b": {"c~d": 2**53}}, "/a~1b/c~0d"),
    ],
)
def test_an_integer_without_canonical_form_is_pointed_at(value: object, pointer: str) -> None:
    with pytest.raises(UnsafeInteger) as refused:
        check_integers(value)
    assert refused.value.pointer == pointer


def test_the_largest_safe_integers_pass() -> None:
    check_integers({"a": [2**53 - 1, -(2**53 - 1), True, 1e300, "9" * 40, None]})


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "x\udfff"])
def test_a_text_with_nul_or_a_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(MalformedJson):
        check_text(text)


def test_any_other_text_passes() -> None:
    check_text("Grüße 😀\r\n\x01\x7f")
