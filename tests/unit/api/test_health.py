"""Health, metrics, self-description."""

from __future__ import annotations

from tests.unit.api.problems_of import code_of
from tests.unit.api.world import Client


async def test_alive_whatever_is_away(client: Client) -> None:
    client.world.is_cut = client.world.is_down = True
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_ready_with_log_and_views(client: Client) -> None:
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert set(answer.json()["checks"].values()) == {"ok"}


async def test_not_ready_says_what_is_away(client: Client) -> None:
    client.world.is_cut = True
    answer = await client.get("/readyz")
    assert code_of(answer) == (503, "NOT_READY")
    checks = answer.json()["checks"]
    assert checks["log"] == "ok"
    assert checks["views"] != "ok"


async def test_metrics_count_by_route_not_by_id(client: Client) -> None:
    job = await client.job()
    await client.get(f"/v1/jobs/{job['id']}")
    await client.get("/v1/nowhere")
    text = (await client.get("/metrics")).text
    assert 'ledger_http_requests_total{method="GET",route="/v1/jobs/{id}",status="200"} 1.0' in text
    assert 'route="none",status="404"} 1.0' in text
    assert job["id"] not in text


async def test_head_is_like_get(client: Client) -> None:
    job = await client.job()
    answer = await client.head(f"/v1/jobs/{job['id']}")
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')


async def test_answers_are_not_kept_and_not_guessed_at(client: Client) -> None:
    job = await client.job()
    one = await client.get(f"/v1/jobs/{job['id']}")
    many = await client.get("/v1/jobs")
    assert one.headers["cache-control"] == "no-cache"
    assert many.headers["cache-control"] == "no-store"
    assert one.headers["x-content-type-options"] == "nosniff"


async def test_the_documentation_needs_no_other_host(client: Client) -> None:
    answer = await client.get("/docs")
    page = answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert 'id="JOB_NOT_FOUND"' in page
