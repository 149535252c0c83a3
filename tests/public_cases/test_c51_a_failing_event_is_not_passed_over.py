"""JasperFx/marten #1845 and #1731, kurrent-io/KurrentDB #1330: a projection fails at an event. The
daemon says that it stops there, and its checkpoint has passed it; or it stands still, and says
nothing.

Here rows and checkpoint move in one transaction (I20, I21). A projection that fails stays where it
is, says so, tries again, and goes on with that very event; jobs are decided all the while.
"""

from __future__ import annotations

from typing import Any

import httpx
import psycopg
import pytest

from ledger.embedded.processes import free_ports
from tests.support.processes import Cluster
from tests.support.verdicts import accepted_ids, sound_history

QUEUE = "default"
BAD = "bad"
HOW = {"once": "= 1", "twice in three times": "% 3 > 0", "always": "> 0"}
"""When writing the row of a job of the type `bad` fails, by how often it was tried."""
FAILING = """
CREATE SEQUENCE public.tries;
CREATE FUNCTION public.fails() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.type = 'bad' AND nextval('public.tries') {how} THEN
        RAISE EXCEPTION 'this row is not to be';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fails BEFORE INSERT OR UPDATE ON ledger.open_jobs
    FOR EACH ROW EXECUTE FUNCTION public.fails();
CREATE TRIGGER fails BEFORE INSERT OR UPDATE ON ledger.ended_jobs
    FOR EACH ROW EXECUTE FUNCTION public.fails();
"""

DROP = """
DROP TRIGGER IF EXISTS fails ON ledger.open_jobs;
DROP TRIGGER IF EXISTS fails ON ledger.ended_jobs;
"""


def executed(cluster: Cluster, text: str) -> None:
    with psycopg.connect(cluster.dsn) as connection:
        connection.execute(text.encode())


def report(url: str, path: str = "/healthz") -> tuple[int, dict[str, Any]]:
    try:
        answer = httpx.get(f"{url}{path}", timeout=10)
    except httpx.HTTPError:
        return 0, {}
    return answer.status_code, dict(answer.json())


def errors(url: str) -> list[str]:
    partitions = report(url)[1].get("projector", {}).get("partitions", {})
    return [facts["error"] for facts in partitions.values() if facts["error"]]


@pytest.mark.parametrize("how", HOW)
async def test_an_event_whose_row_is_refused_is_waited_for_in_sight_and_never_skipped(
    cluster: Cluster, how: str
) -> None:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    worker = cluster.lone_worker("worker", LEDGER_HEALTH_PORT=str(port))
    cluster.runtime("runtime", QUEUE)
    async with cluster.operator() as operator:
        before = await operator.submit("work", {}, queue=QUEUE)
        await cluster.until_ended(before.job_id)
        executed(cluster, FAILING.format(how=HOW[how]))
        bad = await operator.submit(BAD, {}, queue=QUEUE)
        jobs: list[Any] = [{"type": "work", "queue": QUEUE}] * 50
        after = accepted_ids(await operator.submit_many(jobs, await_decision=True))
        if how == "always":
            await cluster.until(
                lambda: any("this row is not to be" in error for error in errors(url)),
                seconds=60,
                what="the worker says why its views stand still",
            )
            assert report(url, "/readyz")[0] == 503
            elsewhere = await operator.submit("work", {}, queue="elsewhere")
            assert elsewhere.job["status"] == "pending", "jobs are decided all the same"
            statuses = cluster.statuses()
            assert bad.job_id not in statuses, "nothing was skipped"
            assert not {*after} & statuses.keys(), "and nothing behind it was shown"
            executed(cluster, DROP)
        await cluster.until_ended(*after)
    await cluster.until(
        lambda: report(url, "/readyz")[0] == 200, seconds=60, what="the worker is ready again"
    )
    assert cluster.statuses()[bad.job_id] == "pending"
    assert worker.alive
    executed(cluster, DROP)
    await sound_history(cluster)


async def test_a_projector_that_raises_ends_its_worker_and_the_next_goes_on_with_that_event(
    cluster: Cluster,
) -> None:
    cluster.lone_owner("owner")
    async with cluster.operator() as operator:
        for point in ("projector.before_commit", "projector.after_commit"):
            jobs: list[Any] = [{"type": "work", "queue": QUEUE}] * 5
            await operator.submit_many(jobs, await_decision=True)
            cluster.lone_worker("views", "projector", LEDGER_CRASH_AT=f"{point}:1:raise")
            await cluster.ended("views")
            assert cluster.children["views"].status == 1
            assert point in cluster.children["views"].output, "and it says why"
    cluster.lone_worker("views", "projector")
    history = await sound_history(cluster)
    assert cluster.statuses().keys() == history.jobs()
