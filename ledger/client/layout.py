"""How many partitions the ledger has, as its topics say."""

from __future__ import annotations

from ledger.log.admin import Admin
from ledger.log.connection import Connection
from ledger.log.errors import LogUnavailable
from ledger.log.topics import Topics


def connection_to(bootstrap: str | Connection) -> Connection:
    if isinstance(bootstrap, Connection):
        return bootstrap
    return Connection(bootstrap=bootstrap, client_id="ledger-client")


async def partitions_of(connection: Connection, topics: Topics) -> int:
    """Raises `LogUnavailable` where nobody answers or the topic is not there."""
    async with Admin(connection) as admin:
        found = await admin.find([topics.requests])
    if topics.requests not in found:
        raise LogUnavailable(f"there is no topic {topics.requests}; `ledger topics apply` makes it")
    return found[topics.requests].partitions
