"""The ledger at a glance."""

from __future__ import annotations

from tests.unit.api.problems_of import code_of
from tests.unit.api.world import Client


async def test_stats_count_jobs_by_status_and_outcomes_by_minute(client: Client) -> None:
    job_id, fence = await client.leased()
    await client.post(f"/v1/jobs/{job_id}/result", json={"fence": fence, "output": 1})
    await client.post("/v1/jobs", json={"type": "report", "queue": "other"})
    found = await client.get("/v1/stats")
    assert found.status_code == 200
    stats = found.json()
    assert (stats["jobs"]["succeeded"], stats["jobs"]["pending"]) == (1, 1)
    assert stats["queues"] == 2
    assert [rate["counts"] for rate in stats["rates"]] == [{"succeeded": 1}]
    one = (await client.get("/v1/stats", params={"queue": "other"})).json()
    assert (one["queues"], one["jobs"]["pending"], one["rates"]) == (1, 1, [])


async def test_minutes_out_of_range_are_refused(client: Client) -> None:
    refused = await client.get("/v1/stats", params={"minutes": "0"})
    assert code_of(refused) == (422, "VALIDATION_FAILED")
