"""What the read side answers with. Rows become these at once; nothing else leaves `reads`.

A position is the offset of the last record of a partition that an answer includes; -1: none yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from msgspec import Raw, Struct

from ledger.domain.commands import Limit, Model, QueueSettings, RemoveObjects, Template
from ledger.domain.events import Labels
from ledger.domain.ids import Fence, JobId, Micros, QueueName, RuntimeId, Session, StepName
from ledger.domain.job import Job
from ledger.domain.queues import Paused
from ledger.domain.schedule_table import Scheduled

T = TypeVar("T")

Positions = Mapping[int, int]
"""By partition."""


def position_text(positions: Positions) -> str:
    """`partition:offset[,…]`, as the header `Ledger-Position` has it."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


class Stored(Struct, frozen=True, gc=False):
    """A job as of a position of its partition, payload and output put back."""

    job: Job
    partition: int
    offset: int

    @property
    def position(self) -> str:
        return f"{self.partition}:{self.offset}"


class JobFilter(Struct, frozen=True, gc=False, kw_only=True):
    """All given conditions hold; an empty tuple, an empty dict or None asks for nothing."""

    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    labels: Labels = {}
    scope: str | None = None
    error_code: str | None = None
    retried_from: str | None = None
    schedule: str | None = None
    created_from: Micros | None = None
    """The first instant that counts."""
    created_to: Micros | None = None
    """The first instant that does not count any more."""


class Removable(Struct, frozen=True, gc=False):
    """A job that the cleaner has something to do with, without payload and output."""

    job: Job
    due_at: Micros


class Removal(Struct, frozen=True, gc=False):
    """Of an owner's objects; not ended."""

    operation_id: str
    asked: RemoveObjects
    started_at: Micros


class Jobs(Struct, frozen=True, gc=False):
    items: tuple[Job, ...]
    next_cursor: str | None
    """None: this was the last page."""
    positions: Positions
    """Of all partitions, in the items' own snapshot."""


class JobsPage(Struct, frozen=True, gc=False):
    items: tuple[Job, ...]
    page: int
    page_size: int
    total: int
    total_exact: bool
    """False: more than 10,000 match and `total` is an estimate."""
    positions: Positions

    @property
    def total_pages(self) -> int:
        return -(-self.total // self.page_size)


class HistoryEvent(Struct, frozen=True, gc=False):
    """One event of a job. `data` is its JSON, payload and output put back."""

    seq: int
    """1, 2, 3 … within the job: its version once this event was applied."""
    type: str
    at: Micros
    actor: str
    cause: str
    correlation: str
    data: Raw
    partition: int
    offset: int
    hash: str
    """Hex, of the chain up to its entry; empty unless it is the entry's last record."""

    @property
    def position(self) -> str:
        return f"{self.partition}:{self.offset}"


class History(Struct, frozen=True, gc=False):
    items: tuple[HistoryEvent, ...]
    """Oldest first."""
    next_seq: int | None
    """Ask for what comes after it; None: nothing does yet."""
    partition: int
    offset: int

    @property
    def position(self) -> str:
        return f"{self.partition}:{self.offset}"


class Attempt(Struct, frozen=True, gc=False):
    """One lease's worth of trying."""

    step: StepName
    fence: Fence
    attempt: int
    runtime_id: RuntimeId
    session: Session
    granted_at: Micros
    started_at: Micros | None = None
    ended_at: Micros | None = None
    how: str | None = None
    """succeeded, failed, expired, released or cancelled; None: it has not ended."""
    code: str | None = None
    """Why it failed or expired."""


class Rows(Struct, Generic[T], frozen=True, gc=False):
    """All there are of a kind that is never many."""

    items: tuple[T, ...]
    positions: Positions
    """Of all partitions, in the items' own snapshot."""


class Rate(Struct, frozen=True, gc=False):
    """How many jobs came to an outcome in a minute."""

    minute: Micros
    """Its beginning."""
    outcome: str
    count: int


class QueueState(Struct, frozen=True, gc=False):
    name: QueueName
    partition: int
    counts: Mapping[str, int]
    """Jobs by status, every status named."""
    oldest_pending_at: Micros | None
    """When the job was created that has been pending for longest."""
    offset: int
    settings: QueueSettings = QueueSettings()
    paused: Paused | None = None


class QueueHeld(Struct, frozen=True, gc=False):
    """A queue, and what its limits depend on, from one snapshot."""

    state: QueueState
    limits: Mapping[str, tuple[Limit, ...]]
    """Of the newest templates, by type."""
    held: tuple[Job, ...]
    """Jobs with a live lease, where anything limits them."""
    is_whole: bool
    """False: there are more."""


class RuntimeState(Struct, frozen=True, gc=False):
    """The latest session of a runtime in one queue."""

    queue: QueueName
    runtime_id: RuntimeId
    session: Session
    types: tuple[str, ...]
    period_us: int
    started_at: Micros
    ended_at: Micros | None
    why: str | None
    """left, silent or superseded; None: it lives."""
    partition: int
    offset: int
    """Where the log speaks of it last."""


class CommandOutcome(Struct, frozen=True, gc=False):
    """Kept for an hour, for refused commands and those whose sender awaits the outcome."""

    command_id: str
    outcome: str
    """accepted, duplicate or rejected."""
    code: str | None
    detail: str
    job_id: JobId | None
    operation_id: str | None
    partition: int
    offset: int
    at: Micros

    @property
    def position(self) -> str:
        return f"{self.partition}:{self.offset}"


class TemplateVersion(Struct, frozen=True, gc=False):
    queue: QueueName
    type: str
    version: int
    template: Template
    put_at: Micros
    by: str
    partition: int
    offset: int


class ScheduleState(Struct, frozen=True, gc=False):
    queue: QueueName
    name: str
    its: Scheduled
    partition: int
    offset: int


class ModelState(Struct, frozen=True, gc=False):
    name: str
    model: Model
    """Its key sealed."""
    partition: int
    offset: int


class Operation(Struct, frozen=True, gc=False):
    """A bulk operation over all partitions."""

    id: str
    kind: str
    where: Raw
    reason: str
    by: str
    partitions: int
    """How many have a part in it."""
    confirmed: int
    """How many have confirmed theirs."""
    matched: int
    """Jobs that were found to match so far; final once it has ended."""
    started_at: Micros
    ended_at: Micros | None


class Consumed(Struct, frozen=True, gc=False):
    """How far a partition's owner had read its intakes, as of a position."""

    commands: int
    """The next offset to read."""
    requests: int
    offset: int
