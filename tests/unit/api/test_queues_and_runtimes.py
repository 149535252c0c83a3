"""Queues and runtimes, as lists of both kinds."""

from __future__ import annotations

from ledger.domain.ids import SECOND, Micros, QueueName, RuntimeId, Session
from projections.answers import RuntimeState
from tests.unit.api.problems_of import code_of
from tests.unit.api.world import BEGIN, Client


async def test_a_queue_exists_from_its_first_use(client: Client) -> None:
    assert code_of(await client.get("/v1/queues/q")) == (404, "QUEUE_NOT_FOUND")
    await client.job(queue="q")
    queue = (await client.get("/v1/queues/q")).json()
    assert queue["name"] == "q"
    assert queue["counts"]["pending"] == 1
    assert queue["counts"]["failed"] == 0
    assert queue["oldest_pending_age_seconds"] == 0


async def test_what_can_be_no_queue(client: Client) -> None:
    for name in ("Q", "_ledger", "q" * 64, "%0a", "q%0a"):
        assert code_of(await client.get(f"/v1/queues/{name}")) == (404, "QUEUE_NOT_FOUND")


async def test_queues_by_name(client: Client) -> None:
    for name in ("c", "a", "b"):
        await client.job(queue=name)
    first = (await client.get("/v1/queues", params={"limit": 2})).json()
    assert [queue["name"] for queue in first["items"]] == ["a", "b"]
    rest = (
        await client.get("/v1/queues", params={"limit": 2, "cursor": first["next_cursor"]})
    ).json()
    assert ([queue["name"] for queue in rest["items"]], rest["next_cursor"]) == (["c"], None)
    page = (await client.get("/v1/queues", params={"page": 2, "page_size": 2})).json()
    assert [queue["name"] for queue in page["items"]] == ["c"]
    assert (page["total"], page["total_pages"], page["total_exact"]) == (3, 2, True)


def runtime(name: str, queue: str, ended_at: Micros | None = None) -> RuntimeState:
    return RuntimeState(
        QueueName(queue),
        RuntimeId(name),
        Session("s"),
        ("t",),
        5 * SECOND,
        BEGIN,
        ended_at,
        "silent" if ended_at else None,
        0,
        0,
    )


async def test_runtimes_live_or_ended(client: Client) -> None:
    client.world.runtimes = [runtime("b", "q"), runtime("a", "q", BEGIN), runtime("c", "p")]
    items = (await client.get("/v1/runtimes", params={"queue": "q"})).json()["items"]
    assert [(one["runtime_id"], one["status"], one["ended_because"]) for one in items] == [
        ("a", "ended", "silent"),
        ("b", "live", None),
    ]
    assert items[0]["period_seconds"] == 5
    first = (await client.get("/v1/runtimes", params={"limit": 1})).json()
    assert first["items"][0]["queue"] == "p"
    page = (await client.get("/v1/runtimes", params={"page": 3, "page_size": 1})).json()
    assert page["items"][0]["runtime_id"] == "b"
