"""What the HTTP side needs to know, read once at the root."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.log.connection import Connection
from ledger.log.partitions import PARTITIONS_DEFAULT
from ledger.log.topics import Topics
from ledger.sealing.keyring import Keyring


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`dsn` is the Postgres address of the read models."""

    connection: Connection
    dsn: str
    topics: Topics = field(default_factory=Topics)
    schema: str = "ledger"
    """Of the read models' tables."""
    partitions: int = PARTITIONS_DEFAULT
    """Fixed for the life of the ledger."""
    tenant: str = "default"
    """Idempotency keys of one tenant say nothing to another."""
    source: str = "ledger.api"
    """`ce_source` of the commands sent."""
    objects: str = ""
    """Where payloads and outputs above 64 KiB lie, as LEDGER_OBJECTS says it; empty: nowhere."""
    object_bytes_max: int = 33_554_432
    """Of one payload or output."""
    keyring: Keyring | None = None
    """What secrets are sealed under; None: requests that have some are refused."""
    connections_max: int = 8
    """To Postgres."""
    decision_seconds: float = 5.0
    """How long a write waits for its decision unless it says otherwise."""
    view_seconds: float = 2.0
    """How long a read waits for the position that it needs unless it says otherwise."""
    listeners_max: int = 2_000
    """Event streams and progress sockets that are open at the same time."""
    in_flight_max: int = 10_000
    """Requests that wait for a decision at the same time."""
