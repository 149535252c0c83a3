"""Real Kafka and real Postgres as child processes, for the demo, development, tests and CI.

Nothing here is a fake: the same servers, the same wire, the same way of failing. Every server that
is started here stops with the process that started it, however that process ends (see
`processes`). Everything is synchronous; a caller with an event loop uses a thread.
"""

from ledger.embedded.kafka import Kafka
from ledger.embedded.postgres import Postgres
from ledger.embedded.processes import EmbeddedError
from ledger.embedded.stack import Addresses, AlreadyRunning, Running, Stack

__all__ = [
    "Addresses",
    "AlreadyRunning",
    "EmbeddedError",
    "Kafka",
    "Postgres",
    "Running",
    "Stack",
]
