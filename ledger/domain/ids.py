"""Names, ids and instants, and how a job id is made and read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import NewType

Micros = NewType("Micros", int)
"""An instant: microseconds since 1970-01-01 UTC. The only clock that rules see."""

QueueName = NewType("QueueName", str)
JobId = NewType("JobId", str)
"""`<queue>.<uuid7>`: routable without a lookup, parsed from the right."""
CommandId = NewType("CommandId", str)
RuntimeId = NewType("RuntimeId", str)
Session = NewType("Session", str)
"""One start of a runtime; a restart of the same runtime id is another session. Empty over HTTP."""
Fence = NewType("Fence", int)
"""Grows with every lease of a job, unique over its steps. 0: never leased."""
StepName = NewType("StepName", str)

SECOND = 1_000_000
"""Microseconds in a second."""

NO_SESSION = Session("")
"""Of a runtime over HTTP, which has no inbox."""
MAIN = StepName("main")
"""The only step of a job without a flow."""

LEDGER_QUEUE = QueueName("_ledger")
"""Reserved: holds what spans queues, such as bulk operations."""

MODELS_QUEUE = QueueName("models")
"""Where the calls of all models wait; a job's type is its model's name."""

INLINE_BYTES_MAX = 65_536
"""Of the JSON of a payload or output that lies in the log itself."""

QUEUE_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
TYPE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_:.-]{0,99}$"
STEP_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,62}$"
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_QUEUE = re.compile(QUEUE_PATTERN)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""Seconds of the years 1 to 9999."""


def new_job_id(queue: QueueName, at: Micros, seed: bytes) -> JobId:
    """The id of the job that `seed` (its key's or its command's id) asks for at `at`.

    Of its uuid7 the chance is a digest of `seed`: the same ask at the same instant has the same id.
    """
    return JobId(f"{queue}.{uuid7(at, blake2b(seed, digest_size=10).hexdigest())}")


def uuid7(at: Micros, chance: str) -> str:
    """RFC 9562: 48 bits of milliseconds, then 74 of the 80 bits that `chance` has in hex digits."""
    time = f"{at // 1000 & 0xFFFF_FFFF_FFFF:012x}"
    variant = _VARIANT[chance[3]]
    return f"{time[:8]}-{time[8:]}-7{chance[:3]}-{variant}{chance[4:7]}-{chance[7:19]}"


def queue_of(job_id: str) -> QueueName | None:
    """The queue named in a job id; None if it is not one."""
    queue, dot, uuid = job_id.rpartition(".")
    if not dot or not _UUID.fullmatch(uuid) or not _QUEUE.fullmatch(queue):
        return None
    return QueueName(queue)


def rfc3339(at: Micros) -> str:
    """UTC with milliseconds and `Z`, as the HTTP contract writes instants (cut, not rounded)."""
    return _millisecond(at // 1000)


def rfc3339_micros(at: Micros) -> str:
    """UTC with microseconds and `Z`: exact, as records carry instants."""
    return f"{_second(at // SECOND)}.{at % SECOND:06}Z"


@lru_cache(maxsize=4096)
def _millisecond(milliseconds: int) -> str:
    """Cached: an instant of one entry is written for every job in it."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Cached: the instants of a batch lie within few seconds.

    Years end at 9999: an instant beyond, as no rule of ours makes it, is shown as their end.
    """
    moment = _EPOCH + timedelta(seconds=max(_FIRST, min(seconds, _LAST)))
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")


def parse_rfc3339(text: str) -> Micros:
    """Raises ValueError for what is no instant or has no offset from UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC; write …Z")
    return micros_of(moment)


def micros_of(moment: datetime) -> Micros:
    """`moment` must be aware of its zone."""
    since = moment - _EPOCH  # By its parts: to divide it takes three times as long.
    return Micros((since.days * 86_400 + since.seconds) * SECOND + since.microseconds)


def micros(seconds: float) -> int:
    """A duration, from the edge's seconds to the rules' integer microseconds."""
    return round(seconds * SECOND)
