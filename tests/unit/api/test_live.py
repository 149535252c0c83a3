"""Event streams and progress sockets over the world in memory, behind a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import socket as socket_module
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from api.event_streams import wants_stream
from api.listeners import QUEUE_MAX, TOO_SLOW, Ended, Listener
from cli import api_server
from cli.api_server import ApiServer
from ledger.domain.ids import SECOND, Micros
from ledger.log.partitions import partition_of
from tests.support.listening import ACCEPT, PATIENCE_SECONDS, Heard, serving, stream
from tests.unit.api.problems_of import code_of, pointers
from tests.unit.api.world import PARTITIONS, Client, World, app_over

pytestmark = pytest.mark.rule("S3.1")
UNKNOWN = "default.01890000-0000-7000-8000-000000000000"
QUEUES = [
    next(name for name in (f"q{n}" for n in range(100)) if partition_of(name, PARTITIONS) == number)
    for number in range(PARTITIONS)
]
"""One in each partition."""


@pytest.fixture
async def server(world: World) -> AsyncIterator[ApiServer]:
    async with serving(app_over(world)) as server:
        yield server


@asynccontextmanager
async def client_of(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(
        base_url=f"http://127.0.0.1:{server.port}", timeout=PATIENCE_SECONDS, trust_env=False
    ) as client:
        yield client


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[Client]:
    async with client_of(server) as client:
        yield client


def socket_to(server: ApiServer, job_id: str, **options: Any) -> connect:
    return connect(f"ws://127.0.0.1:{server.port}/v1/jobs/{job_id}/progress", proxy=None, **options)


async def closed(socket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed):
        await socket.recv()
    return socket.close_code or 0, socket.close_reason or ""


async def history(client: httpx.AsyncClient, job_id: str) -> list[Any]:
    answer = await client.get(f"/v1/jobs/{job_id}/events", params={"limit": 200})
    return list(answer.json()["items"])


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def until_metric(client: httpx.AsyncClient, name: str, wanted: float) -> float:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            value = await metric(client, name)
            if value == wanted:
                return value
            await asyncio.sleep(0.01)  # Between two looks, not for luck.


async def progressed(client: Client, job_id: str, fence: int, percents: range) -> None:
    for percent in percents:
        body = {"fence": fence, "percent": percent}
        answer = await client.post(f"/v1/jobs/{job_id}/progress", json=body)
        assert answer.status_code == 200, answer.text


# --- One job's stream ----------------------------------------------------------------------------
async def test_a_stream_of_an_ended_job_tells_its_history_and_ends(http: Client) -> None:
    job_id = await http.succeeded({"sum": 3})

    async with stream(http, f"/v1/jobs/{job_id}/events") as events:
        heard = await events.rest()

    *told, end = heard
    told_before = await history(http, job_id)
    assert [one.data for one in told] == told_before
    assert [one.id for one in told] == [str(one["seq"]) for one in told_before]
    assert {one.event for one in told} == {"message"}
    assert (end.event, end.data) == ("end", {"status": "succeeded", "version": len(told)})


async def test_a_stream_of_an_open_job_goes_on_until_the_job_has_ended(http: Client) -> None:
    job_id, fence = await http.leased()
    async with stream(http, f"/v1/jobs/{job_id}/events") as events:
        before = await events.take(2)
        await http.post(f"/v1/jobs/{job_id}/start", json={"fence": fence})
        started = await events.next()
        await http.post(f"/v1/jobs/{job_id}/result", json={"fence": fence, "output": 1})
        *rest, end = await events.rest()

    assert started is not None
    assert started.data["type"] == "ledger.job.attempt_started.v1"
    told = [one.data for one in [*before, started, *rest]]
    assert told == await history(http, job_id)
    assert end.data["status"] == "succeeded"


@pytest.mark.parametrize("seen", range(4))
async def test_a_resumed_stream_tells_what_came_after_the_event_named(
    http: Client, seen: int
) -> None:
    job_id = await http.succeeded()
    async with stream(http, f"/v1/jobs/{job_id}/events", last=str(seen)) as events:
        *told, _ = await events.rest()
    assert [one.data for one in told] == (await history(http, job_id))[seen:]


async def test_the_header_counts_more_than_the_parameter(http: Client) -> None:
    path = f"/v1/jobs/{await http.succeeded()}/events"
    async with stream(http, path, last_event_id="2") as events:
        assert (await events.take(1))[0].id == "3"
    async with stream(http, path, last="3", last_event_id="1") as events:
        assert (await events.take(1))[0].id == "4"


async def test_who_has_all_of_an_ended_job_is_told_to_stop_asking(http: Client) -> None:
    job_id = await http.succeeded()
    version = (await http.get(f"/v1/jobs/{job_id}")).json()["version"]
    headers = {**ACCEPT, "Last-Event-ID": str(version)}
    answer = await http.get(f"/v1/jobs/{job_id}/events", headers=headers)
    assert answer.status_code == 204


async def test_a_stream_of_an_unknown_job_is_not_found(http: Client) -> None:
    answer = await http.get(f"/v1/jobs/{UNKNOWN}/events", headers=ACCEPT)
    assert code_of(answer) == (404, "JOB_NOT_FOUND")


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "²", "9" * 16])
async def test_what_is_no_event_of_a_job_is_refused(http: Client, last: str) -> None:
    path = f"/v1/jobs/{await http.succeeded()}/events"
    answer = await http.get(path, headers=ACCEPT, params={"last_event_id": last})
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == ["/last_event_id"]


@pytest.mark.parametrize("name", ["limit", "cursor", "page", "page_size"])
async def test_a_stream_has_no_pages(http: Client, name: str) -> None:
    path = f"/v1/jobs/{await http.succeeded()}/events"
    answer = await http.get(path, headers=ACCEPT, params={name: "1"})
    assert pointers(answer) == [f"/{name}"]


async def test_a_page_resumes_no_stream(http: Client) -> None:
    path = f"/v1/jobs/{await http.succeeded()}/events"
    answer = await http.get(path, params={"last_event_id": "1"})
    assert pointers(answer) == ["/last_event_id"]


async def test_a_payload_with_line_breaks_arrives_whole(http: Client) -> None:
    body = b'{"type": "t", "payload": {"a":\r\n\r\n [1,\n2,\r3]\n}}'
    job = (await http.post("/v1/jobs", content=body)).json()
    async with stream(http, f"/v1/jobs/{job['id']}/events") as events:
        first = await events.next()
    assert first is not None
    assert first.data["data"]["payload"] == {"a": [1, 2, 3]}


async def test_a_head_request_gets_no_stream(http: Client) -> None:
    job = await http.job()
    answer = await http.head(f"/v1/jobs/{job['id']}/events", headers=ACCEPT)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/event-stream", True),
        ("TEXT/Event-Stream", True),
        ("text/event-stream;q=0.5, application/json;q=0.4", True),
        ("application/json, text/event-stream", True),
        ("application/json, text/event-stream;q=0.9", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=0.0, */*", False),
        ("text/event-stream ; charset=utf-8 ; q=0.1", True),
        ("*/*", False),
        ("text/*", False),
        ("", False),
    ],
)
def test_who_names_the_media_type_gets_a_stream(accept: str, wanted: bool) -> None:
    assert wants_stream(accept) is wanted


# --- All events ----------------------------------------------------------------------------------
async def test_a_stream_of_all_events_begins_now(http: Client) -> None:
    await http.job()
    async with stream(http, "/v1/events") as events:
        await events.begun()
        job = await http.job(payload={"a": 1})
        heard = await events.next()
    assert heard is not None
    [told] = await history(http, job["id"])
    assert heard.data == told


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ({"queue": QUEUES[1]}, {"queue": QUEUES[1]}),
        ({"type": "mine"}, {"type": "mine"}),
        ({"label.user": "ada"}, {"labels": {"user": "ada", "x": "y"}}),
        ({"scope": "project:42"}, {"scope": "project:42"}),
        ({"created_from": "2027-01-15T08:00:00Z"}, {}),
        ({"status": "pending", "type": "mine"}, {"type": "mine"}),
    ],
)
async def test_a_filter_lets_through_events_of_jobs_that_it_would_list(
    http: Client, parameters: dict[str, str], fields: dict[str, Any]
) -> None:
    async with stream(http, "/v1/events", **parameters) as events:
        await events.begun()
        if fields:
            await http.job(queue=QUEUES[0])
        wanted = await http.job(**fields)
        heard = await events.next()
    assert heard is not None
    assert heard.data["data"]["job_id"] == wanted["id"]


@pytest.mark.parametrize(
    "parameters", [{"status": "failed"}, {"created_to": "2020-01-01T00:00:00Z"}]
)
async def test_a_filter_keeps_back_events_of_other_jobs(
    http: Client, server: ApiServer, parameters: dict[str, str]
) -> None:
    async with stream(http, "/v1/events", **parameters) as events:
        await events.begun()
        await http.job()
        await http.succeeded()
        await stopped(server)
        heard = await events.rest()
    assert [one.event for one in heard] == ["dropped"]


async def stopped(server: ApiServer) -> None:
    """As far as streams are concerned."""
    services = server.config.app.state.services  # type: ignore[union-attr]
    await services.live.stop(0.01)


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"last_event_id": "x"}, "/last_event_id"),
        ({"last_event_id": "0:1,9:1"}, "/last_event_id"),
        ({"last_event_id": "0:1.x"}, "/last_event_id"),
        ({"created_from": "yesterday"}, "/created_from"),
        ({"limit": "1"}, "/limit"),
        ({"queue": "UPPER"}, "/queue/0"),
    ],
)
async def test_what_a_stream_does_not_take_is_refused(
    http: Client, parameters: dict[str, str], pointer: str
) -> None:
    answer = await http.get("/v1/events", params=parameters)
    assert code_of(answer) == (422, "VALIDATION_FAILED")
    assert pointers(answer) == [pointer]


async def test_a_stream_cut_anywhere_goes_on_without_gap_or_duplicate(http: Client) -> None:
    async with stream(http, "/v1/events") as events:
        await events.begun()
        beginning = events.id
        for queue in QUEUES * 2:
            await http.succeeded(queue=queue)
        told = await events.take(8 * 4)
    assert len({(one.data["position"], one.data["data"]["job_id"]) for one in told}) == 8 * 4

    for number, cut in enumerate([beginning, *(one.id for one in told)]):
        async with stream(http, "/v1/events", last=cut) as events:
            again = await events.take(len(told) - number)
        assert _by_partition(again) == _by_partition(told[number:])


def _by_partition(heard: list[Heard]) -> list[Any]:
    """Between partitions there is no order."""
    return sorted(
        (one.data for one in heard), key=lambda data: list(map(int, data["position"].split(":")))
    )


async def test_within_a_partition_events_come_in_the_order_of_the_log(http: Client) -> None:
    async with stream(http, "/v1/events", queue=QUEUES[2]) as events:
        await events.begun()
        for _ in range(5):
            await http.succeeded(queue=QUEUES[2])
        told = await events.take(5 * 4)
    offsets = [int(one.data["position"].partition(":")[2]) for one in told]
    assert all(before < after for before, after in pairwise(offsets))


async def test_a_stream_begins_where_a_list_ends(http: Client) -> None:
    await http.job(queue=QUEUES[0])
    listed = await http.get("/v1/jobs")
    missed = [await http.job(queue=queue) for queue in QUEUES]
    async with stream(http, "/v1/events", last=listed.headers["ledger-position"]) as events:
        told = await events.take(len(missed))
    assert {one.data["data"]["job_id"] for one in told} == {job["id"] for job in missed}


async def test_what_a_faster_server_told_is_not_told_again(world: World, http: Client) -> None:
    world.is_lagging = True
    await http.job(queue=QUEUES[0], type="told")
    async with stream(http, "/v1/events", last="0:0") as events:
        await events.begun()
        await http.job(queue=QUEUES[0], type="next")
        world.catch_up()
        heard = await events.next()
    assert heard is not None
    assert heard.data["data"]["type"] == "next"


# --- Sockets -------------------------------------------------------------------------------------
async def test_a_socket_tells_the_job_and_each_change_until_its_end(
    http: Client, server: ApiServer
) -> None:
    job_id, fence = await http.leased(payload={"a": 1})
    async with socket_to(server, job_id) as socket:
        told = [json.loads(await socket.recv())]
        assert told[0] == (await http.get(f"/v1/jobs/{job_id}")).json()
        await http.post(f"/v1/jobs/{job_id}/start", json={"fence": fence})
        await progressed(http, job_id, fence, range(10, 20, 10))
        await http.post(f"/v1/jobs/{job_id}/result", json={"fence": fence, "output": [1]})
        told += [json.loads(text) async for text in socket]
        assert (socket.close_code, socket.close_reason) == (1000, "the job has ended: succeeded")

    versions = [job["version"] for job in told]
    assert versions == list(range(versions[0], versions[-1] + 1))
    for job in told:
        as_it_was = await http.get(f"/v1/jobs/{job_id}", params={"as_of": str(job["version"])})
        assert job == as_it_was.json()
    assert told[-1] == (await http.get(f"/v1/jobs/{job_id}")).json()


async def test_a_socket_to_an_ended_job_tells_it_once(http: Client, server: ApiServer) -> None:
    job_id = await http.succeeded()
    async with socket_to(server, job_id) as socket:
        assert json.loads(await socket.recv())["status"] == "succeeded"
        assert (await closed(socket))[0] == 1000


@pytest.mark.parametrize(
    ("job_id", "code", "reason"),
    [
        (UNKNOWN, 4404, "JOB_NOT_FOUND"),
        ("nonsense", 4422, "VALIDATION_FAILED"),
        ("default.123", 4422, "VALIDATION_FAILED"),
    ],
)
async def test_a_socket_to_no_job_is_closed_with_the_reason(
    server: ApiServer, job_id: str, code: int, reason: str
) -> None:
    async with socket_to(server, job_id) as socket:
        got, why = await closed(socket)
    assert got == code
    assert why.startswith(reason)


async def test_a_socket_takes_no_parameters(http: Client, server: ApiServer) -> None:
    job = await http.job()
    url = f"ws://127.0.0.1:{server.port}/v1/jobs/{job['id']}/progress?since=1"
    async with connect(url, proxy=None) as socket:
        assert (await closed(socket))[0] == 4422


async def test_a_page_of_another_origin_gets_no_socket(http: Client, server: ApiServer) -> None:
    job = await http.job()
    with pytest.raises(InvalidStatus) as refusal:
        async with socket_to(server, job["id"], origin="https://elsewhere.example"):
            pass
    assert refusal.value.response.status_code == 403
    async with socket_to(server, job["id"], origin=f"http://127.0.0.1:{server.port}") as socket:
        assert json.loads(await socket.recv())["id"] == job["id"]


async def test_what_a_client_sends_changes_nothing(http: Client, server: ApiServer) -> None:
    job = await http.job()
    async with socket_to(server, job["id"]) as socket:
        await socket.recv()
        await socket.send("hello")
        await socket.send(b"\x00")
        await http.post(f"/v1/jobs/{job['id']}/cancel", json={})
        assert json.loads(await socket.recv())["status"] == "cancelled"


# --- Many, slow, too many, none ------------------------------------------------------------------
async def test_many_listeners_to_a_job_cost_one_question_a_change(
    http: Client, server: ApiServer
) -> None:
    job_id, fence = await http.leased()
    sockets = [await socket_to(server, job_id) for _ in range(50)]
    for socket in sockets:
        await socket.recv()
    before = await metric(http, "ledger_http_feed_queries_total")

    for path, body in (("start", {}), ("result", {"output": 1})):
        await http.post(f"/v1/jobs/{job_id}/{path}", json={"fence": fence, **body})
        told = [json.loads(await socket.recv())["version"] for socket in sockets]
        assert len(set(told)) == 1

    assert {(await closed(socket))[0] for socket in sockets} == {1000}
    # And one for what the job missed before it was followed, if that is still to be asked.
    assert await metric(http, "ledger_http_feed_queries_total") - before <= 2 + 1


async def test_nothing_is_asked_while_nobody_listens(http: Client) -> None:
    async with stream(http, "/v1/events") as events:
        await events.begun()
        await http.job()
        await events.next()
    await until_metric(http, "ledger_http_listeners", 0)
    before = await metric(http, "ledger_http_feed_queries_total")
    await http.succeeded()
    assert await metric(http, "ledger_http_feed_queries_total") == before


async def test_more_listeners_than_may_are_turned_away(world: World) -> None:
    world.settings = replace(world.settings, listeners_max=1)
    async with serving(app_over(world)) as server, client_of(server) as http:
        job = await http.job()
        async with stream(http, "/v1/events") as events:
            await events.begun()
            answer = await http.get("/v1/events")
            assert code_of(answer) == (503, "OVERLOADED")
            assert answer.headers["retry-after"] == "5"
            answer = await http.get(f"/v1/jobs/{job['id']}/events", headers=ACCEPT)
            assert code_of(answer) == (503, "OVERLOADED")
            async with socket_to(server, job["id"]) as socket:
                code, reason = await closed(socket)
            assert (code, reason) == (1013, "OVERLOADED: 1 listen here already")


async def test_who_does_not_read_in_time_is_dropped_with_the_reason() -> None:
    dropped: list[bool] = []
    slow: Listener[int] = Listener(lambda: dropped.append(True))
    for number in range(QUEUE_MAX):
        slow.offer(number)
    assert dropped == []

    slow.offer(QUEUE_MAX)
    slow.offer(QUEUE_MAX + 1)

    with pytest.raises(Ended) as end:
        await slow.take(1)
    assert (end.value.ending, dropped) == (TOO_SLOW, [True])


async def test_who_reads_in_time_gets_everything_in_order() -> None:
    fast: Listener[int] = Listener(lambda: pytest.fail("dropped"))
    got: list[int] = []
    for number in range(QUEUE_MAX * 3):
        fast.offer(number)
        if number % 30 == 0:
            got += await fast.take(1)
    while left := await fast.take(0.001):
        got += left
    assert got == list(range(QUEUE_MAX * 3))


async def test_a_socket_that_is_not_read_is_closed_with_the_reason(
    world: World, http: Client, server: ApiServer
) -> None:
    job_id, fence = await http.leased(
        payload="x" * 60_000, lease_seconds=86_400, timeout_seconds=86_400
    )
    async with socket_to(server, job_id, max_queue=1) as socket:
        await socket.recv()
        sent = 0
        while await metric(http, "ledger_http_listeners_dropped_total") == 0:
            assert sent < 3_000
            for _ in range(20):
                sent += 1
                world.at = Micros(world.at + 2 * SECOND)  # Progress is recorded once a second.
                body = {"fence": fence, "message": str(sent)}
                assert (await http.post(f"/v1/jobs/{job_id}/progress", json=body)).is_success
        told: list[Any] = []
        with pytest.raises(ConnectionClosed):
            await read_to_the_end(socket, told)
        assert socket.close_code == 1013
        assert (socket.close_reason or "").startswith("TOO_SLOW")
    versions = [job["version"] for job in told]
    assert versions == list(range(versions[0], versions[0] + len(versions)))


async def read_to_the_end(socket: ClientConnection, told: list[Any]) -> None:
    while True:
        told.append(json.loads(await socket.recv()))


@pytest.mark.skipif(not hasattr(socket_module, "TCP_USER_TIMEOUT"), reason="Linux only")
async def test_a_client_that_takes_nothing_is_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "STUCK_SECONDS", 1)
    async with serving(app_over(world)) as server, client_of(server) as http:
        with socket_module.create_connection(("127.0.0.1", server.port)) as stuck:
            stuck.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
            await until_metric(http, "ledger_http_listeners", 1)
            sent = 0
            while await metric(http, "ledger_http_listeners") == 1:
                assert sent < 5_000
                sent += 1
                await http.job(payload="x" * 60_000)


async def test_a_server_that_stops_says_so(world: World) -> None:
    async with serving(app_over(world)) as server, client_of(server) as http:
        job = await http.job()
        async with (
            stream(http, "/v1/events") as all_events,
            stream(http, f"/v1/jobs/{job['id']}/events") as events,
            socket_to(server, job["id"]) as socket,
        ):
            await all_events.begun()
            await events.next()
            await socket.recv()

            server.should_exit = True

            assert [one.data["code"] for one in await all_events.rest()] == ["STOPPING"]
            assert [one.data["code"] for one in await events.rest()] == ["STOPPING"]
            code, reason = await closed(socket)
            assert (code, reason[:8]) == (1012, "STOPPING")


async def test_streams_outlive_views_that_cannot_be_asked(world: World, http: Client) -> None:
    async with stream(http, "/v1/events") as events:
        await events.begun()
        world.is_cut = True
        job = await http.post("/v1/jobs", json={"type": "t"})
        assert job.status_code == 201
        world.is_cut = False
        heard = await events.next()
    assert heard is not None
    assert heard.data["data"]["job_id"] == job.json()["id"]


async def test_a_stream_that_cannot_begin_is_a_problem(world: World, http: Client) -> None:
    world.is_cut = True
    assert code_of(await http.get("/v1/events")) == (503, "VIEW_UNAVAILABLE")
