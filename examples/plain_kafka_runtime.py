"""A producer and a runtime of the job ledger in nothing but aiokafka: the wire protocol, whole.

    python plain_kafka_runtime.py BOOTSTRAP QUEUE [N]    # runs `echo` jobs, or asks for N of them

docs/kafka-guide.md explains it, and says what is left out.
"""

import asyncio
import json
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import murmur2

PERIOD, MARGIN, SLOTS, INBOX_PARTITIONS = 2.0, 2.0, 10, 8
Body = dict[str, Any]
Held = tuple[str, int]  # Job and fence.


def partition_of(key: str, count: int) -> int:
    return int(murmur2(key.encode()) & 0x7FFFFFFF) % count


async def send(producer: Any, topic: str, queue: str, kind: str, body: Body) -> None:
    partition = partition_of(queue, len(await producer.partitions_for(topic)))
    event = {"specversion": "1.0", "source": "plain", "type": f"ledger.{kind}.v1"}
    event["id"] = str(uuid.uuid4())  # Of the command: sending it again under the same id is safe.
    headers = [(f"ce_{name}", value.encode()) for name, value in event.items()]
    value = json.dumps(body, allow_nan=False).encode()
    await producer.send_and_wait(topic, value, queue.encode(), partition, headers=headers)


async def submit(bootstrap: str, queue: str, count: int, prefix: str = "") -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        for number in range(count):
            body = {"type": "echo", "queue": queue, "payload": {"number": number}}
            await send(producer, f"{prefix}ledger.requests.v1", queue, "job.request", body)


class PlainRuntime:
    def __init__(self, bootstrap: str, runtime_id: str, queue: str, prefix: str = "") -> None:
        self.bootstrap, self.id, self.queue, self.prefix = bootstrap, runtime_id, queue, prefix
        self.handlers: dict[str, Any] = {"echo": echo}
        self.session = f"{time.time_ns():020x}"  # noqa: TID251 (sessions sort by their start)
        self.beat = self.received = self.slots = 0
        self.asked_at: dict[int, float] = {}  # By beat: a lease counts from when it was asked for.
        self.ends_at: dict[Held, float] = {}  # The leases held.
        self.tasks: dict[Held, asyncio.Task[None]] = {}
        self.words: dict[Held, Body] = {}  # What became of jobs, until it is acknowledged.
        self.said_in: dict[Held, int] = {}  # The first beat that came with the word.
        self.news = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        topic = f"{self.prefix}ledger.assigned.{self.queue}.v1"
        inbox = TopicPartition(topic, partition_of(self.id, INBOX_PARTITIONS))
        async with (
            AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all") as self.producer,
            AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None) as consumer,
        ):
            while inbox.topic not in await consumer.topics():
                await self.say()  # Without slots: it makes the owner make the inbox.
                await asyncio.sleep(0.2)
            consumer.assign([inbox])
            await consumer.seek_to_end(inbox)
            await consumer.position(inbox)
            self.slots = SLOTS  # Whatever is assigned from now on will be read.
            await asyncio.gather(self.listen(consumer, inbox, stop), self.speak(stop))
            for held, task in self.tasks.items():
                task.cancel()
                self.words[held] = {"kind": "release", "job_id": held[0], "fence": held[1]}
            await self.say(leaving=True)

    async def speak(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.say()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), PERIOD)
            self.news.clear()
            for held, task in self.tasks.items():
                if time.monotonic() > self.ends_at.get(held, 0) - MARGIN:
                    task.cancel()  # Nobody extended the lease: stop in time.

    async def say(self, leaving: bool = False) -> None:
        """The beat, with every word that is not acknowledged: idempotent, the last one wins."""
        self.beat += 1
        self.asked_at[self.beat] = time.monotonic()
        who: Body = {"runtime_id": self.id, "session": self.session, "queue": self.queue}
        beat = who | {"beat": self.beat, "types": list(self.handlers), "received": self.received}
        free = 0 if leaving else max(0, self.slots - len(self.tasks))
        leases = [{"job_id": job, "fence": fence} for job, fence in self.ends_at]
        beat |= {"slots": free, "leases": leases, "period_seconds": PERIOD, "leaving": leaving}
        report = who | {"reports": list(self.words.values()), "beat": beat}
        said = ("runtime.report", report) if self.words else ("runtime.beat", beat)
        await send(self.producer, f"{self.prefix}ledger.commands.v1", self.queue, *said)

    async def listen(self, consumer: Any, inbox: Any, stop: asyncio.Event) -> None:
        while not stop.is_set():
            for record in (await consumer.getmany(timeout_ms=200)).get(inbox, ()):
                body = json.loads(record.value)
                mine = record.key in (None, self.id.encode())  # None: for every runtime.
                if mine and body.get("session", self.session) == self.session:
                    self.take(dict(record.headers)["ce_type"], body)

    def take(self, kind: bytes, body: Body) -> None:
        if kind == b"ledger.runtime.owner_changed.v1":
            self.news.set()  # It knows of no free slots yet.
        elif kind == b"ledger.runtime.assigned.v1":
            for item in body["items"]:
                if item["number"] == self.received + 1:  # Else it is sent again, in order.
                    self.received += 1
                    if not item.get("void"):
                        held = item["job_id"], item["fence"]
                        self.ends_at[held] = self.asked_at[item["beat"]] + item["lease_seconds"]
                        self.tasks[held] = asyncio.create_task(self.work(held, item["job"]))
        elif kind == b"ledger.runtime.beat_answered.v1":
            for left in body.get("leases", ()):
                if (held := (left["job_id"], left["fence"])) in self.ends_at:
                    self.ends_at[held] = self.asked_at[body["beat"]] + left["expires_in_seconds"]
            over = [held for held, beat in self.said_in.items() if beat <= body["beat"]]
            over += [(drop["job_id"], drop["fence"]) for drop in body.get("drop", ())]
            for held in over:
                for known in (self.said_in, self.words, self.ends_at):
                    known.pop(held, None)
                if task := self.tasks.get(held):
                    task.cancel()

    async def work(self, held: Held, job: Body) -> None:
        try:
            word = {"kind": "result", "output": await self.handlers[job["type"]](job["payload"])}
        except Exception as error:
            word = {"kind": "fail", "code": "HANDLER_ERROR", "message": str(error)[:2048]}
        finally:
            del self.tasks[held]
        self.words[held] = word | {"job_id": held[0], "fence": held[1]}
        self.said_in[held] = self.beat + 1
        self.news.set()


async def echo(payload: Body) -> Body:
    return {"echo": payload}


if __name__ == "__main__":
    where, queue, *count = sys.argv[1:]
    running = PlainRuntime(where, "plain-1", queue).run
    asyncio.run(submit(where, queue, int(*count)) if count else running(asyncio.Event()))
