"""Calls over real sockets, and all that a model may do to them (F42)."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpcore
import pytest

from cli.logs import QUIET
from ledger.sealing.secret import Secret
from processors.model_calls.addresses import AllowList, Guard
from processors.model_calls.calling import Bounds, ModelCaller
from processors.model_calls.model_request import Target
from processors.model_calls.outcomes import Answer, CallFailed
from tests.support.scripted_model import (
    Received,
    Write,
    always,
    answer,
    scripted_model,
)

pytestmark = pytest.mark.rule("S4.3")

CANARY = "canary-c411"
LOOPBACK = AllowList.of(["loopback"])
PATIENT_SECONDS = 20.0
SHORT_SECONDS = 0.2


class ScriptedResolver:
    """Each time the next of its answers, as a name server does whose owner means ill."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0)


@pytest.fixture
def caller() -> ModelCaller:
    return ModelCaller(Guard(LOOPBACK), bounds=Bounds(bytes_max=100_000))


async def call(
    caller: ModelCaller, base_url: str, payload: bytes = b"{}", **given: Any
) -> Answer | CallFailed:
    forward = given.pop("forward", {})
    target = Target(base_url=base_url, **{"timeout_seconds": PATIENT_SECONDS, **given})
    return await caller.call(
        target,
        payload,
        idempotency_key="models.1:7",
        forward_headers={name: Secret(value) for name, value in forward.items()},
    )


async def answered(
    caller: ModelCaller, base_url: str, payload: bytes = b"{}", **given: Any
) -> Answer:
    found = await call(caller, base_url, payload, **given)
    assert isinstance(found, Answer), found
    return found


async def failed(
    caller: ModelCaller, base_url: str, payload: bytes = b"{}", **given: Any
) -> CallFailed:
    found = await call(caller, base_url, payload, **given)
    assert isinstance(found, CallFailed)
    assert CANARY not in repr(found)
    return found


# --- What goes out, what comes back --------------------------------------------------------------
async def test_a_post_arrives_whole_and_its_answer_comes_back(caller: ModelCaller) -> None:
    wire = answer(
        201, b"\x00\xffbytes", content_type="audio/wav", x_request_id="r1", set_cookie="a=b"
    )
    async with scripted_model(always(wire)) as model:
        found = await answered(
            caller,
            model.url,
            b'{"x": 1.0}',
            route="/v1/chat",
            api_key=Secret(CANARY),
            forward={"x-user-info": "u7"},
        )
    assert (found.status, found.content_type, found.body) == (201, "audio/wav", b"\x00\xffbytes")
    assert found.headers == {"x-request-id": "r1"}
    assert 0 < found.elapsed_seconds < PATIENT_SECONDS
    (received,) = model.received
    assert (received.method, received.target, received.body) == ("POST", "/v1/chat", b'{"x": 1.0}')
    assert received.headers.pop("user-agent").startswith("job-ledger/")
    assert received.headers == {
        "host": f"127.0.0.1:{model.port}",
        "accept": "*/*",
        "accept-encoding": "gzip",
        "authorization": f"Bearer {CANARY}",
        "connection": "close",
        "content-length": "10",
        "content-type": "application/json",
        "idempotency-key": "models.1:7",
        "x-user-info": "u7",
    }


async def test_a_get_arrives_with_its_query_and_without_a_body(caller: ModelCaller) -> None:
    async with scripted_model(always(answer())) as model:
        await answered(caller, model.url, b'{"q": "a b", "n": 3}', method="GET", route="find")
    (received,) = model.received
    assert (received.method, received.target) == ("GET", "/find?q=a%20b&n=3")
    assert (received.body, "content-length" in received.headers) == (b"", False)


async def test_an_answer_may_be_empty_compressed_or_in_chunks(caller: ModelCaller) -> None:
    for wire, body in (
        (b"HTTP/1.1 204 X\r\n\r\n", b""),
        (answer(200, gzip.compress(b"abc"), content_encoding="gzip"), b"abc"),
        (
            b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            b"abc",
        ),
    ):
        async with scripted_model(always(wire)) as model:
            assert (await answered(caller, model.url)).body == body


async def test_calls_keep_neither_connection_nor_cookies(caller: ModelCaller) -> None:
    async with scripted_model(always(answer(set_cookie="session=1; Path=/"))) as model:
        for _ in range(3):
            await answered(caller, model.url)
    assert model.connections == 3
    assert ["cookie" in received.headers for received in model.received] == [False] * 3


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    caller: ModelCaller, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("NETRC", str(netrc))
    async with scripted_model(always(answer())) as model:
        await answered(caller, model.url)
    assert "authorization" not in model.received[0].headers


# --- What a model may do -------------------------------------------------------------------------
async def hang(received: Received, writer: Write) -> None:
    await asyncio.Event().wait()


async def hang_in_the_body(received: Received, writer: Write) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc")
    await asyncio.Event().wait()


async def hang_before_the_status(received: Received, writer: Write) -> None:
    for _ in range(3):
        writer.write(b"HTTP/1.1 103 Early\r\n\r\n")
    await asyncio.Event().wait()


@pytest.mark.parametrize("script", [hang, hang_in_the_body, hang_before_the_status])
async def test_a_model_that_hangs_is_left_in_time(caller: ModelCaller, script: Any) -> None:
    async with scripted_model(script) as model:
        found = await failed(caller, model.url, timeout_seconds=SHORT_SECONDS)
    assert (found.code, found.retryable) == ("MODEL_TIMEOUT", True)
    assert "0.2 s" in found.message


async def test_a_model_that_takes_no_bytes_is_left_in_time(caller: ModelCaller) -> None:
    """Larger than what the sockets hold, and nobody reads."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        found = await failed(caller, url, b" " * 30_000_000, timeout_seconds=SHORT_SECONDS)
    assert found.code == "MODEL_TIMEOUT"


async def test_a_call_that_is_cancelled_closes_its_connection(caller: ModelCaller) -> None:
    arrived = asyncio.Event()

    async def script(received: Received, writer: Write) -> None:
        arrived.set()

    async with scripted_model(script) as model:
        task = asyncio.create_task(call(caller, model.url))
        await arrived.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        async with asyncio.timeout(PATIENT_SECONDS):
            await model.left()
    assert task.cancelled()


async def pour(received: Received, writer: Write) -> None:
    writer.write(b"HTTP/1.1 200 X\r\n\r\n")
    while True:
        writer.write(bytes(65_536))
        await writer.drain()


async def test_an_endless_body_is_cut_off(caller: ModelCaller) -> None:
    async with scripted_model(pour) as model:
        found = await failed(caller, model.url)
        async with asyncio.timeout(PATIENT_SECONDS):
            await model.left()
    assert (found.code, found.retryable) == ("RESPONSE_TOO_LARGE", False)
    assert found.details == {"bytes_max": 100_000}


async def test_a_body_that_says_it_is_too_long_is_not_read(caller: ModelCaller) -> None:
    async with scripted_model(always(b"HTTP/1.1 200 X\r\ncontent-length: 100001\r\n\r\n")) as model:
        assert (await failed(caller, model.url)).code == "RESPONSE_TOO_LARGE"


async def test_a_compressed_bomb_is_cut_off(caller: ModelCaller) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 100_000
    async with scripted_model(always(answer(200, bomb, content_encoding="gzip"))) as model:
        assert (await failed(caller, model.url)).code == "RESPONSE_TOO_LARGE"


async def test_a_bomb_in_a_bomb_is_not_opened(caller: ModelCaller) -> None:
    bomb = gzip.compress(gzip.compress(bytes(50_000_000)))
    async with scripted_model(always(answer(200, bomb, content_encoding="gzip, gzip"))) as model:
        found = await failed(caller, model.url)
    assert (found.code, found.retryable) == ("RESPONSE_UNREADABLE", False)


async def reset(received: Received, writer: Write) -> None:
    writer.transport.abort()


async def reset_in_the_body(received: Received, writer: Write) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc")
    await writer.drain()
    writer.transport.abort()


async def end_in_the_body(received: Received, writer: Write) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nabc")
    writer.close()


async def speak_no_http(received: Received, writer: Write) -> None:
    writer.write(f"SSH-2.0 {received.headers['authorization']}\r\n\r\n".encode())


async def send_endless_headers(received: Received, writer: Write) -> None:
    writer.write(b"HTTP/1.1 200 X\r\n")
    while True:
        writer.write(b"x: " + b"y" * 60_000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    "script", [reset, reset_in_the_body, end_in_the_body, speak_no_http, send_endless_headers]
)
async def test_a_broken_connection_is_tried_again(caller: ModelCaller, script: Any) -> None:
    async with scripted_model(script) as model:
        found = await failed(caller, model.url, api_key=Secret(CANARY))
    assert (found.code, found.retryable) == ("NETWORK_ERROR", True)


async def test_a_model_that_is_not_there_is_tried_again(caller: ModelCaller) -> None:
    async with scripted_model(hang) as model:
        url = model.url
    assert (await failed(caller, url)).code == "NETWORK_ERROR"


@pytest.mark.parametrize(
    ("wire", "code", "retry_after"),
    [
        (answer(429, retry_after="17"), "MODEL_RATE_LIMIT", 17),
        (answer(429), "MODEL_RATE_LIMIT", None),
        (
            answer(503, retry_after="Fri, 31 Dec 2999 00:00:00 GMT"),
            "TEMPORARY_PROVIDER_ERROR",
            3600,
        ),
        (answer(500, CANARY.encode()), "TEMPORARY_PROVIDER_ERROR", None),
        (answer(401, CANARY.encode(), www_authenticate=CANARY), "INVALID_CREDENTIAL", None),
        (answer(422, CANARY.encode()), "MODEL_REJECTED", None),
        (
            b"HTTP/1.1 500 canary-c411\r\ncontent-length: 9\r\n\r\n",
            "TEMPORARY_PROVIDER_ERROR",
            None,
        ),
    ],
)
async def test_a_no_is_told_by_its_status_without_its_words(
    caller: ModelCaller, wire: bytes, code: str, retry_after: float | None
) -> None:
    async with scripted_model(always(wire)) as model:
        found = await failed(caller, model.url)
    assert (found.code, found.retry_after_seconds) == (code, retry_after)


@pytest.mark.parametrize(
    "given",
    [
        {"forward": {"x-user-info": "u7\r\nX-Admin: 1"}},
        {"forward": {"x\r\nX-Admin": "1"}},
        {"forward": {"transfer-encoding": "chunked"}},
        {"api_key": Secret("a\r\nX-Admin: 1")},
        {"route": "/x HTTP/1.1\r\nX-Admin: 1\r\n"},
    ],
)
async def test_no_header_can_be_smuggled_in(caller: ModelCaller, given: dict[str, Any]) -> None:
    async with scripted_model(always(answer())) as model:
        assert not (await failed(caller, model.url, **given)).retryable
    assert model.connections == 0


# --- Where calls go ------------------------------------------------------------------------------
async def test_without_an_allow_list_this_machine_is_not_called() -> None:
    async with scripted_model(always(answer())) as model:
        found = await failed(ModelCaller(Guard(AllowList())), model.url, api_key=Secret(CANARY))
    assert (found.code, found.retryable) == ("ADDRESS_REFUSED", False)
    assert model.connections == 0


async def test_a_name_is_resolved_once_and_called_where_it_was_judged() -> None:
    resolve = ScriptedResolver(["127.0.0.1"], ["169.254.169.254"])
    caller = ModelCaller(Guard(LOOPBACK, resolve))
    async with scripted_model(always(answer())) as model:
        await answered(caller, f"http://rebound.example:{model.port}")
        assert resolve.asked == ["rebound.example"]
        assert model.received[0].headers["host"] == f"rebound.example:{model.port}"
        # Each call is judged anew.
        again = await failed(caller, f"http://rebound.example:{model.port}")
    assert (again.code, len(model.received)) == ("ADDRESS_REFUSED", 1)


class RecordingSockets(httpcore.AsyncMockBackend):
    """Nobody is called; what would have been is kept."""

    def __init__(self) -> None:
        super().__init__([answer()])
        self.connected: list[tuple[str, int]] = []

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **more: Any
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append((host, port))
        return await super().connect_tcp(host, port, *args, **more)


async def test_a_public_name_that_turns_into_this_machine_is_called_in_public() -> None:
    resolve = ScriptedResolver(["93.184.216.34"], ["127.0.0.1"])
    sockets = RecordingSockets()
    caller = ModelCaller(Guard(AllowList(), resolve), sockets=sockets)
    await answered(caller, "https://rebound.example")
    assert resolve.asked == ["rebound.example"]
    assert sockets.connected == [("93.184.216.34", 443)]


async def test_a_name_that_turned_into_this_machine_is_refused() -> None:
    resolve = ScriptedResolver(["93.184.216.34", "127.0.0.1"])
    sockets = RecordingSockets()
    caller = ModelCaller(Guard(AllowList(), resolve), sockets=sockets)
    assert (await failed(caller, "https://rebound.example")).code == "ADDRESS_REFUSED"
    assert sockets.connected == []


async def test_the_next_address_is_called_where_the_first_does_not_answer() -> None:
    resolve = ScriptedResolver(["127.0.0.2", "127.0.0.1"])
    caller = ModelCaller(Guard(LOOPBACK, resolve))
    async with scripted_model(always(answer())) as model:
        await answered(caller, f"http://two.example:{model.port}")


async def test_a_name_that_is_not_known_is_tried_again() -> None:
    async def resolve(host: str) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    caller = ModelCaller(Guard(LOOPBACK, resolve))
    assert (await failed(caller, "http://nobody.example")).code == "NETWORK_ERROR"


async def test_a_name_server_that_hangs_is_left_in_time() -> None:
    async def resolve(host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    caller = ModelCaller(Guard(LOOPBACK, resolve))
    found = await failed(caller, "http://a.example", timeout_seconds=SHORT_SECONDS)
    assert found.code == "MODEL_TIMEOUT"


# --- Redirects -----------------------------------------------------------------------------------
def following(hops: int) -> ModelCaller:
    return ModelCaller(Guard(LOOPBACK), bounds=Bounds(follow_redirects_max=hops))


@pytest.mark.parametrize("hops", [0, 1, 3])
async def test_a_redirect_loop_ends_after_so_many_hops(hops: int) -> None:
    async with scripted_model(always(answer(307, location="/again"))) as model:
        found = await failed(following(hops), model.url)
    assert (found.code, found.details) == ("REDIRECT_REFUSED", {"status": 307})
    assert len(model.received) == hops + 1


async def test_secrets_do_not_follow_to_another_origin() -> None:
    async with scripted_model(always(answer(200, b"there"))) as there:
        elsewhere = answer(307, location=f"{there.url}/x")
        async with scripted_model(always(elsewhere)) as here:
            found = await answered(
                following(1),
                here.url,
                b'{"x":1}',
                api_key=Secret(CANARY),
                api_key_header="x-key",
                forward={"authorization": CANARY, "x-user-info": CANARY},
            )
    assert found.body == b"there"
    assert here.received[0].headers["x-key"] == CANARY
    (arrived,) = there.received
    assert CANARY not in str(arrived.headers)
    assert (arrived.method, arrived.target, arrived.body) == ("POST", "/x", b'{"x":1}')
    assert arrived.headers["idempotency-key"] == "models.1:7"


async def test_secrets_follow_on_the_same_origin() -> None:
    async def script(received: Received, writer: Write) -> None:
        writer.write(answer(308, location="/v2") if received.target == "/" else answer())

    async with scripted_model(script) as model:
        await answered(following(1), model.url, api_key=Secret(CANARY))
    assert model.received[1].headers["authorization"] == f"Bearer {CANARY}"


@pytest.mark.parametrize(
    "location",
    [
        f"http://{CANARY}.127.1/",
        "http://169.254.169.254/latest",
        "http://[::ffff:10.0.0.1]/",
        "http://0x7f.1/",
    ],
)
async def test_each_hop_passes_the_guard(location: str) -> None:
    async with scripted_model(always(answer(307, location=location))) as model:
        assert (await failed(following(3), model.url)).code == "ADDRESS_REFUSED"
    assert len(model.received) == 1


async def test_a_redirect_to_nowhere_is_refused() -> None:
    async with scripted_model(always(answer(307))) as model:
        assert (await failed(following(3), model.url)).code == "REDIRECT_REFUSED"


async def test_the_time_is_of_all_hops_together() -> None:
    """The model redirects for ever, and each hop alone is quick."""
    async with scripted_model(always(answer(307, location="/"))) as model:
        found = await failed(following(10**6), model.url, timeout_seconds=SHORT_SECONDS)
    assert found.code == "MODEL_TIMEOUT"


# --- Many calls ----------------------------------------------------------------------------------
async def test_so_many_calls_of_one_origin_run_at_once_and_no_other_origin_waits() -> None:
    arrived: asyncio.Queue[None] = asyncio.Queue()
    free = asyncio.Event()

    async def script(received: Received, writer: Write) -> None:
        arrived.put_nowait(None)
        await free.wait()
        writer.write(answer())

    caller = ModelCaller(Guard(LOOPBACK), bounds=Bounds(connections_per_origin_max=2))
    async with scripted_model(script) as busy, scripted_model(always(answer())) as other:
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(answered(caller, busy.url))
            for _ in range(2):
                await arrived.get()
            # Time enough for a third to arrive, if there were nothing to wait for.
            for _ in range(5):
                await answered(caller, other.url)
            assert len(busy.received) == 2
            free.set()
        assert (len(busy.received), busy.connections) == (8, 8)


async def test_waiting_for_a_turn_counts_into_the_time() -> None:
    caller = ModelCaller(Guard(LOOPBACK), bounds=Bounds(connections_per_origin_max=1))
    async with scripted_model(hang) as model:
        found = await asyncio.gather(
            *(failed(caller, model.url, timeout_seconds=SHORT_SECONDS) for _ in range(3))
        )
    assert {one.code for one in found} == {"MODEL_TIMEOUT"}


async def test_calls_that_end_at_any_instant_leave_no_slot_and_no_socket_behind() -> None:
    """Cut off by their time or from outside, while they connect, wait or read."""
    caller = ModelCaller(Guard(LOOPBACK), bounds=Bounds(connections_per_origin_max=4))
    async with scripted_model(pour) as model:
        for microseconds in range(0, 20_000, 500):
            calls = asyncio.gather(
                *(call(caller, model.url, timeout_seconds=microseconds / 1e6) for _ in range(5)),
                return_exceptions=True,
            )
            asyncio.get_running_loop().call_later(microseconds / 1.2e6, calls.cancel)
            with suppress(asyncio.CancelledError):
                await calls
        model.script = always(answer())
        await asyncio.gather(*(answered(caller, model.url) for _ in range(5)))
        async with asyncio.timeout(PATIENT_SECONDS):
            await model.left()


# --- Nothing is shown ----------------------------------------------------------------------------
async def echo(received: Received, writer: Write) -> None:
    """Says all that it was sent, in the status line, the headers and the body."""
    said = " ".join([*received.headers.values(), received.target]).encode()
    writer.write(
        b"HTTP/1.1 200 "
        + said
        + b"\r\nx-said: "
        + said
        + b"\r\ncontent-length: %d\r\n\r\n" % len(said)
    )
    writer.write(said)


@pytest.mark.parametrize("script", [echo, speak_no_http, reset, always(answer(500)), hang])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_log_line_shows_what_a_call_carries(
    caller: ModelCaller,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    script: Any,
    method: str,
) -> None:
    """At DEBUG, with the libraries as quiet as every process of ours keeps them."""
    caplog.set_level(logging.DEBUG)
    for name in QUIET:
        caplog.set_level(logging.WARNING, name)
    async with scripted_model(script) as model:
        found = await call(
            caller,
            model.url,
            b'{"q": "%b"}' % CANARY.encode(),
            method=method,
            api_key=Secret(CANARY),
            forward={"x-user-info": CANARY},
            timeout_seconds=SHORT_SECONDS if script is hang else PATIENT_SECONDS,
        )
    said = capfd.readouterr()
    assert CANARY in str(model.received)
    assert CANARY not in caplog.text + said.out + said.err
    assert isinstance(found, Answer) == (script is echo)
    assert isinstance(found, Answer) or CANARY not in repr(found)


async def test_not_even_the_libraries_log_what_is_sent(
    caller: ModelCaller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="httpcore")  # Other tests may have quieted it.
    async with scripted_model(always(answer())) as model:
        await answered(
            caller,
            model.url,
            b'{"q": "%b"}' % CANARY.encode(),
            method="GET",
            api_key=Secret(CANARY),
            forward={"x-user-info": CANARY},
        )
    assert "httpcore" in caplog.text
    assert CANARY not in caplog.text
