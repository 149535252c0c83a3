"""Kafka or Postgres go away and come back: clear errors meanwhile, nothing lost, no restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.processes import Cluster
from tests.support.services import Servers
from tests.support.verdicts import read_history

BROKER = 1
BACK_SECONDS = 60.0


@pytest.fixture
async def api(own_cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    own_cluster.worker("worker")
    own_cluster.runtime("runtime", "default")
    _, url = own_cluster.api()
    async with httpx.AsyncClient(base_url=url, timeout=40.0) as client:
        await own_cluster.until(lambda: answers(url, "/readyz", 200), seconds=60, what="api ready")
        yield client


def answers(url: str, path: str, status: int) -> bool:
    try:
        return httpx.get(f"{url}{path}", timeout=10.0).status_code == status
    except httpx.HTTPError:
        return False


async def submit(api: httpx.AsyncClient, key: str) -> httpx.Response:
    body: dict[str, Any] = {"type": "work", "payload": {"seconds": 0.0}, "idempotency_key": key}
    return await api.post("/v1/jobs", json=body)


async def test_while_the_log_is_away_nothing_is_taken_and_afterwards_all_goes_on(
    own_cluster: Cluster, own_servers: Servers, api: httpx.AsyncClient
) -> None:
    assert (await submit(api, "before")).status_code == 201
    own_servers.kafka.pause(BROKER)
    during = await submit(api, "during")
    assert (during.status_code, during.json()["code"]) == (503, "LOG_UNAVAILABLE")
    assert during.headers["content-type"] == "application/problem+json"
    ready = await api.get("/readyz")
    assert ready.status_code == 503
    own_servers.kafka.resume(BROKER)
    url = str(api.base_url)
    await own_cluster.until(
        lambda: answers(url, "/readyz", 200), seconds=BACK_SECONDS, what="the api is ready again"
    )
    again = await submit(api, "during")
    assert again.status_code in (200, 201), "repeating it under the same key is safe"
    after = await submit(api, "after")
    assert after.status_code == 201
    await until_succeeded(own_cluster, api, again.json()["id"], after.json()["id"])
    history = await read_history(own_cluster.connection, own_cluster.topics, own_cluster.partitions)
    assert len(history.jobs()) == 3
    assert set(history.endings().values()) == {1}
    assert own_cluster.children["worker"].alive
    assert own_cluster.children["runtime"].alive


async def test_while_postgres_is_away_jobs_run_and_the_views_catch_up(
    own_cluster: Cluster, own_servers: Servers, api: httpx.AsyncClient
) -> None:
    before = await submit(api, "before")
    await until_succeeded(own_cluster, api, before.json()["id"])
    own_servers.postgres.kill()
    during = await submit(api, "during")
    assert during.status_code == 201, "a write's answer needs no read model"
    read = await api.get(f"/v1/jobs/{during.json()['id']}")
    assert read.status_code == 503
    assert read.json()["code"] == "VIEW_UNAVAILABLE"
    own_servers.postgres.start()
    await until_succeeded(own_cluster, api, during.json()["id"])
    assert own_cluster.children["worker"].alive


async def until_succeeded(cluster: Cluster, api: httpx.AsyncClient, *job_ids: str) -> None:
    url = str(api.base_url)

    def all_have() -> bool:
        with httpx.Client(base_url=url, timeout=10.0) as client:
            try:
                found = [client.get(f"/v1/jobs/{job_id}").json() for job_id in job_ids]
            except httpx.HTTPError:
                return False
        return all(job.get("status") == "succeeded" for job in found)

    await cluster.until(all_have, seconds=BACK_SECONDS, what=f"{job_ids} have succeeded")
