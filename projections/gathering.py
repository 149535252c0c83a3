"""What a batch comes to: rows, not yet written. Pure; `projector` writes them.

Two modes with the same rows. With `folding` (stored values of the jobs touched) each event is
folded, and one that does not fit is counted and left out of the history. Without, the events are
only packed, and whoever has the jobs' values adds them; whether they fit is checked against the
rows as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.entries import Entry, command_of
from ledger.domain.events import (
    JOB_EVENTS,
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
    CommandDuplicated,
    CommandRejected,
    JobRequested,
    LeasesExtended,
    ModelDeleted,
    ModelPut,
    QueuePaused,
    QueuePut,
    QueueResumed,
    RequestForwarded,
    RuntimeEnded,
    RuntimeStarted,
    ScheduleDeleted,
    ScheduleDisabled,
    ScheduleEnabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
    TemplatePut,
    Unknown,
)
from ledger.domain.evolve import begin, evolve, extend
from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job
from ledger.domain.step_changes import Misfit
from ledger.log.effective import Effective, TakenOver
from projections.packing import PACKERS, Group, pack_extension, pack_unknown


class Part:
    """The events of one job in a batch."""

    __slots__ = ("entry", "events", "first_offset", "groups")

    def __init__(self, first_offset: int) -> None:
        self.events = 0
        self.groups: list[Group] = []
        self.entry = 0
        """Of the last group."""
        self.first_offset = first_offset
        """Of the first event."""


class CommandRow(Struct, frozen=True, gc=False):
    command_id: str
    outcome: str
    code: str | None
    detail: str
    job_id: str | None
    operation_id: str | None
    position: int
    at: Micros


class RuntimeRow(Struct, frozen=True, gc=False):
    event: RuntimeStarted
    started_at: Micros
    position: int
    ended_at: Micros | None = None
    why: str | None = None


class RuntimeEnd(Struct, frozen=True, gc=False):
    """Of a session that began in an earlier batch."""

    event: RuntimeEnded
    at: Micros
    position: int


class TemplateRow(Struct, frozen=True, gc=False):
    event: TemplatePut
    at: Micros
    by: str


OperatorsEvent = (
    QueuePut
    | QueuePaused
    | QueueResumed
    | SchedulePut
    | ScheduleDeleted
    | ScheduleEnabled
    | ScheduleDisabled
    | ScheduleFired
    | ScheduleSkipped
    | ScheduleStopped
    | ModelPut
    | ModelDeleted
)


OPERATORS_EVENTS: tuple[type[OperatorsEvent], ...] = get_args(OperatorsEvent)


class OperatorsRow(Struct, frozen=True, gc=False):
    """Of what operators say of queues, schedules and models."""

    event: OperatorsEvent
    at: Micros
    by: str
    position: int


class OperationStep(Struct, frozen=True, gc=False):
    event: (
        BulkStarted
        | BulkPartStarted
        | BulkPartAdvanced
        | BulkPartEnded
        | BulkPartConfirmed
        | BulkEnded
    )
    at: Micros


class Gathered:
    """Of one batch."""

    def __init__(self, at: Micros) -> None:
        self.at = at
        """The instant that the fold has reached; never goes back."""
        self.entry = 0
        """Number of the last entry; 0: none in this batch."""
        self.entries = 0
        self.events = 0
        self.commands_read = 0
        self.requests_read = 0
        self.parts: dict[JobId, Part] = {}
        self.folded: dict[JobId, Job] = {}
        """Values of the jobs touched, where they were folded."""
        self.misfits = 0
        self.unknown = 0
        self.took_over = False
        self.strays: set[str] = set()
        """Keys of events of a later version, which may or may not name a job."""
        self.commands: dict[str, CommandRow] = {}
        self.runtimes: dict[tuple[str, str], RuntimeRow] = {}
        self.runtime_ends: list[RuntimeEnd] = []
        self.templates: list[TemplateRow] = []
        self.operations: list[OperationStep] = []
        self.operators: list[OperatorsRow] = []
        self.queues: set[str] = set()
        """Named by something else than a job."""


def touched_jobs(items: Iterable[Effective], *, new_too: bool) -> set[JobId]:
    """Every job that an event in these items may be of; those that begin in them on demand."""
    found: set[JobId] = set()
    new: set[JobId] = set()
    for item in items:
        if isinstance(item, TakenOver):
            continue
        for event in item.entry.events:
            if isinstance(event, JobRequested):
                if event.job_id not in found:
                    new.add(event.job_id)
            elif isinstance(event, JOB_EVENTS):
                found.add(event.job_id)
            elif isinstance(event, LeasesExtended):
                found.update(extension.job_id for extension in event.leases)
            elif isinstance(event, Unknown):
                found.add(JobId(event.key))
    return found | new if new_too else found - new


def gather(
    items: Sequence[Effective], at: Micros, folding: Mapping[JobId, Job] | None = None
) -> Gathered:
    """`at` is the instant that the partition had reached before.

    Hot: once an event, plain and in one piece. 1.5-2 us an event where the values are given, 4-5
    where it folds, on the reference machine.
    """
    rows = Gathered(at)
    parts = rows.parts
    jobs = rows.folded
    packers = PACKERS
    for item in items:
        if isinstance(item, TakenOver):
            rows.took_over = True
            at = max(at, item.take_over.at)
            continue
        entry = item.entry
        number = entry.number
        at = max(at, entry.at)
        offset = item.first_offset - 1
        last_offset = item.last_offset
        rows.entries += 1
        beside = False
        for event in entry.events:
            offset += 1
            kind = type(event)
            packer = packers.get(kind)
            if packer is None:
                beside = True
                if kind is LeasesExtended:
                    _extensions(rows, event, entry, at, offset, item.hash, last_offset, folding)
                elif kind is Unknown:
                    _unknown(rows, event, entry, at, offset, item.hash, last_offset, folding)
                continue
            job_id: JobId = event.job_id  # type: ignore[union-attr,assignment]
            if folding is not None:
                job = jobs.get(job_id) or folding.get(job_id)
                if job is None:
                    if kind is not JobRequested:
                        rows.misfits += 1
                        continue
                    jobs[job_id] = begin(event, at)  # type: ignore[arg-type]
                else:
                    after = evolve(job, event, at)  # type: ignore[arg-type]
                    if isinstance(after, Misfit):
                        rows.misfits += 1
                        continue
                    jobs[job_id] = after
            packed = packer(offset, event)
            part = parts.get(job_id)
            if part is None:
                part = parts[job_id] = Part(offset)
            if part.entry == number:
                part.groups[-1].append(packed)
            else:
                part.entry = number
                of = entry.correlation
                part.groups.append(
                    [at, entry.actor, entry.cause, None if of == job_id else of, b"", packed]
                )
            if offset == last_offset:
                part.groups[-1][4] = item.hash
            part.events += 1
        if beside:
            _beside(rows, entry, at, item.first_offset)
        if entry.cause.startswith("a:"):
            _awaited(rows, entry, at, last_offset)
        rows.events += len(entry.events)
        rows.entry = number
        rows.commands_read = entry.commands
        rows.requests_read = entry.requests
    rows.at = at
    return rows


def _add(
    rows: Gathered,
    job_id: JobId,
    entry: Entry,
    at: Micros,
    packed: list[Any],
    digest: bytes,
) -> None:
    """What the loop above does, for what is rare."""
    part = rows.parts.get(job_id)
    if part is None:
        part = rows.parts[job_id] = Part(packed[0])
    if part.entry == entry.number:
        part.groups[-1].append(packed)
    else:
        of = entry.correlation
        part.groups.append(
            [at, entry.actor, entry.cause, None if of == job_id else of, b"", packed]
        )
        part.entry = entry.number
    if digest:
        part.groups[-1][4] = digest
    part.events += 1


def _extensions(
    rows: Gathered,
    event: Any,
    entry: Entry,
    at: Micros,
    offset: int,
    digest: bytes,
    last_offset: int,
    folding: Mapping[JobId, Job] | None,
) -> None:
    digest = digest if offset == last_offset else b""
    for extension in event.leases:
        job_id = extension.job_id
        if folding is not None:
            job = rows.folded.get(job_id) or folding.get(job_id)
            after = extend(job, extension) if job else None
            if after is None or isinstance(after, Misfit):
                rows.misfits += 1
                continue
            rows.folded[job_id] = after
        _add(rows, job_id, entry, at, pack_extension(offset, event, extension), digest)


def _unknown(
    rows: Gathered,
    event: Any,
    entry: Entry,
    at: Micros,
    offset: int,
    digest: bytes,
    last_offset: int,
    folding: Mapping[JobId, Job] | None,
) -> None:
    """Its job, if there is one, is opaque from here on, and goes on."""
    rows.unknown += 1
    job_id = JobId(event.key)
    if folding is None:
        rows.strays.add(job_id)
        return
    job = rows.folded.get(job_id) or folding.get(job_id)
    if job is None:
        return
    rows.folded[job_id] = replace(job, opaque=job.opaque + 1, version=job.version + 1)
    digest = digest if offset == last_offset else b""
    _add(rows, job_id, entry, at, pack_unknown(offset, event), digest)


# --- Commands ------------------------------------------------------------------------------------


def gives_way(known: CommandRow, later: CommandRow) -> bool:
    """A refusal gives way to whatever comes of the same command later; an acceptance stays."""
    return known.outcome == "rejected" or later.outcome == "accepted"


def _put_command(rows: Gathered, row: CommandRow) -> None:
    known = rows.commands.get(row.command_id)
    if known is None or gives_way(known, row):
        rows.commands[row.command_id] = row


def _awaited(rows: Gathered, entry: Entry, at: Micros, position: int) -> None:
    """The outcome of the command that the entry answers, unless it was only sent on or refused."""
    command_id = command_of(entry.cause)
    if not command_id:
        return
    outcome = ""
    job_id: str | None = None
    operation_id: str | None = None
    for event in entry.events:
        match event:
            case RequestForwarded():
                return
            case CommandRejected():
                pass  # Recorded as such.
            case CommandDuplicated():
                outcome = outcome or "duplicate"
                job_id = job_id or event.job_id
            case _:
                outcome = "accepted"
                job_id = job_id or getattr(event, "job_id", None)
                operation_id = operation_id or getattr(event, "operation_id", None)
    if outcome:
        row = CommandRow(command_id, outcome, None, "", job_id, operation_id, position, at)
        _put_command(rows, row)


# --- What is of no single job --------------------------------------------------------------------
def _beside(rows: Gathered, entry: Entry, at: Micros, first_offset: int) -> None:
    for place, event in enumerate(entry.events):
        position = first_offset + place
        match event:
            case CommandRejected():
                row = CommandRow(
                    *(event.command_id, "rejected", event.code, event.detail, event.job_id),
                    *(None, position, at),
                )
                _put_command(rows, row)
            case RuntimeStarted():
                _start_runtime(rows, event, at, position)
            case RuntimeEnded():
                _end_runtime(rows, event, at, position)
            case TemplatePut():
                rows.queues.add(event.queue)
                rows.templates.append(TemplateRow(event, at, entry.actor))
            case _ if isinstance(event, OPERATORS_EVENTS):
                rows.queues.add(event.queue)
                rows.operators.append(OperatorsRow(event, at, entry.actor, position))
            case BulkPartAdvanced():
                _advance(rows, event, at)
            case (
                BulkStarted()
                | BulkPartStarted()
                | BulkPartEnded()
                | BulkPartConfirmed()
                | BulkEnded()
            ):
                rows.operations.append(OperationStep(event, at))
            case _:
                pass  # Of one job, or of what the intakes held.


def _start_runtime(rows: Gathered, event: RuntimeStarted, at: Micros, position: int) -> None:
    key = (event.queue, event.runtime_id)
    rows.queues.add(event.queue)
    known = rows.runtimes.get(key)
    same = known is not None and known.event.session == event.session
    started_at = known.started_at if known is not None and same else at
    rows.runtimes[key] = RuntimeRow(event, started_at, position)


def _end_runtime(rows: Gathered, event: RuntimeEnded, at: Micros, position: int) -> None:
    key = (event.queue, event.runtime_id)
    known = rows.runtimes.get(key)
    if known is None:
        rows.runtime_ends.append(RuntimeEnd(event, at, position))
    elif known.event.session == event.session and known.ended_at is None:
        rows.runtimes[key] = replace(known, ended_at=at, why=event.why, position=position)


def _advance(rows: Gathered, event: BulkPartAdvanced, at: Micros) -> None:
    """Many small steps become one."""
    last = rows.operations[-1].event if rows.operations else None
    if isinstance(last, BulkPartAdvanced) and last.operation_id == event.operation_id:
        event = replace(event, matched=last.matched + event.matched)
        rows.operations.pop()
    rows.operations.append(OperationStep(event, at))
