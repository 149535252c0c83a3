"""Input that a lenient parser would let through, or choke on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import Client, World, client_over

JSON = {"content-type": "application/json"}
NO_STRICT_JSON = {
    "empty": b"",
    "blank": b"  ",
    "cut off": b'{"type": "t"',
    "two values": b'{"type": "t"} {}',
    "bad UTF-8": b'{"type": "t", "payload": "\xff"}',
    "UTF-8 of a surrogate": b'{"type": "t", "payload": "\xed\xa0\x80"}',
    "overlong UTF-8": b'{"type": "t", "payload": "\xc0\x80"}',
    "UTF-16": '{"type": "t"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"type": "t"}',
    "NaN": b'{"type": "t", "payload": NaN}',
    "Infinity": b'{"type": "t", "payload": [-Infinity]}',
    "a double too large": b'{"type": "t", "payload": 1e400}',
    "400 digits": b'{"type": "t", "payload": ' + b"9" * 400 + b"}",
    "duplicate keys": b'{"type": "t", "type": "u"}',
    "duplicate keys inside": b'{"type": "t", "payload": {"a": 1, "\\u0061": 2}}',
    "NUL": b'{"type": "t", "payload": "\\u0000"}',
    "a raw NUL": b'{"type": "t", "payload": "\x00"}',
    "NUL in a key": b'{"type": "t", "payload": {"\\u0000": 1}}',
    "NUL in the idempotency key": b'{"type": "t", "idempotency_key": "\\u0000"}',
    "a lone surrogate": b'{"type": "t", "payload": "\\ud800"}',
    "a lone low surrogate": b'{"type": "t", "payload": "\\udc00x"}',
    "surrogates in the wrong order": b'{"type": "t", "payload": "\\udc00\\ud800"}',
    "too deep": b'{"type": "t", "payload": ' + b"[" * 80 + b"]" * 80 + b"}",
    "far too deep": b'{"type": "t", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "far too deep, open": b"[" * 200_000,
    "a comment": b'{"type": "t" /* no */}',
    "a trailing comma": b'{"type": "t",}',
    "single quotes": b"{'type': 't'}",
    "a control character": b'{"type": "t", "payload": "\n"}',
}


@pytest.mark.parametrize("body", NO_STRICT_JSON.values(), ids=NO_STRICT_JSON.keys())
async def test_what_is_no_strict_json_is_malformed(client: Client, body: bytes) -> None:
    answer = await client.post("/v1/jobs", content=body, headers=JSON)
    assert code_of(answer) == (400, "MALFORMED_JSON")
    assert client.world.sent == []


@pytest.mark.parametrize(
    ("path", "text"),
    [("fail", "message"), ("progress", "message"), ("release", "reason"), ("cancel", "reason")],
)
async def test_a_nul_in_what_a_runtime_says(client: Client, path: str, text: str) -> None:
    """kombu and procrastinate: a NUL in an error message made the failure itself unstorable."""
    job_id, fence = await client.leased()
    body = b'{"fence": %d, "code": "X", "%s": "a\\u0000b"}' % (fence, text.encode())
    answer = await client.post(f"/v1/jobs/{job_id}/{path}", content=body, headers=JSON)
    assert code_of(answer) == (400, "MALFORMED_JSON")


async def test_an_empty_body_where_something_is_required(client: Client) -> None:
    job_id, _ = await client.leased()
    assert code_of(await client.post(f"/v1/jobs/{job_id}/start")) == (400, "MALFORMED_JSON")


STRICT_JSON = {
    "any value": b'{"type": "t", "payload": [null, true, "x", {}]}',
    "null": b'{"type": "t", "payload": null}',
    "pairs of surrogates": b'{"type": "t", "payload": "\\ud83d\\ude00"}',
    "the largest integers": b'{"type": "t", "payload": [9007199254740991, -9007199254740991]}',
    "exponents": b'{"type": "t", "payload": [1e300, 1E-7, -0.0]}',
    "escapes": b'{"type": "t", "payload": "\\u001f\\"\\\\\\/\\b\\f\\n\\r\\t"}',
    "deep enough": b'{"type": "t", "payload": ' + b"[" * 60 + b"]" * 60 + b"}",
}


@pytest.mark.parametrize("body", STRICT_JSON.values(), ids=STRICT_JSON.keys())
async def test_what_is_strict_json_is_kept_as_it_is(client: Client, body: bytes) -> None:
    answer = await client.post("/v1/jobs", content=body, headers=JSON)
    assert answer.status_code == 201
    sent = body.partition(b'"payload": ')[2].removesuffix(b"}")
    assert b'"payload":' + sent in answer.content


# --- Fields --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"type": "-x"}, "/type"),
        ({"type": "t" * 101}, "/type"),
        ({"type": "t\n"}, "/type"),
        ({"type": None}, "/type"),
        ({"queue": "Q"}, "/queue"),
        ({"queue": "q\n"}, "/queue"),
        ({"queue": "_ledger"}, "/queue"),
        ({"queue": "q" * 64}, "/queue"),
        ({"priority": 10}, "/priority"),
        ({"priority": "1"}, "/priority"),
        ({"priority": 1.5}, "/priority"),
        ({"labels": {"k" * 65: "v"}}, "/labels/" + "k" * 65),
        ({"labels": {"": "v"}}, "/labels/"),
        ({"labels": {"a": "b", "k/~": 1}}, "/labels/k~1~0"),
        ({"labels": {"k": "v" * 257}}, "/labels/k"),
        ({"labels": {str(n): "v" for n in range(33)}}, "/labels"),
        ({"scope": "s" * 257}, "/scope"),
        ({"idempotency_key": ""}, "/idempotency_key"),
        ({"idempotency_key": "k" * 257}, "/idempotency_key"),
        ({"run_at": "tomorrow"}, "/run_at"),
        ({"run_at": "2030-01-01T00:00:00"}, "/run_at"),
        ({"delay_seconds": -1}, "/delay_seconds"),
        ({"delay_seconds": 1e12}, "/delay_seconds"),
        ({"lease_seconds": 0.5}, "/lease_seconds"),
        ({"retry": {"max_attempts": 0}}, "/retry/max_attempts"),
        ({"retry": {"backoff_seconds": [1, -1]}}, "/retry/backoff_seconds/1"),
        ({"retry": {"max": 1}}, "/retry/max"),
        ({"retry": 3}, "/retry"),
        ({"payload": {"a": {"b/c": [1, 2**53]}}}, "/payload/a/b~1c/1"),
        ({"payload": -(2**63)}, "/payload"),
        ({"payload_hash": "0" * 64}, "/payload_hash"),
        ({"payload_ref": None}, "/payload_ref"),
        ({"nonsense": 1}, "/nonsense"),
        ({"non/sense": 1}, "/non~1sense"),
    ],
)
async def test_a_wrong_field_is_named(client: Client, change: dict[str, Any], pointer: str) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t", **change})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [pointer]
    assert client.world.sent == []


async def test_all_wrong_fields_are_named_at_once(client: Client) -> None:
    body = {"priority": 10, "queue": "Q", "labels": {"a": 1}, "prioritty": 1}
    answer = await client.post("/v1/jobs", json=body)
    assert sorted(pointers(answer)) == ["/labels/a", "/prioritty", "/priority", "/queue", "/type"]
    assert "did you mean priority?" in answer.text


@pytest.mark.parametrize("body", [b"[]", b'"t"', b"1", b"null"])
async def test_a_body_is_an_object(client: Client, body: bytes) -> None:
    answer = await client.post("/v1/jobs", content=body, headers=JSON)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [""]


async def test_many_wrong_fields_are_cut(client: Client) -> None:
    body = {"type": "t", **{f"x{n}": n for n in range(9_000)}}
    answer = await client.post("/v1/jobs", json=body)
    assert len(pointers(answer)) == 20


# --- Sizes ---------------------------------------------------------------------------------------
def request_with(payload: object, **dumps: Any) -> bytes:
    return b'{"type":"t","payload":' + json.dumps(payload, **dumps).encode() + b"}"


COMPACT: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}


async def test_64_kib_fit_and_a_byte_more_does_not(client: Client) -> None:
    fits = await client.post("/v1/jobs", content=request_with("x" * 65_534), headers=JSON)
    over = await client.post("/v1/jobs", content=request_with("x" * 65_535), headers=JSON)
    assert fits.status_code == 201
    assert code_of(over) == (413, "PAYLOAD_TOO_LARGE")


async def test_64_kib_are_of_utf8_however_it_was_sent(client: Client) -> None:
    payload = {"a": ["é" * 16_000, "ü" * 16_000]}
    escaped = request_with(payload, indent=8)
    assert len(escaped) > 65_536
    assert len(request_with(payload, **COMPACT)) < 65_536
    answer = await client.post("/v1/jobs", content=escaped, headers=JSON)
    assert answer.status_code == 201
    assert answer.json()["payload"] == payload


async def test_an_output_has_the_same_limit(client: Client) -> None:
    job_id, fence = await client.leased()
    body = {"fence": fence, "output": "x" * 65_535}
    answer = await client.post(f"/v1/jobs/{job_id}/result", json=body)
    assert code_of(answer) == (413, "PAYLOAD_TOO_LARGE")
    assert pointers(answer) == ["/output"]


@pytest.mark.parametrize("declared", [True, False])
async def test_a_huge_body_is_not_read(client: Client, declared: bool) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 65_536
            yield b"x" * 65_536

    headers = {**JSON, "content-length": "1000000000000"} if declared else JSON
    answer = await client.post("/v1/jobs", content=endless(), headers=headers)
    assert code_of(answer) == (413, "PAYLOAD_TOO_LARGE")
    assert read < 1_000_000


async def test_a_slow_body_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.input.BODY_SECONDS", 0.01)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await client.world.has_sent.wait()
        yield b"}"

    answer = await client.post("/v1/jobs", content=slow(), headers=JSON)
    assert code_of(answer) == (408, "REQUEST_TIMEOUT")


# --- What a body says it is, and who sends it ----------------------------------------------------
@pytest.mark.parametrize(
    "media",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "x"],
)
async def test_a_body_of_another_kind(client: Client, media: str) -> None:
    answer = await client.post(
        "/v1/jobs", content=b'{"type": "t"}', headers={"content-type": media}
    )
    assert code_of(answer) == (415, "UNSUPPORTED_MEDIA_TYPE")


async def test_a_body_in_another_encoding(client: Client) -> None:
    headers = {**JSON, "content-encoding": "gzip"}
    answer = await client.post("/v1/jobs", content=b'{"type": "t"}', headers=headers)
    assert code_of(answer) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "media", ["application/json", "Application/JSON; charset=UTF-8", "application/foo+json", None]
)
async def test_a_body_that_is_json(client: Client, media: str | None) -> None:
    headers = {} if media is None else {"content-type": media}
    answer = await client.post("/v1/jobs", content=b'{"type": "t"}', headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://api:81"},
    ],
)
async def test_a_page_elsewhere_may_not_write(client: Client, headers: dict[str, str]) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t"}, headers=headers)
    assert code_of(answer) == (403, "CROSS_SITE_REQUEST")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("headers", [{"Origin": "http://api"}, {"Sec-Fetch-Site": "same-origin"}])
async def test_a_page_of_its_own_may(client: Client, headers: dict[str, str]) -> None:
    answer = await client.post("/v1/jobs", json={"type": "t"}, headers=headers)
    assert answer.status_code == 201


# --- Queries -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "query",
    ["scope=%ff", "scope=%00", "%ed%a0%80=1", "label.a=%00", "&".join(["status=failed"] * 101)],
)
async def test_a_query_that_is_no_text(client: Client, query: str) -> None:
    answer = await client.get(f"/v1/jobs?{query}")
    assert code_of(answer) == (422, "VALIDATION_FAILED")


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/queues/default", "/healthz", "/metrics"])
async def test_an_unknown_parameter_is_an_error_everywhere(client: Client, path: str) -> None:
    await client.job()
    answer = await client.get(path, params={"nonsense": "1"})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/nonsense"]


async def test_no_route_and_no_such_method(client: Client) -> None:
    assert code_of(await client.get("/v1/nowhere")) == (404, "ROUTE_NOT_FOUND")
    assert code_of(await client.get("/v1/jobs/")) == (404, "ROUTE_NOT_FOUND")
    answer = await client.request("PATCH", "/v1/jobs")
    assert code_of(answer) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, HEAD, POST"


async def test_a_command_too_large_for_the_log(world: World) -> None:
    world.bytes_max = 100
    async with client_over(world) as client:
        answer = await client.post("/v1/jobs", json={"type": "t", "payload": "x" * 200})
    assert code_of(answer) == (413, "PAYLOAD_TOO_LARGE")
