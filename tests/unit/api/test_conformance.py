"""Schemathesis against the app behind a real server: what the OpenAPI document says is what the app
does, and no input makes it fail."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS, load_all_checks

from api.app import DOCUMENT
from tests.unit.api.world import Client, World, app_over

pytestmark = pytest.mark.slow
EXAMPLES_MAX = 10
"""An operation: all of them stay within a minute."""
load_all_checks()
schema = schemathesis.openapi.from_dict(msgspec.json.decode(msgspec.json.encode(DOCUMENT)))


@dataclass
class Server:
    url: str
    job_ids: list[str]


KNOWN = {"queue": "default", "type": "t", "name": "known"}
"""What a path names, half of the time."""


async def said_by_operators(client: Client) -> None:
    for path, body in (
        ("/v1/queues/default/templates/t", {"title": "of the tests"}),
        ("/v1/queues/default/schedules/known", {"cron": "0 3 * * *", "type": "t"}),
        ("/v1/models/known", {"base_url": "http://model.example", "max_concurrency": 2}),
    ):
        assert (await client.put(path, json=body)).status_code == 201


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """On loopback, in a thread of its own, with jobs in several states."""
    ready: list[Server] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        world = World()
        world.parks = False  # Nobody sends jobs here, so every wait would be for nothing.
        config = uvicorn.Config(app_over(world), port=0, log_level="error", lifespan="on")
        uvicorn_server = uvicorn.Server(config)
        serving = asyncio.create_task(uvicorn_server.serve())
        while not uvicorn_server.started:  # noqa: ASYNC110 (of plain state)
            await asyncio.sleep(0.01)
        port = uvicorn_server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        async with Client(base_url=url) as client:
            ids = [(await client.job())["id"], (await client.leased())[0], await client.succeeded()]
            await said_by_operators(client)
        ready.append(Server(url, ids))
        started.set()
        while not stop.is_set():  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.05)
        uvicorn_server.should_exit = True
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    yield ready[0]
    stop.set()
    thread.join(10)


LEFT_OUT = CHECKS.get_by_names(["positive_data_acceptance"])
"""A well-formed request may still be refused: the fence is stale, the template unknown."""
NO_FAILURE = CHECKS.get_by_names(["not_a_server_error"])
"""Of what the contract calls 503 itself: a position that the views have not reached."""


@schema.exclude(operation_id="streamEvents").parametrize()  # It never ends.
@settings(
    max_examples=EXAMPLES_MAX,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_the_app_does_what_its_document_says(server: Server, case: Any) -> None:
    if "id" in (case.path_parameters or {}):
        chosen = crc32(case.path_parameters["id"].encode()) % (len(server.job_ids) + 1)
        case.path_parameters["id"] = [*server.job_ids, case.path_parameters["id"]][chosen]
    for name, known in KNOWN.items():
        given = str((case.path_parameters or {}).get(name, "-"))
        if re.fullmatch(r"[a-z0-9][a-z0-9_-]*", given) and crc32(given.encode()) % 2:
            case.path_parameters[name] = known
    response = case.call(base_url=server.url)
    is_behind = response.status_code == 503 and response.json()["code"] == "VIEW_BEHIND"
    case.validate_response(response, excluded_checks=LEFT_OUT + (NO_FAILURE if is_behind else []))
