"""For whoever writes to the ledger, runs its jobs, or audits it, straight over Kafka.

`Producer` asks for jobs, `Operator` says how they go, `Runtime` runs them, `Auditor` reads the log
itself. `sync` has the
producer and the auditor for code without an event loop.
"""

from ledger.client.auditor import Auditor, HistoryEvent, Verdict
from ledger.client.errors import ClientError, NotAcknowledged, Refused, Undecided
from ledger.client.job_context import (
    AwaitCompletion,
    Context,
    GiveBack,
    JobCancelled,
    JobFailure,
    StoredOutput,
)
from ledger.client.operators import Operator
from ledger.client.producer import Accepted, Producer, Submitted, TemplateStored
from ledger.client.runtime import Runtime, RuntimeFailed
from ledger.log.connection import Bounds, Connection
from ledger.log.errors import LogBroken, LogUnavailable

__all__ = [
    "Accepted",
    "Auditor",
    "AwaitCompletion",
    "Bounds",
    "ClientError",
    "Connection",
    "Context",
    "GiveBack",
    "HistoryEvent",
    "JobCancelled",
    "JobFailure",
    "LogBroken",
    "LogUnavailable",
    "NotAcknowledged",
    "Operator",
    "Producer",
    "Refused",
    "Runtime",
    "RuntimeFailed",
    "StoredOutput",
    "Submitted",
    "TemplateStored",
    "Undecided",
    "Verdict",
]
