"""How to reach the brokers, and how long each wait may last."""

from __future__ import annotations

from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Literal

from ledger.log.clients import Clients

RECORD_BYTES_MAX = 1_048_576
"""`max.message.bytes` of every topic: the broker's bound on one batch as sent."""
BATCH_BYTES_MAX = 1_040_000
"""Of one batch before compression: it fits the broker's bound even where that gains nothing."""
ENTRY_BYTES_MAX = BATCH_BYTES_MAX // 2
"""Of one entry: an entry never spans two batches, and leaves room for another."""
FETCH_BYTES_MAX = RECORD_BYTES_MAX
"""Of one partition in one fetch: about one batch, so that no partition blocks the others."""
COMMAND_BYTES_MAX = 262_144
"""Of one record of an intake; a runtime's report is the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Seconds that each wait on a broker may last before its outcome counts as unknown."""

    connect_seconds: float = 15.0
    request_seconds: float = 10.0
    append_seconds: float = 10.0
    offsets_seconds: float = 5.0
    admin_seconds: float = 30.0
    close_seconds: float = 2.0
    poll_seconds: float = 0.5
    """One wait for records; also how soon a position that only control records moved is seen."""
    fetch_seconds: float = 1.0
    """How long the broker holds a fetch back that finds nothing."""
    shared_fetch_seconds: float = 0.2
    """The same where partitions come and go: one that is followed or resumed meanwhile waits for
    it."""
    stuck_seconds: float = 10.0
    """A consumer that lags and does not move for so long is made anew, then given up."""
    session_seconds: float = 6.0
    """A member of the owners' group that is silent for so long loses its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """`bootstrap` is `host:port[,host:port…]`."""

    bootstrap: str
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_context: SSLContext | None = field(default=None, repr=False)
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    client_id: str = "ledger"
    bounds: Bounds = Bounds()
    clients: Clients = field(default=Clients(), repr=False)

    def client(self, role: str) -> dict[str, Any]:
        """The arguments that every aiokafka client takes; `role` names it in the broker's log."""
        return {
            "bootstrap_servers": self.bootstrap.split(","),
            "client_id": f"{self.client_id}-{role}",
            "request_timeout_ms": int(self.bounds.request_seconds * 1000),
            "security_protocol": self.security_protocol,
            "ssl_context": self.ssl_context,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
        }
