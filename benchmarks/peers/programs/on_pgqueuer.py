"""PgQueuer as its guide has it: asyncpg, one worker, notified by Postgres."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from roles import Handled, Peer, Submit, main


class OnPgQueuer(Peer):
    async def prepare(self) -> None:
        await Queries(await self._driver()).install()

    async def submitter(self) -> Submit:
        queries = Queries(await self._driver())

        async def submit(payloads):
            encoded = [json.dumps(payload).encode() for payload in payloads]
            await queries.enqueue(["noop"] * len(encoded), encoded, [0] * len(encoded))

        return submit

    async def work(self, batch: int, handled: Handled, stopped: asyncio.Event) -> None:
        queuer = PgQueuer(await self._driver())

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            handled(json.loads(job.payload))

        running = asyncio.create_task(queuer.run(batch_size=batch))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        queuer.shutdown.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(running, 5)

    async def _driver(self) -> AsyncpgDriver:
        return AsyncpgDriver(await asyncpg.connect(self.server))


if __name__ == "__main__":
    main(OnPgQueuer)
