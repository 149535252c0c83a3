"""robinhood/faust #586 and faust-streaming/faust #175: a record that cannot be read ends its
processor, without a line in the log.

Here every topic may hold anything. What cannot be read of an intake is set aside, with its offset,
its digest and the reason, and counted (I1, I29); of any other topic it is passed over. Everybody
goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from ledger.domain.events import CommandRejected, InputQuarantined
from ledger.domain.ids import QueueName
from ledger.log.command_codec import Unreadable, command_from
from ledger.log.outbox import Outbox
from ledger.log.partitions import INBOX_PARTITIONS, REPLIES_PARTITIONS
from ledger.log.records import Header, Outgoing, Record
from tests.support.poison import POISON
from tests.support.processes import Cluster
from tests.support.records import records_of
from tests.support.verdicts import accepted_ids, sound_history

QUEUE = QueueName("default")
JOBS = 200


def poisoned(like: Record, place: str) -> Iterator[Outgoing]:
    """Each value under the headers of a real record, under forged ones, and under none."""
    for number, value in enumerate(POISON.values()):
        for kind in ("real", "forged", "none"):
            headers: list[Header] = [
                (key, text.replace(b".v1", b".v9") if kind == "forged" else text)
                for key, text in ((key, text or b"") for key, text in like.headers)
                if key != "ce_id"
            ]
            headers.append(("ce_id", f"{place} {kind} {number}".encode()))
            yield like.key, value, [] if kind == "none" else headers


async def poison(cluster: Cluster, topic: str, partitions: int) -> None:
    """Every partition of the topic, in which there must be a real record somewhere."""
    [like, *_] = await records_of(cluster.connection, topic, *range(partitions))
    outbox = Outbox(cluster.connection)
    await outbox.start()
    for partition in range(partitions):
        await outbox.send(topic, partition, [*poisoned(like, f"{topic} {partition}")])
    await outbox.close()


async def test_poison_in_every_topic_is_set_aside_and_everybody_goes_on(cluster: Cluster) -> None:
    cluster.worker("worker")
    cluster.runtime("runtime", QUEUE)
    topics, partitions = cluster.topics, cluster.partitions
    intakes = (topics.requests, topics.commands)
    async with cluster.operator() as operator:
        first = await operator.submit("told", {}, queue=QUEUE)
        await cluster.until_ended(first.job_id)
        for topic in (*intakes, topics.events):
            await poison(cluster, topic, partitions)
        await poison(cluster, topics.assigned(QUEUE), INBOX_PARTITIONS)
        await poison(cluster, topics.replies, REPLIES_PARTITIONS)
        jobs: list[Any] = [{"type": "work", "queue": QUEUE}] * JOBS
        job_ids = accepted_ids(await operator.submit_many(jobs, await_decision=True))
        ends = await cluster.until_ended(*job_ids)
    assert set(ends.values()) == {"succeeded"}
    assert all(child.alive for child in cluster.children.values())

    history = await sound_history(cluster)
    assert len(history.jobs()) == JOBS + 1, "no poison made a job"
    assert any(event.code == "VALIDATION_FAILED" for event in history.all(CommandRejected))
    aside = history.all(InputQuarantined)
    assert all(event.reason for event in aside)
    for topic in intakes:
        records = await records_of(cluster.connection, topic, *range(partitions))
        unreadable = [each for each in records if isinstance(command_from(each), Unreadable)]
        assert len(unreadable) > len(POISON)
        assert Counter(
            (each.offset, sha256(each.value or b"").hexdigest()) for each in unreadable
        ) == Counter((event.offset, event.sha256) for event in aside if event.topic == topic)
        dead = await records_of(cluster.connection, topics.dead(topic), *range(partitions))
        assert Counter(each.value for each in dead) == Counter(each.value for each in unreadable)
