"""oban-bg/oban #1093 and #1087: equal jobs are inserted at the same time. The losers are told that
the job exists; then the winner's transaction is rolled back, and there is none.

Here one owner orders them, and nobody is told anything before the entry that says so stands in the
log (I4, I15, G1, G2).
"""

from __future__ import annotations

import asyncio
from collections import Counter

from ledger.domain.commands import Command, PutTemplate, RequestJob, Template
from ledger.domain.events import JobRequested
from ledger.domain.ids import QueueName
from ledger.log.replies import Reply
from tests.public_cases.conftest import NewLedger
from tests.support.ledger import Client
from tests.support.processes import OWNER_POINTS
from tests.support.verdicts import sound_history

EQUALS = 200
PATIENCE_SECONDS = 2.0
ANSWERED_SECONDS = 120.0
QUEUE = QueueName("default")


def by_key(wave: int) -> RequestJob:
    return RequestJob("keyed", idempotency_key=f"key-{wave}")


def by_scope(wave: int) -> RequestJob:
    """Of a type of which one at a time may be open in a scope."""
    return RequestJob("single", scope=f"scope-{wave}")


async def insist(client: Client, command: Command, command_id: str) -> Reply:
    """As a careful producer: the same command again, until it is answered."""
    while True:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await client.ask(command, command_id=command_id)
        except TimeoutError:
            continue


async def test_of_equal_requests_one_makes_a_job_whenever_the_owner_dies(
    new_ledger: NewLedger,
) -> None:
    cluster = await new_ledger()
    async with cluster.ledger.client() as client, asyncio.TaskGroup() as asking:
        single = Template(concurrency_policy="reject_same_scope")
        cluster.lone_owner("owner")
        await client.ask(PutTemplate(QUEUE, "single", single))
        cluster.kill("owner")
        waves = []
        for wave, point in enumerate(OWNER_POINTS):
            replies = [
                [
                    asking.create_task(insist(client, make(wave), f"{make.__name__}-{wave}-{n}"))
                    for n in range(EQUALS // 2)
                ]
                for make in (by_key, by_scope)
            ]
            waves.append(replies)
            cluster.lone_owner("owner", crash_at=f"{point}:1")
            await cluster.died("owner")
        last = cluster.lone_owner("owner")
        told = [task for replies in waves for its in replies for task in its]
        await cluster.until(
            lambda: not last.alive or all(task.done() for task in told),
            seconds=ANSWERED_SECONDS,
            what="every request is answered",
        )
        assert last.alive, last.output[-3000:]
    history = await sound_history(cluster)
    for keyed, scoped in waves:
        answers = [task.result() for task in keyed]
        assert Counter(reply.outcome for reply in answers)["rejected"] == 0
        [job_id] = {reply.job_id for reply in answers}
        assert len(history.all(JobRequested, job_id)) == 1
        answers = [task.result() for task in scoped]
        codes = Counter(reply.code for reply in answers)
        assert codes == {None: 1, "DUPLICATE_ACTIVE": EQUALS // 2 - 1}
        [job_id] = {reply.job_id for reply in answers}
        assert len(history.all(JobRequested, job_id)) == 1
    assert len(history.jobs()) == 2 * len(OWNER_POINTS)
