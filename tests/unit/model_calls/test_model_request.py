"""What goes out: URL, query, headers, and which of two headers wins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from ledger.sealing.forward_headers import HeadersRefused
from ledger.sealing.secret import Secret
from processors.model_calls.addresses import AddressRefused
from processors.model_calls.model_request import (
    ModelRequest,
    Target,
    api_key_header,
    redirected,
    request_of,
    url_of,
)
from processors.model_calls.outcomes import CallFailed

pytestmark = pytest.mark.rule("S4.1", "S4.3")

CANARY = "canary-1c0d"
BASE = "https://models.example/v1"
ORIGIN = "https://models.example:443"


def request(payload: Any = None, /, **given_: Any) -> ModelRequest | CallFailed:
    forward = given_.pop("forward", {})
    return request_of(
        Target(base_url=given_.pop("base_url", BASE), **given_),
        json.encode({} if payload is None else payload),
        idempotency_key="models.1:7",
        forward_headers={name: Secret(value) for name, value in forward.items()},
    )


def sent(payload: Any = None, /, **given_: Any) -> ModelRequest:
    found = request(payload, **given_)
    assert isinstance(found, ModelRequest)
    return found


def failed(payload: Any = None, /, **given_: Any) -> CallFailed:
    found = request(payload, **given_)
    assert isinstance(found, CallFailed)
    assert not found.retryable
    return found


@pytest.mark.parametrize(
    ("base", "route", "url"),
    [
        ("https://a.example", "", "https://a.example"),
        ("https://a.example", "/chat", "https://a.example/chat"),
        ("https://a.example/", "chat", "https://a.example/chat"),
        ("https://a.example/v1/", "/chat?api-version=2", "https://a.example/v1/chat?api-version=2"),
        ("https://a.example", "@evil.example/x", "https://a.example/@evil.example/x"),
        ("https://a.example", "//evil.example/x", "https://a.example/evil.example/x"),
        ("https://a.example", ":80/x", "https://a.example/:80/x"),
        ("HTTPS://A.Example.:443", "", "https://a.example"),
        ("https://b\u00fccher.example", "", "https://xn--bcher-kva.example"),
        ("http://[::1]:8080", "x", "http://[::1]:8080/x"),
    ],
)
def test_the_route_lies_below_the_base(base: str, route: str, url: str) -> None:
    assert str(url_of(base, route)) == url


@pytest.mark.parametrize(
    "base",
    [
        "",
        "a.example",
        "//a.example",
        "ftp://a.example",
        "file:///etc/passwd",
        "https://",
        "https:///x",
        f"https://user:{CANARY}@a.example",
        "https://a.example\\@b.example",
        "https://a\\b",
        "https://a.example/x#f",
        "https://a.example?x=1",
        "https://a.example:0",
        "https://a.example:65536",
        "https://a.example:x",
        "https://127.1",
        "https://2130706433",
        "https://0x7f.1",
        "https://\uff11\uff12\uff17.0.0.1",
        "https://%31%32%37.0.0.1",
        "https://[fe80::1%eth0]",
        "https://a b",
        "https://a.example/\r\nHost: b",
        "https://a.example/" + "x" * 9000,
    ],
)
def test_a_url_that_readers_may_disagree_about_is_refused(base: str) -> None:
    with pytest.raises(AddressRefused) as raised:
        url_of(base, "chat")
    assert CANARY not in str(raised.value)
    assert failed(base_url=base, route="chat").code == "ADDRESS_REFUSED"


def test_a_post_sends_the_payload_as_it_is() -> None:
    payload = b'{"b": 1.0, "a": [1e2]}'
    found = request_of(Target(base_url=BASE), payload, idempotency_key="k", forward_headers={})
    assert isinstance(found, ModelRequest)
    assert (found.method, found.body) == ("POST", payload)
    assert found.headers["content-type"] == "application/json"


def test_a_get_sends_scalars_as_query_parameters() -> None:
    payload = {"q": "a b&c=d\u00e4", "n": 3, "x": 1.5, "yes": True, "no": False, "none": None}
    found = sent(payload, method="GET", route="find?v=2")
    assert found.url.raw_path == (b"/v1/find?v=2&q=a%20b%26c%3Dd%C3%A4&n=3&x=1.5&yes=true&no=false")
    assert found.body is None
    assert "content-type" not in found.headers


def test_a_get_without_payload_has_no_query() -> None:
    assert sent({}, method="GET").url.raw_path == b"/v1"


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@given(st.dictionaries(texts, texts | st.integers(-(2**63), 2**63) | st.booleans(), max_size=5))
def test_a_query_says_what_the_payload_says(payload: dict[str, Any]) -> None:
    url = sent(payload, method="GET").url
    assert dict(url.params) == {
        name: value if isinstance(value, str) else json.encode(value).decode()
        for name, value in payload.items()
    }
    assert (url.host, url.path, url.fragment) == ("models.example", "/v1", "")


@pytest.mark.parametrize(
    ("payload", "pointer"),
    [
        ({"a": 1, "b/c": {"d": 1}}, "/payload/b~1c"),
        ({"a": [1]}, "/payload/a"),
        ([1], "/payload"),
        ("text", "/payload"),
        ({"a": "x" * 9000}, "/payload"),
    ],
)
def test_a_get_of_what_is_nested_or_long_is_refused_with_a_pointer(
    payload: Any, pointer: str
) -> None:
    found = failed(payload, method="GET")
    assert found.code == "VALIDATION_FAILED"
    assert found.details is not None
    assert found.details["errors"] == [{"pointer": pointer, "message": found.message}]


def test_an_api_key_goes_as_bearer_or_in_its_own_header() -> None:
    assert sent(api_key=Secret(CANARY)).secrets == {"authorization": Secret(f"Bearer {CANARY}")}
    own = sent(api_key=Secret(CANARY), api_key_header="X-API-Key")
    assert own.secrets == {"x-api-key": Secret(CANARY)}
    assert sent().secrets == {}


def test_the_callers_authorization_passes_where_the_model_has_no_key() -> None:
    forward = {"authorization": "Bearer caller", "x-user-info": "u7"}
    assert {n: v.reveal() for n, v in sent(forward=forward).secrets.items()} == forward


def test_the_api_key_wins_over_a_header_of_the_same_name() -> None:
    found = sent(api_key=Secret(CANARY), forward={"authorization": "Bearer caller"})
    assert found.secrets == {"authorization": Secret(f"Bearer {CANARY}")}
    beside = sent(
        api_key=Secret(CANARY), api_key_header="X-Key", forward={"authorization": "Bearer caller"}
    )
    assert beside.secrets == {
        "authorization": Secret("Bearer caller"),
        "x-key": Secret(CANARY),
    }


def test_no_header_stands_twice() -> None:
    found = sent(forward={"accept": "text/plain", "user-agent": "caller"})
    assert not set(found.headers) & set(found.secrets)
    assert found.headers["idempotency-key"] == "models.1:7"


@pytest.mark.parametrize(
    ("given_", "pointer"),
    [
        ({"forward": {"x": f"{CANARY}\r\nX-Admin: 1"}}, "/forward_headers/x"),
        ({"forward": {"x\r\n": CANARY}}, "/forward_headers"),
        ({"forward": {"host": CANARY}}, "/forward_headers/host"),
        ({"forward": {"idempotency-key": CANARY}}, "/forward_headers/idempotency-key"),
        ({"api_key": Secret(f"{CANARY}\n")}, "/api_key"),
        ({"api_key": Secret("")}, "/api_key"),
        ({"api_key": Secret(CANARY), "api_key_header": "x y"}, "/api_key_header"),
        ({"api_key": Secret(CANARY), "api_key_header": "Host"}, "/api_key_header"),
    ],
)
def test_a_header_that_would_break_the_request_is_refused(
    given_: dict[str, Any], pointer: str
) -> None:
    found = failed(**given_)
    assert found.code == "VALIDATION_FAILED"
    assert found.details is not None
    assert found.details["errors"] == [{"pointer": pointer, "message": found.message}]
    assert CANARY not in repr(found)


def test_an_api_key_is_checked_before_it_is_kept() -> None:
    with pytest.raises(HeadersRefused):
        api_key_header(Secret(f"{CANARY} "), None)


def test_a_request_does_not_show_its_secrets() -> None:
    assert CANARY not in repr(sent(api_key=Secret(CANARY), forward={"x": CANARY}))


# --- Redirects -----------------------------------------------------------------------------------
def hop(location: str, status: int = 307, **given_: Any) -> ModelRequest | CallFailed:
    return redirected(sent(api_key=Secret(CANARY), **given_), status, location)


@pytest.mark.parametrize("location", ["/v2", "v2", "https://models.example/v2", "?a=1"])
def test_a_redirect_on_the_same_origin_keeps_secrets(location: str) -> None:
    found = hop(location)
    assert isinstance(found, ModelRequest)
    assert found.secrets == {"authorization": Secret(f"Bearer {CANARY}")}
    assert found.body == b"{}"


@pytest.mark.parametrize(
    "location",
    ["https://other.example/v1", "https://models.example:8443/v1", "//other.example/v1"],
)
def test_a_redirect_to_another_origin_goes_without_secrets_and_so_does_the_way_back(
    location: str,
) -> None:
    found = hop(location)
    assert isinstance(found, ModelRequest)
    assert found.secrets == {}
    back = redirected(found, 307, BASE)
    assert isinstance(back, ModelRequest)
    assert back.secrets == {}


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://models.example/v1", "REDIRECT_REFUSED"),
        ("https://[", "ADDRESS_REFUSED"),
        ("https://a.example:x/", "REDIRECT_REFUSED"),
        ("ftp://models.example/v1", "ADDRESS_REFUSED"),
        ("file:///etc/passwd", "ADDRESS_REFUSED"),
        ("https://user:pw@models.example/", "ADDRESS_REFUSED"),
        ("https://2130706433/", "ADDRESS_REFUSED"),
        ("https://models.example/" + "x" * 9000, "ADDRESS_REFUSED"),
    ],
)
def test_a_redirect_to_what_no_model_may_be_is_refused(location: str, code: str) -> None:
    found = hop(location)
    assert isinstance(found, CallFailed)
    assert (found.code, found.retryable) == (code, False)


@given(location=st.text(max_size=40) | st.from_regex(r"https?://[^/]*@?[0-9a-fx.\[\]:]*/?"))
def test_no_location_breaks_the_call_or_takes_secrets_elsewhere(location: str) -> None:
    found = hop(location)
    assert isinstance(found, CallFailed) or found.origin == ORIGIN or found.secrets == {}


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_makes_no_get_of_a_post(status: int) -> None:
    found = hop("/v2", status)
    assert isinstance(found, CallFailed)
    assert found.code == "REDIRECT_REFUSED"
    assert isinstance(hop("/v2", status, method="GET"), ModelRequest)
