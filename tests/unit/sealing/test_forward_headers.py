"""A caller's headers are checked before they are sealed, and open only for their own request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.sealing.forward_headers import (
    FORBIDDEN,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    HeadersRefused,
    checked_headers,
    context_of,
    open_headers,
    seal_headers,
)
from ledger.sealing.keyring import generate_key, keyring_from
from ledger.sealing.sealed import NotSealed, Tampered, seal
from ledger.sealing.secret import Secret

pytestmark = pytest.mark.rule("S4.3")

KEYRING = keyring_from(f"k1:{generate_key()}")
CANARY = "Bearer canary-90d1"


def test_headers_come_back_as_secrets_with_names_in_lower_case() -> None:
    given_headers = {"Authorization": CANARY, "X-User-Info": '{"id":"7"}', "x-empty": ""}
    sealed = seal_headers(KEYRING, given_headers, command_id="cmd_1")
    assert CANARY not in sealed
    assert open_headers(KEYRING, sealed, command_id="cmd_1") == {
        "authorization": Secret(CANARY),
        "x-user-info": Secret('{"id":"7"}'),
        "x-empty": Secret(""),
    }


def test_headers_of_one_request_do_not_open_for_another() -> None:
    sealed = seal_headers(KEYRING, {"authorization": CANARY}, command_id="cmd_1")
    with pytest.raises(Tampered):
        open_headers(KEYRING, sealed, command_id="cmd_2")


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_headers_of_the_connection_or_the_call_are_refused(name: str) -> None:
    with pytest.raises(HeadersRefused, match="belongs to") as raised:
        checked_headers({name.title(): "x"})
    assert raised.value.pointer == f"/forward_headers/{name.title()}"


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "\u00e4", "a\0", "x" * 129, 'a"', 7])
def test_a_name_is_a_token(name: object) -> None:
    with pytest.raises(HeadersRefused, match="name") as raised:
        checked_headers({name: CANARY})
    assert raised.value.pointer == "/forward_headers"


@pytest.mark.parametrize(
    "value",
    [
        "a\r\nX-Admin: 1",
        "a\nb",
        "a\rb",
        "a\0",
        " a",
        "a ",
        "a\t",
        "\u00e4",
        "a\x7f",
        7,
        None,
        ["a"],
    ],
)
def test_a_value_is_one_line_of_visible_text(value: object) -> None:
    with pytest.raises(HeadersRefused, match="value") as raised:
        checked_headers({"X-A~b": value})
    assert raised.value.pointer == "/forward_headers/X-A~0b"


@given(value=st.text(max_size=40) | st.text("ab \t\r\n", max_size=6))
def test_exactly_one_line_of_visible_text_passes(value: str) -> None:
    is_visible = all(" " <= character <= "~" or character == "\t" for character in value)
    assert passes(value) == (is_visible and value == value.strip())


def passes(value: str) -> bool:
    try:
        return checked_headers({"x": value}) == {"x": value}
    except HeadersRefused:
        return False


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(HeadersRefused, match="twice"):
        checked_headers({"X-A": "1", "x-a": "2"})


def test_so_many_headers_fit_and_no_more() -> None:
    headers = {f"x-{n}": "v" for n in range(HEADERS_MAX)}
    assert checked_headers(headers) == headers
    with pytest.raises(HeadersRefused, match="33 headers"):
        checked_headers({**headers, "x-more": "v"})


def test_so_many_bytes_fit_and_no_more() -> None:
    most = {"x": "v" * (HEADERS_BYTES_MAX - len('{"x":""}'))}
    assert open_headers(KEYRING, seal_headers(KEYRING, most, command_id="c"), command_id="c") == {
        "x": Secret(most["x"])
    }
    with pytest.raises(HeadersRefused, match="8193 bytes"):
        checked_headers({"x": most["x"] + "v"})
    with pytest.raises(HeadersRefused, match="bytes"):
        checked_headers({"x": '"' * (HEADERS_BYTES_MAX // 2)})


@pytest.mark.parametrize("headers", [None, [], "a: b", [["a", "b"]]])
def test_what_is_no_object_is_refused(headers: Any) -> None:
    with pytest.raises(HeadersRefused, match="object"):
        seal_headers(KEYRING, headers, command_id="cmd_1")


@pytest.mark.parametrize("plain", [b"", b"[]", b'{"host":"x"}', b'{"a":"b\\r\\nc"}', b"\xff"])
def test_what_another_writer_sealed_is_checked_again(plain: bytes) -> None:
    sealed = seal(KEYRING, plain, context=context_of("cmd_1"))
    with pytest.raises(NotSealed):
        open_headers(KEYRING, sealed, command_id="cmd_1")


def test_no_refusal_shows_a_value() -> None:
    for headers in (
        {"authorization": f"{CANARY}\n"},
        {f"{CANARY}:": "authorization"},
        {"host": CANARY},
        {"a": CANARY, "A": CANARY},
        {"a": CANARY * 1000},
    ):
        with pytest.raises(HeadersRefused) as raised:
            checked_headers(headers)
        shown = f"{raised.value!r} {raised.value} {raised.value.pointer}"
        assert CANARY not in shown
