"""One call as it goes out: address, headers, body. Pure; secrets stay `Secret` until they are sent.

The model's API key wins over a header of the same name that the caller passes through, and that
over a default of the call. What the call must say itself, neither may name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, final
from urllib.parse import quote, urlencode

import httpx
from msgspec import Struct
from msgspec.structs import replace

from ledger import __version__
from ledger.domain.strict_json import MalformedJson, check, escaped
from ledger.sealing.forward_headers import FORBIDDEN, HeadersRefused, checked_name, checked_value
from ledger.sealing.secret import Secret
from processors.model_calls.addresses import AddressRefused, canonical_host
from processors.model_calls.outcomes import (
    ADDRESS_REFUSED,
    REDIRECT_REFUSED,
    CallFailed,
    invalid,
)

URL_LENGTH_MAX = 8_192
_DEFAULT_PORTS = {"http": 80, "https": 443}
_GET_ON_REDIRECT = frozenset({301, 302, 303})
"""Browsers make a GET of a POST there. A model would be asked without the payload: refused."""


@final
class Target(Struct, frozen=True, gc=False, kw_only=True):
    """What a call needs of a model."""

    base_url: str
    route: str = ""
    method: Literal["GET", "POST"] = "POST"
    api_key: Secret | None = None
    api_key_header: str | None = None
    """None: `Authorization: Bearer`. Else the header that holds the key as it is."""
    timeout_seconds: float = 120.0
    """Of the whole call: the wait for a connection, headers, body, redirects."""


@final
class ModelRequest(Struct, frozen=True, gc=False, kw_only=True):
    """`url` is checked by form; where it leads is judged when it is connected to."""

    method: str
    url: httpx.URL
    headers: Mapping[str, str]
    secrets: Mapping[str, Secret]
    """Headers as well. Names in lower case, and in no other header."""
    body: bytes | None

    @property
    def origin(self) -> str:
        return f"{self.url.scheme}://{self.url.raw_host.decode()}:{port_of(self.url)}"


def url_of(base_url: str, route: str = "") -> httpx.URL:
    """The model's URL, checked by form: for a model's PUT and for each call. Raises
    `AddressRefused`; the message does not quote the URL.

    The route is put behind the base's path, whatever it begins with.
    """
    if not route:
        return _checked_url(base_url)
    if "?" in base_url:
        raise AddressRefused("a base URL ends with its path: a query belongs to the route")
    return _checked_url(f"{base_url.rstrip('/')}/{route.lstrip('/')}")


def port_of(url: httpx.URL) -> int:
    return url.port or _DEFAULT_PORTS[url.scheme]


def request_of(
    target: Target,
    payload: bytes,
    *,
    idempotency_key: str,
    forward_headers: Mapping[str, Secret],
) -> ModelRequest | CallFailed:
    """`payload` is JSON: the body of a POST as it is, the query parameters of a GET."""
    try:
        url = url_of(target.base_url, target.route)
        if target.method == "GET":
            query = query_of(payload)
            if isinstance(query, CallFailed):
                return query
            url = _with_query(url, query)
        headers = _own_headers(target.method, idempotency_key)
        secrets = _secret_headers(target, forward_headers)
    except AddressRefused as refused:
        return CallFailed(code=ADDRESS_REFUSED, message=str(refused))
    except HeadersRefused as refused:
        return invalid(refused.message, refused.pointer)
    return ModelRequest(
        method=target.method,
        url=url,
        headers={name: value for name, value in headers.items() if name not in secrets},
        secrets=secrets,
        body=None if target.method == "GET" else payload,
    )


def query_of(payload: bytes) -> list[tuple[str, str]] | CallFailed:
    """Of a GET model's payload: an object of scalars, as JSON writes them, texts without quotes. A
    null is left out."""
    try:
        value = check(payload)
    except MalformedJson as error:
        return invalid(f"no JSON: {error}", "/payload")
    if not isinstance(value, dict):
        return invalid("a model that is called by GET takes an object", "/payload")
    pairs: list[tuple[str, str]] = []
    for name, item in value.items():
        if isinstance(item, dict | list):
            return invalid(
                "a model that is called by GET takes scalars only", f"/payload/{escaped(name)}"
            )
        if item is not None:
            pairs.append((name, item if isinstance(item, str) else json.dumps(item)))
    if len(urlencode(pairs)) > URL_LENGTH_MAX:
        return invalid(f"a query has {URL_LENGTH_MAX} characters at most", "/payload")
    return pairs


def redirected(request: ModelRequest, status: int, location: str) -> ModelRequest | CallFailed:
    """The next hop. On another origin it goes without secrets, and so do all that follow."""
    refused = CallFailed(
        code=REDIRECT_REFUSED,
        message=f"the model answered {status} with a redirect that is not followed",
        details={"status": status},
    )
    if request.method != "GET" and status in _GET_ON_REDIRECT:
        return refused
    try:
        url = _checked_url(str(request.url.join(location).copy_with(fragment=None)))
    except (httpx.InvalidURL, ValueError):
        return refused
    except AddressRefused as error:
        return CallFailed(code=ADDRESS_REFUSED, message=f"redirected: {error}")
    if (request.url.scheme, url.scheme) == ("https", "http"):
        return refused
    next_hop = replace(request, url=url)
    return next_hop if next_hop.origin == request.origin else replace(next_hop, secrets={})


def _checked_url(text: str) -> httpx.URL:
    if len(text) > URL_LENGTH_MAX:
        raise AddressRefused(f"the URL is longer than {URL_LENGTH_MAX} characters")
    if "\\" in text:
        raise AddressRefused("the URL holds a backslash, which readers of URLs disagree about")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        raise AddressRefused("the URL is none") from None
    if url.scheme not in _DEFAULT_PORTS:
        raise AddressRefused("the URL begins neither with http:// nor with https://")
    if url.userinfo:
        raise AddressRefused("the URL holds a user or password; use the API key")
    if url.fragment:
        raise AddressRefused("the URL holds a fragment")
    if url.port is not None and not 1 <= url.port <= 65_535:
        raise AddressRefused("the URL's port is not 1 to 65535")
    # Without the root's dot: a certificate has none.
    return url.copy_with(host=canonical_host(url.raw_host.decode()))


def _with_query(url: httpx.URL, pairs: list[tuple[str, str]]) -> httpx.URL:
    parts = [url.query.decode(), urlencode(pairs, quote_via=quote)]
    query = "&".join(part for part in parts if part)
    return url.copy_with(query=query.encode() if query else None)


def _own_headers(method: str, idempotency_key: str) -> dict[str, str]:
    headers = {
        "accept": "*/*",
        "accept-encoding": "gzip",
        "idempotency-key": checked_value(idempotency_key, "/idempotency_key"),
        "user-agent": f"job-ledger/{__version__}",
    }
    return {**headers, "content-type": "application/json"} if method == "POST" else headers


def _secret_headers(target: Target, forward_headers: Mapping[str, Secret]) -> dict[str, Secret]:
    found: dict[str, Secret] = {}
    for name, value in forward_headers.items():
        key = checked_name(name)
        pointer = f"/forward_headers/{escaped(name)}"
        checked_value(value.reveal(), pointer)
        if key in FORBIDDEN:
            raise HeadersRefused(f"{key} belongs to the connection or to the call itself", pointer)
        found[key] = value
    if target.api_key is not None:
        name, key_value = api_key_header(target.api_key, target.api_key_header)
        found[name] = key_value
    return found


def api_key_header(api_key: Secret, header: str | None) -> tuple[str, Secret]:
    """Name and value: for a model's PUT and for each call. Raises `HeadersRefused`."""
    if not checked_value(api_key.reveal(), "/api_key"):
        raise HeadersRefused("an API key is not empty", "/api_key")
    if header is None:
        return "authorization", Secret(f"Bearer {api_key.reveal()}")
    name = checked_name(header, "/api_key_header")
    if name in FORBIDDEN:
        raise HeadersRefused(
            f"{name} belongs to the connection or to the call itself", "/api_key_header"
        )
    return name, api_key
