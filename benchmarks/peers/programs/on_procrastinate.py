"""Procrastinate as its guide has it: psycopg, one worker, notified by Postgres. The batch is its
`concurrency`: it takes jobs one by one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import procrastinate
from roles import Handled, Peer, Submit, main


class OnProcrastinate(Peer):
    async def prepare(self) -> None:
        async with self._app(4).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def submitter(self) -> Submit:
        app = await self._app(4).open_async()
        task = app.configure_task("noop", queue="noop")

        async def submit(payloads):
            await task.batch_defer_async(*({"payload": payload} for payload in payloads))

        return submit

    async def work(self, batch: int, handled: Handled, stopped: asyncio.Event) -> None:
        app = self._app(batch + 4)

        @app.task(queue="noop", name="noop")
        async def noop(payload) -> None:
            handled(payload)

        async with app.open_async():
            running = asyncio.create_task(
                app.run_worker_async(
                    queues=["noop"], concurrency=batch, install_signal_handlers=False
                )
            )
            stopping = asyncio.create_task(stopped.wait())
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def _app(self, connections: int) -> procrastinate.App:
        return procrastinate.App(
            connector=procrastinate.PsycopgConnector(
                conninfo=self.server, min_size=2, max_size=connections
            )
        )


if __name__ == "__main__":
    main(OnProcrastinate)
