"""DBOS: durable workflows of no step. It looks for work 20 times a second, not once as it would by
itself. The public API has no way to ask for many: they share a transaction."""

from __future__ import annotations

import asyncio

import sqlalchemy
from dbos import DBOS, DBOSClient
from roles import Handled, Peer, Submit, main

VERSION = "1"
OPTIONS = {"queue_name": "noop", "workflow_name": "noop", "app_version": VERSION}
POLL_SECONDS = 0.05


class OnDbos(Peer):
    async def prepare(self) -> None:
        await asyncio.to_thread(self._launch, lambda payload: None, 1)
        await asyncio.to_thread(DBOS.destroy)

    async def submitter(self) -> Submit:
        client = DBOSClient(system_database_url=self.server, application_name="bench")
        engine = sqlalchemy.create_engine(
            self.server.replace("postgresql://", "postgresql+psycopg://")
        )

        def in_one_transaction(payloads):
            with engine.begin() as connection:
                for payload in payloads:
                    client.enqueue_in_transaction(connection, OPTIONS, payload)

        async def submit(payloads):
            await asyncio.to_thread(in_one_transaction, payloads)

        return submit

    async def work(self, batch: int, handled: Handled, stopped: asyncio.Event) -> None:
        await asyncio.to_thread(self._launch, handled, batch)
        await stopped.wait()
        await asyncio.to_thread(DBOS.destroy)

    def _launch(self, handled: Handled, batch: int) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.server,
                "log_level": "ERROR",
                "application_version": VERSION,
            }
        )

        @DBOS.workflow(name="noop")
        async def noop(payload) -> None:
            handled(payload)

        DBOS.launch()
        DBOS.register_queue("noop", polling_interval_sec=POLL_SECONDS, worker_concurrency=batch)


if __name__ == "__main__":
    main(OnDbos)
