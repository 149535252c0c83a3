"""kill -9 of a worker between any two steps of its cleaner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ledger.objects import FolderStore
from processors.clean.orphans import MARKER
from projections.log_source import log_source
from projections.rebuild import verify
from tests.support.processes import Cluster

pytestmark = pytest.mark.rule("S4.7")

PATIENCE_SECONDS = 60
LARGE = {"text": "x" * 100_000}


class Api:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._client.post(path, json=body, headers={"Prefer": "wait=30"})
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    async def collected(self) -> dict[str, Any]:
        """A job whose payload and output lie in the store, its result at its end."""
        asked = {"type": "t", "payload": LARGE, "result_ttl_seconds": 0.5}
        job = await self.post("/v1/jobs", asked)
        lease = await self.post(f"/v1/jobs/{job['id']}/lock", {"runtime_id": "r"})
        said = {"fence": lease["fence"], "output": LARGE}
        done = await self.post(f"/v1/jobs/{job['id']}/result", said)
        await self.post("/v1/jobs/collect", {"ids": [job["id"]]})
        return done

    def told(self, job_id: str) -> list[str]:
        answer = httpx.get(f"{self._client.base_url}/v1/jobs/{job_id}/events", timeout=30)
        return [event["type"].split(".")[2] for event in answer.json()["items"]]


@asynccontextmanager
async def api_of(cluster: Cluster) -> AsyncIterator[Api]:
    _, url = cluster.api()

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    await cluster.until(answers, seconds=PATIENCE_SECONDS, what="the api is ready")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as client:
        yield Api(client)


async def keys(store: FolderStore) -> set[str]:
    found = (await store.listing("")).objects
    return {one.key for one in found if one.key != MARKER}


@pytest.mark.parametrize(
    "point", ["cleaner.after_ask", "cleaner.after_withdrawn", "cleaner.after_deleted"]
)
async def test_what_a_killed_cleaner_left_is_ended_by_the_next_one(
    cluster: Cluster, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    monkeypatch.setenv("LEDGER_OBJECTS", str(folder))
    monkeypatch.setenv("LEDGER_CLEAN_SECONDS", "0.2")
    monkeypatch.setenv("LEDGER_CRASH_AT", f"{point}:1")
    doomed = cluster.worker("first")
    monkeypatch.delenv("LEDGER_CRASH_AT")
    store = FolderStore(folder)
    async with api_of(cluster) as api:
        job = await api.collected()
        payload, output = job["payload_ref"]["key"], job["result"]["output_ref"]["key"]
        await cluster.until(
            lambda: not doomed.alive, seconds=PATIENCE_SECONDS, what=f"it died at {point}"
        )
        left = await keys(store)
        assert left == ({payload} if point == "cleaner.after_deleted" else {payload, output})
        assert "objects_deleted" not in api.told(job["id"])
        cluster.worker("second")
        await cluster.until(
            lambda: "objects_deleted" in api.told(job["id"]),
            seconds=PATIENCE_SECONDS,
            what="the next cleaner has recorded it",
        )
        told = api.told(job["id"])
        assert (told.count("result_withdrawn"), told.count("objects_deleted")) == (1, 1)
        assert await keys(store) == {payload}
    await store.close()
    source = log_source(cluster.connection, cluster.topics)
    assert await verify(cluster.dsn, topic=cluster.topics.events, source=source) == []
