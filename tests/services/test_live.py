"""Live updates over a real broker, a real owner and real views."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from websockets.asyncio.client import connect

from api.app import create_app
from api.settings import Settings
from cli.api_server import ApiServer
from cli.local import answers
from ledger.embedded.processes import Child, free_ports
from projections.schema import migrate
from tests.services.test_api_end_to_end import TWO_QUEUES, worker
from tests.support.ledger import Ledger, ledger_on
from tests.support.listening import PATIENCE_SECONDS, Heard, serving, stream

pytestmark = pytest.mark.services
LISTENERS = 300
START_SECONDS = 60.0
STOP_SECONDS = 12.0
"""Less than what the api gives requests that do not end by themselves."""


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@pytest.fixture
async def running(ledger: Ledger, dsn: str) -> AsyncIterator[None]:
    migrate(dsn)
    async with worker(ledger, dsn):
        yield


def app_of(ledger: Ledger, dsn: str) -> Starlette:
    return create_app(
        Settings(
            connection=ledger.connection,
            dsn=dsn,
            topics=ledger.topics,
            partitions=ledger.partitions,
            decision_seconds=PATIENCE_SECONDS,
        )
    )


@pytest.fixture
async def server(ledger: Ledger, dsn: str, running: None) -> AsyncIterator[ApiServer]:
    async with serving(app_of(ledger, dsn)) as server:
        yield server


@asynccontextmanager
async def client_at(port: int) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        timeout=PATIENCE_SECONDS,
        trust_env=False,
        limits=httpx.Limits(max_connections=None),
    ) as client:
        yield client


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client_at(server.port) as client:
        yield client


async def new_job(http: httpx.AsyncClient, **fields: Any) -> str:
    answer = await http.post("/v1/jobs", json={"type": "sum", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def write(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def run(http: httpx.AsyncClient, job_id: str, percents: range) -> None:
    """From its lock to its end."""
    lock = await write(http, f"/v1/jobs/{job_id}/lock", runtime_id="r1")
    fence = lock["fence"]
    await write(http, f"/v1/jobs/{job_id}/start", fence=fence)
    for percent in percents:
        await write(http, f"/v1/jobs/{job_id}/progress", fence=fence, percent=percent)
    await write(http, f"/v1/jobs/{job_id}/result", fence=fence, output={"sum": 3})


async def history(http: httpx.AsyncClient, job_id: str) -> list[Any]:
    answer = await http.get(f"/v1/jobs/{job_id}/events", params={"limit": 200})
    return list(answer.json()["items"])


async def metric(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_hundreds_of_listeners_to_a_job_are_all_told_for_a_few_questions(
    http: httpx.AsyncClient, server: ApiServer
) -> None:
    job_id = await new_job(http)

    async def told_by_socket() -> list[Any]:
        url = f"ws://127.0.0.1:{server.port}/v1/jobs/{job_id}/progress"
        async with connect(url, proxy=None) as socket:
            told = [json.loads(await socket.recv())]
            begun.release()
            return told + [json.loads(text) async for text in socket]

    async def told_by_stream() -> list[Heard]:
        async with stream(http, f"/v1/jobs/{job_id}/events") as events:
            first = await events.take(1)
            begun.release()
            return first + await events.rest()

    begun = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        sockets = [group.create_task(told_by_socket()) for _ in range(LISTENERS // 2)]
        streams = [group.create_task(told_by_stream()) for _ in range(LISTENERS // 2)]
        for _ in range(LISTENERS):
            await begun.acquire()
        before = await metric(http, "ledger_http_feed_queries_total")
        await run(http, job_id, range(10, 50, 10))

    events = await history(http, job_id)
    job = (await http.get(f"/v1/jobs/{job_id}")).json()
    for heard in (task.result() for task in streams):
        assert [one.data for one in heard[:-1]] == events
        assert heard[-1].data == {"status": "succeeded", "version": len(events)}
    for told in (task.result() for task in sockets):
        assert [one["version"] for one in told] == list(range(1, len(events) + 1))
        assert told[-1] == job
    # One each time that the views moved, however many listen.
    assert 1 <= await metric(http, "ledger_http_feed_queries_total") - before < LISTENERS / 10


async def test_a_reader_that_stands_still_is_dropped_and_holds_up_nobody(
    http: httpx.AsyncClient,
) -> None:
    payload = "x" * 50_000
    async with AsyncExitStack() as closing:
        slow = await closing.enter_async_context(stream(http, "/v1/events"))
        fast = await closing.enter_async_context(stream(http, "/v1/events"))
        await slow.begun()
        await fast.begun()
        asked: list[str] = []
        told: list[Heard] = []
        while await metric(http, "ledger_http_listeners_dropped_total") == 0:
            assert len(asked) < 2_000
            asked += await asyncio.gather(*(new_job(http, payload=payload) for _ in range(50)))
            told += await fast.take(50)
        assert {one.data["data"]["job_id"] for one in told} == set(asked)

        *before, last = await slow.rest()

    assert last.event == "dropped"
    assert last.data["code"] == "TOO_SLOW"
    async with stream(http, "/v1/events", last=last.id) as resumed:
        after = await resumed.take(len(told) - len(before))
    assert sorted(position(one) for one in [*before, *after]) == sorted(map(position, told))


def position(heard: Heard) -> tuple[int, int]:
    partition, _, offset = heard.data["position"].partition(":")
    return int(partition), int(offset)


async def test_a_stream_goes_on_with_another_server_without_gap_or_duplicate(
    ledger: Ledger, dsn: str, running: None
) -> None:
    told: list[Heard] = []
    last: str | None = None
    jobs = []
    for _ in range(4):
        async with serving(app_of(ledger, dsn)) as server, client_at(server.port) as http:
            async with stream(http, "/v1/events", last=last) as events:
                await events.begun()
                new = [await new_job(http, queue=queue) for queue in TWO_QUEUES * 3]
                told += await events.take(4)  # And what was not read is lost with the connection.
                last = events.id
            jobs += new
            missed = [await new_job(http, queue=queue) for queue in TWO_QUEUES]
            jobs += missed
    async with (
        serving(app_of(ledger, dsn)) as server,
        client_at(server.port) as http,
        stream(http, "/v1/events", last=last) as events,
    ):
        told += await events.take(len(jobs) - len(told))
    assert len({position(one) for one in told}) == len(told)
    assert {one.data["data"]["job_id"] for one in told} == set(jobs)


async def test_a_filtered_stream_tells_what_the_list_shows(http: httpx.AsyncClient) -> None:
    one, other = TWO_QUEUES
    async with stream(http, "/v1/events", queue=one, **{"label.user": "ada"}) as events:
        await events.begun()
        await new_job(http, queue=one)
        await new_job(http, queue=other, labels={"user": "ada"})
        wanted = await new_job(http, queue=one, labels={"user": "ada"})
        await run(http, wanted, range(0))
        told = await events.take(4)
    assert [one.data for one in told] == await history(http, wanted)


async def test_the_end_is_not_missed_by_who_joins_as_it_comes(http: httpx.AsyncClient) -> None:
    async def until_end(job_id: str) -> list[Heard]:
        async with stream(http, f"/v1/jobs/{job_id}/events") as events:
            return await events.rest()

    ids = [await new_job(http) for _ in range(20)]
    async with asyncio.TaskGroup() as group:
        listening = []
        for job_id in ids:
            group.create_task(run(http, job_id, range(0)))
            listening.append(group.create_task(until_end(job_id)))
            listening.append(group.create_task(until_end(job_id)))
    for task in listening:
        *told, end = task.result()
        assert [one.data["seq"] for one in told] == list(range(1, len(told) + 1))
        assert end.data == {"status": "succeeded", "version": len(told)}


@pytest.fixture
def api_settings(
    ledger: Ledger, bootstrap: str, topic_prefix: str, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_KAFKA", bootstrap)
    monkeypatch.setenv("LEDGER_POSTGRES", dsn)
    monkeypatch.setenv("LEDGER_PREFIX", topic_prefix)
    monkeypatch.setenv("LEDGER_PARTITIONS", str(ledger.partitions))


@asynccontextmanager
async def api_process(directory: Path) -> AsyncIterator[tuple[Child, int]]:
    [port] = free_ports(1)
    words = [sys.executable, "-m", "cli.main", "api", "--port", str(port)]
    child = Child(words, log=directory / f"api-{port}.log", directory=Path.cwd())
    try:
        await asyncio.to_thread(
            child.wait_until,
            lambda _: answers(f"http://127.0.0.1:{port}/healthz"),
            name="the api",
            seconds=START_SECONDS,
        )
        yield child, port
    finally:
        await asyncio.to_thread(child.stop, signal.SIGTERM, seconds=STOP_SECONDS)


@pytest.mark.usefixtures("running", "api_settings")
async def test_a_killed_process_loses_its_listeners_nothing(server_directory: Path) -> None:
    async with (
        api_process(server_directory) as (child, port),
        client_at(port) as http,
        stream(http, "/v1/events") as events,
    ):
        await events.begun()
        jobs = [await new_job(http) for _ in range(3)]
        told = await events.take(2)
        last = events.id
        child.send(signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            await events.rest()

    async with (
        api_process(server_directory) as (_, port),
        client_at(port) as http,
        stream(http, "/v1/events", last=last) as events,
    ):
        jobs.append(await new_job(http))
        told += await events.take(2)
    assert [one.data["data"]["job_id"] for one in told] == jobs


@pytest.mark.usefixtures("running", "api_settings")
async def test_a_process_that_is_stopped_lets_its_listeners_go(server_directory: Path) -> None:
    async with api_process(server_directory) as (child, port), client_at(port) as http:
        job_id = await new_job(http)
        async with (
            stream(http, "/v1/events") as events,
            connect(f"ws://127.0.0.1:{port}/v1/jobs/{job_id}/progress", proxy=None) as socket,
        ):
            await events.begun()
            await socket.recv()
            child.send(signal.SIGTERM)
            *_, last = await events.rest()
            assert (last.event, last.data["code"]) == ("dropped", "STOPPING")
            await socket.wait_closed()
            assert socket.close_code == 1012
            # Raises for any other exit code than 0.
            await asyncio.to_thread(child.wait, name="the api", seconds=STOP_SECONDS)
