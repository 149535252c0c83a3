"""aio-libs/aiokafka #1154 and #344: after the broker has come back a consumer is alive, is assigned
its partitions, and never fetches again; nothing outside can tell.

Here whoever reads knows where the log ends. A reader that lags and does not move is made anew, and
if that does not help the process ends with an error (see `ledger.log.intake`, whose own tests take
a consumer's fetches away); what cannot work says so at /readyz. So whatever the broker does, once
it is back everything goes on, by itself or after a supervisor's restart (G11, G2).
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx
import pytest

from ledger.embedded import Kafka
from ledger.embedded.processes import free_ports
from tests.support.insisting import insist
from tests.support.processes import Cluster
from tests.support.services import Servers
from tests.support.verdicts import sound_history

BROKER = 1
QUEUES = ("red", "green", "blue")
FAULTS = ("kill", "freeze", "restart") * int(os.environ.get("LEDGER_TEST_ROUNDS", "1"))
FROZEN_SECONDS = 4.0
"""Longer than a request to the broker may take."""
BACK_SECONDS = 60.0


def status(url: str) -> int:
    try:
        return httpx.get(f"{url}/readyz", timeout=10).status_code
    except httpx.HTTPError:
        return 0


def batch(number: int) -> list[Any]:
    return [
        {
            "type": "work",
            "queue": QUEUES[n % len(QUEUES)],
            "lease_seconds": 2,
            "idempotency_key": f"{number}-{n}",
            "retry": {"max_attempts": 20, "backoff_seconds": [0.1]},
        }
        for n in range(30)
    ]


async def harm(kafka: Kafka, fault: str) -> None:
    match fault:
        case "kill":
            await asyncio.to_thread(kafka.kill, BROKER)
            await asyncio.to_thread(kafka.restart, BROKER)
        case "restart":
            await asyncio.to_thread(kafka.restart, BROKER)
        case "freeze":
            await asyncio.to_thread(kafka.pause, BROKER)
            await asyncio.sleep(FROZEN_SECONDS)
            kafka.resume(BROKER)


class Supervised:
    """As a supervisor does: what has ended with an error is started again; what ended well, or
    without a reason, fails the test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.restarts = 0
        self._variables = {"LEDGER_HEALTH_PORT": str(port)}
        cluster.lone_worker("worker", **self._variables)
        cluster.runtime("runtime", ",".join(QUEUES))

    async def __call__(self) -> None:
        while True:
            for name in ("worker", "runtime"):
                child = self.cluster.children[name]
                if child.alive:
                    continue
                assert child.status == 1, f"{name}: {child.output[-2000:]}"
                assert '"level": "critical"' in child.output or "Error" in child.output
                self.restarts += 1
                if name == "worker":
                    self.cluster.lone_worker("worker", **self._variables)
                else:
                    self.cluster.runtime("runtime", ",".join(QUEUES))
            await asyncio.sleep(0.1)  # Between two looks.


@pytest.mark.slow
async def test_after_each_restart_of_the_broker_all_work_goes_on(
    own_cluster: Cluster, own_servers: Servers
) -> None:
    supervised = Supervised(own_cluster)
    supervisor = asyncio.create_task(supervised())
    jobs: list[str] = []
    async with own_cluster.operator(wait_seconds=3.0) as operator:
        jobs += await insist(operator, batch(0))
        for number, fault in enumerate(FAULTS, start=1):
            asking = asyncio.create_task(insist(operator, batch(number)))
            began = asyncio.get_running_loop().time()
            await harm(own_servers.kafka, fault)
            jobs += await asking
            await own_cluster.until_ended(*jobs, seconds=BACK_SECONDS)
            passed = asyncio.get_running_loop().time() - began
            print(f"{fault}: all is done {passed:.1f} s after it; {supervised.restarts} restarts")
            await own_cluster.until(
                lambda: status(supervised.url) == 200, seconds=BACK_SECONDS, what="it is ready"
            )
    supervisor.cancel()
    await asyncio.wait([supervisor])
    assert supervisor.cancelled(), supervisor.exception()
    history = await sound_history(own_cluster)
    assert history.jobs() == {*jobs}
    assert len(jobs) == len({*jobs}) == 30 * (1 + len(FAULTS))


async def test_a_worker_that_cannot_reach_the_log_says_so(
    own_cluster: Cluster, own_servers: Servers
) -> None:
    supervised = Supervised(own_cluster)
    async with own_cluster.operator() as operator:
        job = await operator.submit("told", {"seconds": 600}, queue="red", lease_seconds=5)
        await own_cluster.until_ran(job.job_id)
        await own_cluster.until(
            lambda: status(supervised.url) == 200, seconds=60, what="it is ready"
        )
        # Its lease lapses while nobody can say so.
        own_cluster.kill("runtime")
        own_servers.kafka.pause(BROKER)
        await own_cluster.until(
            lambda: status(supervised.url) == 503, seconds=60, what="the worker is not ready"
        )
        own_servers.kafka.resume(BROKER)
        await own_cluster.until(
            lambda: status(supervised.url) == 200, seconds=60, what="it is ready again"
        )
        own_cluster.runtime("runtime", "red")
        await own_cluster.until_ended(job.job_id)
    assert own_cluster.children["worker"].alive
    await sound_history(own_cluster)
