"""taskiq on Kafka: no state but the log, so a job is done when its handler has run. Its broker
sends one job at a time; those of one step are sent beside each other."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from roles import Handled, Peer, Submit, main
from taskiq.api import run_receiver_task
from taskiq_aio_kafka import AioKafkaBroker


class OnTaskiq(Peer):
    """`server` is the broker's address, `/`, and a topic that was never used: what an earlier run
    had not committed would come again."""

    async def prepare(self) -> None:
        broker = self._broker()
        await broker.startup()
        await broker.shutdown()

    async def submitter(self) -> Submit:
        broker = self._broker()

        @broker.task(task_name="noop")
        async def noop(payload) -> None:
            raise AssertionError("it runs elsewhere")

        await broker.startup()

        async def submit(payloads):
            await asyncio.gather(*(noop.kiq(payload) for payload in payloads))

        return submit

    async def work(self, batch: int, handled: Handled, stopped: asyncio.Event) -> None:
        broker = self._broker()
        broker.configure_consumer(
            # A group of its own, or what was sent before it had joined would be passed over.
            group_id="peer_taskiq",
            auto_offset_reset="earliest",
            # Its own choice is another library's, and does not get on with this client.
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        )
        broker.is_worker_process = True

        @broker.task(task_name="noop")
        async def noop(payload) -> None:
            handled(payload)

        await broker.startup()
        running = asyncio.create_task(run_receiver_task(broker, max_async_tasks=batch))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await broker.shutdown()

    def _broker(self) -> AioKafkaBroker:
        address, _, topic = self.server.partition("/")
        return AioKafkaBroker(bootstrap_servers=address, kafka_topic=topic)


if __name__ == "__main__":
    main(OnTaskiq)
