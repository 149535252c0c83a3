"""All that a partition's owner knows: the fold of its entries. Values are immutable, the tables
that hold them are not: `apply` moves them by one entry, in place, and never raises."""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec import Struct

from ledger.domain import deadlines
from ledger.domain.commands import ProgressSaid, Template, Where
from ledger.domain.creation import Pinned
from ledger.domain.entries import Entry, TakeOver, command_of
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
    CommandsConsumed,
    Event,
    InputLost,
    InputQuarantined,
    JobEvent,
    JobRequested,
    LeaseGranted,
    LeasesExtended,
    RequestForwarded,
    RuntimeEnded,
    RuntimeStarted,
    TemplatePut,
    Unknown,
)
from ledger.domain.ids import SECOND, Fence, JobId, Micros, QueueName, RuntimeId, Session
from ledger.domain.job import Job, Misfit, Pending, begin, evolve, extend, held_lease
from ledger.domain.ready import Place, Ready
from ledger.domain.timers import Timers

KEYED = "ik."
"""Ids of commands sent under an Idempotency-Key: `ik.<digest of route and key>.<of content>`."""


class Bounds(Struct, frozen=True, gc=False):
    """What one partition may hold in memory."""

    open_bytes_max: int = 1 << 30
    closed_us: int = 3_600 * SECOND
    closed_max: int = 200_000
    closed_bytes_max: int = 64 << 20
    keys_max: int = 5_000_000
    commands_us: int = 3_600 * SECOND
    commands_max: int = 5_000_000
    refusals_max: int = 10_000


class Outcome(Struct, frozen=True, gc=False):
    """What became of a command, for whoever asks again under the same id."""

    content: str
    """Digest of what it asked for, where its id says so."""
    at: Micros
    job_id: JobId | None = None
    grants: tuple[LeaseGranted, ...] = ()
    rejected: CommandRejected | None = None


class KeyHolder(Struct, frozen=True, gc=False):
    job_id: JobId
    content: bytes
    until: Micros


class RuntimeSession(Struct, frozen=True, gc=False):
    session: Session
    types: tuple[str, ...]
    period_us: int
    started_at: Micros
    number: int = 0
    """Of the last assignment given to it."""


class BulkPart(Struct, frozen=True, gc=False):
    """A bulk cancel at work in this partition."""

    where: Where
    requests_end: int
    reason: str
    by: str
    matched: int = 0


class Bulk(Struct, frozen=True, gc=False):
    """In `_ledger`: a bulk operation over all partitions."""

    event: BulkStarted
    confirmed: dict[int, int]
    ended: bool = False


class Queue:
    """What one queue holds beside its jobs."""

    __slots__ = ("name", "pinned", "ready", "sessions", "templates")

    def __init__(self, name: QueueName, ready: Ready) -> None:
        self.name = name
        self.ready = ready
        self.templates: dict[str, dict[int, Template]] = {}
        """Versions by type: the newest, and those that open jobs hold."""
        self.pinned: Counter[tuple[str, int]] = Counter()
        self.sessions: dict[RuntimeId, RuntimeSession] = {}

    def template(self, job_type: str, version: int | None = None) -> Pinned | None:
        versions = self.templates.get(job_type)
        if not versions:
            return None
        wanted = max(versions) if version is None else version
        found = versions.get(wanted)
        return Pinned(wanted, found) if found else None


class Partition:
    """See the module. One owner's, or one reader's; never shared."""

    def __init__(self, number: int, bounds: Bounds = Bounds()) -> None:  # noqa: B008 (frozen)
        self.number = number
        self.partitions = 1
        """Of the whole ledger, as the take-overs say."""
        self.bounds = bounds
        self.entry = 0
        self.at = Micros(0)
        self.now = Micros(0)
        """The latest instant that anybody asked about: what is ready is ready at it."""
        self.floor = Micros(0)
        """The instant of the last take-over: no silence that began before it counts as one."""
        self.commands = 0
        self.requests = 0
        self.order = 0
        self.jobs: dict[JobId, Job] = {}
        self.open_bytes = 0
        self.closed: dict[JobId, Job] = {}
        self.closed_bytes = 0
        self.queues: dict[QueueName, Queue] = {}
        self.keys: dict[bytes, KeyHolder] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.refused_at: dict[tuple[str, ...], Micros] = {}
        self.bulk_parts: dict[str, BulkPart] = {}
        self.bulk_done: dict[str, int] = {}
        """How many jobs matched in parts that have ended here, for a question asked again."""
        self.bulks: dict[str, Bulk] = {}
        self.timers = Timers()
        self.deferred: dict[JobId, tuple[Fence, ProgressSaid]] = {}
        """Progress that came within a second of the last; not in the log."""
        self.touched: dict[JobId, Job] = {}
        """Jobs as the entries since the last `drain_touched` left them."""
        self.taken: set[JobId] = set()
        """Jobs granted in the entry that is being decided."""
        self.misfits = 0
        self.unknown = 0

    # --- Reading ---------------------------------------------------------------------------------
    def job(self, job_id: JobId) -> Job | None:
        return self.jobs.get(job_id) or self.closed.get(job_id)

    def queue(self, name: QueueName) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name, Ready(self._is_ready))
        return queue

    def next_ready(self, queue: QueueName, types: tuple[str, ...]) -> Job | None:
        """The job of that queue that a runtime of these types is to get now."""
        job_id = self.queue(queue).ready.first(types)
        return None if job_id is None else self.jobs[job_id]

    def next_order(self, at: Micros) -> int:
        """Behind all that wait now. Grows with time, so that it compares across partitions."""
        return max(self.order + 1, at)

    def drain_touched(self) -> dict[JobId, Job]:
        touched, self.touched = self.touched, {}
        return touched

    def due(self, at: Micros, many: int) -> list[Job]:
        """Open jobs of which the clock may have something to say; the others are armed anew."""
        self.now = max(at, self.now)
        fallen = []
        for job_id in self.timers.pop(at, many):
            job = self.jobs.get(job_id)
            if job is None:
                continue
            if self._enters_lane(job, at):
                self._add_to_lane(job)
            when = self._due(job, at)
            if when is not None and when > at:
                self.timers.arm(job_id, when)
            elif when is not None:
                fallen.append(job)
        return fallen

    def rearm(self, job: Job, at: Micros) -> None:
        """`due` named the job, and the clock had nothing to say of it: look again a little later."""
        when = self._due(job, at)
        if when is not None:
            self.timers.arm(job.id, Micros(max(when, at + SECOND)))

    # --- The fold --------------------------------------------------------------------------------
    def apply(self, entry: Entry) -> None:
        self.entry = entry.number
        self.at = at = max(entry.at, self.at)
        self.now = max(at, self.now)
        self.taken.clear()
        self.commands = entry.commands
        self.requests = entry.requests
        for event in entry.events:
            if isinstance(event, JOB_EVENTS):
                self._apply_to_job(event, at)
            else:
                self._apply_to_queue(event, at)
        command_id = command_of(entry.cause)
        if command_id is not None:
            self._remember(command_id, entry, at)

    def take_over(self, record: TakeOver) -> None:
        """Nobody is silent to an owner who has only begun to listen."""
        self.at = self.floor = max(record.at, self.at)
        self.partitions = record.partitions
        for job_id, job in self.jobs.items():
            self._arm(job_id, job, self.at)

    def _apply_to_job(self, event: JobEvent, at: Micros) -> None:
        before = self.jobs.get(event.job_id)
        if before is None:
            if isinstance(event, JobRequested) and event.job_id not in self.closed:
                self._open(begin(event, at), at)
                return
            before = self.closed.get(event.job_id)
        if before is None:
            self.misfits += 1
            return
        after = evolve(before, event, at)
        if isinstance(after, Misfit):
            self.misfits += 1
            return
        if isinstance(event, LeaseGranted) and event.number:
            self._count_assignment(event, after)
        self._replace(before, after, at)

    def _apply_to_queue(self, event: Event, at: Micros) -> None:
        match event:
            case LeasesExtended():
                for extension in event.leases:
                    job = self.jobs.get(extension.job_id)
                    after = extend(job, extension) if job else None
                    if job is None or after is None or isinstance(after, Misfit):
                        self.misfits += 1
                    else:
                        self._replace(job, after, at)
            case RuntimeStarted():
                self._start_session(event, at)
            case RuntimeEnded():
                sessions = self.queue(event.queue).sessions
                known = sessions.get(event.runtime_id)
                if known is not None and known.session == event.session:
                    del sessions[event.runtime_id]
            case TemplatePut():
                self._put_template(event)
            case CommandRejected():
                self._note_refusal(event, at)
            case BulkStarted():
                self.bulks[event.operation_id] = Bulk(event, {})
            case BulkPartStarted():
                self.bulk_parts[event.operation_id] = BulkPart(
                    msgspec.json.decode(event.where, type=Where),
                    event.requests_end,
                    event.reason,
                    event.by,
                )
            case BulkPartAdvanced():
                if part := self.bulk_parts.get(event.operation_id):
                    self.bulk_parts[event.operation_id] = msgspec.structs.replace(
                        part, matched=part.matched + event.matched
                    )
            case BulkPartEnded():
                self.bulk_parts.pop(event.operation_id, None)
                self.bulk_done[event.operation_id] = event.matched
                while len(self.bulk_done) > self.bounds.refusals_max:
                    del self.bulk_done[next(iter(self.bulk_done))]
            case BulkPartConfirmed():
                if bulk := self.bulks.get(event.operation_id):
                    bulk.confirmed[event.partition] = event.matched
            case BulkEnded():
                if bulk := self.bulks.get(event.operation_id):
                    self.bulks[event.operation_id] = Bulk(bulk.event, bulk.confirmed, True)
            case Unknown():
                self._keep_unknown(event)
            case (
                RequestForwarded()
                | CommandDuplicated()
                | CommandsConsumed()
                | InputQuarantined()
                | InputLost()
            ):
                pass  # Of what the intakes held, not of what the partition holds.
            case _:
                self.misfits += 1

    # --- Jobs in and out -------------------------------------------------------------------------
    def _open(self, job: Job, at: Micros) -> None:
        asked = job.request
        self.jobs[job.id] = self.touched[job.id] = job
        self.order = max(self.order, asked.order)
        self.open_bytes += size_of(job)
        if asked.key_digest is not None and asked.key_until is not None:
            content = bytes.fromhex(asked.content_digest or "")
            holder = KeyHolder(job.id, content, asked.key_until)
            self.keys[bytes.fromhex(asked.key_digest)] = holder
        if asked.template_version is not None:
            self.queue(asked.queue).pinned[asked.type, asked.template_version] += 1
        if self._enters_lane(job, at):
            self._add_to_lane(job)
        self._arm(job.id, job, at)
        self._forget(at)

    def _replace(self, before: Job, after: Job, at: Micros) -> None:
        self.touched[after.id] = after
        if before.end is not None:
            self.closed[after.id] = after
            return
        if after.end is not None:
            self._close(before, after)
            return
        self.jobs[after.id] = after
        self.order = max(self.order, after.order)
        waits_again = isinstance(after.steps[0].phase, Pending)
        if waits_again and not isinstance(before.steps[0].phase, Pending):
            self.deferred.pop(after.id, None)
            if self._enters_lane(after, at):
                self._add_to_lane(after)
        self._arm(after.id, after, at)

    def _close(self, before: Job, after: Job) -> None:
        del self.jobs[before.id]
        self.deferred.pop(before.id, None)
        self.timers.disarm(before.id)
        self.open_bytes -= size_of(before)
        self.closed[after.id] = after
        self.closed_bytes += size_of(after)
        asked = after.request
        if asked.template_version is not None:
            self._unpin(self.queue(asked.queue), asked.type, asked.template_version)

    def _forget(self, at: Micros) -> None:
        """Drop what is past its time, oldest first; called once a new job, so it keeps pace."""
        bounds, closed = self.bounds, self.closed
        while closed:
            oldest = next(iter(closed.values()))
            young = (oldest.finished_at or 0) > at - bounds.closed_us
            few = len(closed) <= bounds.closed_max and self.closed_bytes <= bounds.closed_bytes_max
            if young and few:
                break
            del closed[oldest.id]
            self.closed_bytes -= size_of(oldest)
        outcomes = self.outcomes
        while outcomes and next(iter(outcomes.values())).at <= at - bounds.commands_us:
            del outcomes[next(iter(outcomes))]
        keys = self.keys
        while keys and next(iter(keys.values())).until <= at:
            del keys[next(iter(keys))]

    def _remember(self, command_id: str, entry: Entry, at: Micros) -> None:
        """Outcomes that repeating the command could not find again in the state itself."""
        keyed = command_id.startswith(KEYED)
        job_id: JobId | None = None
        grants: list[LeaseGranted] = []
        rejected = None
        for event in entry.events:
            match event:
                case JobRequested():
                    job_id = event.job_id
                case LeaseGranted(session=""):
                    grants.append(event)
                case CommandRejected() if keyed:
                    rejected = event
                case _ if isinstance(event, JOB_EVENTS) and keyed:
                    job_id = event.job_id
                case _:
                    pass
        if keyed or job_id is not None or grants:
            identity, content = identity_of(command_id)
            self.outcomes[identity] = Outcome(content, at, job_id, tuple(grants), rejected)

    def _start_session(self, event: RuntimeStarted, at: Micros) -> None:
        sessions = self.queue(event.queue).sessions
        known = sessions.get(event.runtime_id)
        same = known is not None and known.session == event.session
        number = known.number if known is not None and same else 0
        sessions[event.runtime_id] = RuntimeSession(
            event.session, event.types, event.period_us, at, number
        )

    def _put_template(self, event: TemplatePut) -> None:
        queue = self.queue(event.queue)
        versions = queue.templates.setdefault(event.type, {})
        for version in [v for v in versions if not queue.pinned[event.type, v]]:
            del versions[version]
        versions[event.version] = msgspec.json.decode(event.template, type=Template)

    def _unpin(self, queue: Queue, job_type: str, version: int) -> None:
        queue.pinned[job_type, version] -= 1
        if queue.pinned[job_type, version] > 0:
            return
        del queue.pinned[job_type, version]
        versions = queue.templates.get(job_type, {})
        if version in versions and version != max(versions):
            del versions[version]

    def _count_assignment(self, event: LeaseGranted, job: Job) -> None:
        sessions = self.queue(job.request.queue).sessions
        known = sessions.get(event.runtime_id)
        if known is not None and known.session == event.session and event.number > known.number:
            sessions[event.runtime_id] = msgspec.structs.replace(known, number=event.number)

    def _note_refusal(self, event: CommandRejected, at: Micros) -> None:
        refused = self.refused_at
        key = refusal_key(event)
        refused.pop(key, None)
        refused[key] = at
        if len(refused) > self.bounds.refusals_max:
            del refused[next(iter(refused))]

    def _keep_unknown(self, event: Unknown) -> None:
        self.unknown += 1
        job = self.job(JobId(event.key))
        if job is not None:
            later = msgspec.structs.replace(job, opaque=job.opaque + 1, version=job.version + 1)
            self._replace(job, later, self.at)

    # --- Lanes and timers, derived ---------------------------------------------------------------
    def _enters_lane(self, job: Job, at: Micros) -> bool:
        phase = job.steps[0].phase
        return isinstance(phase, Pending) and phase.ready_at <= at and job.cancel is None

    def _add_to_lane(self, job: Job) -> None:
        asked = job.request
        self.queue(asked.queue).ready.add(asked.type, asked.priority, job.order, job.id)

    def _is_ready(self, place: Place) -> bool:
        order, job_id = place
        job = self.jobs.get(job_id)
        if job is None or job.order != order:
            return False
        return job_id not in self.taken and self._enters_lane(job, self.now)

    def _arm(self, job_id: JobId, job: Job, at: Micros) -> None:
        when = self._due(job, at)
        if when is not None:
            self.timers.arm(job_id, when)

    def _due(self, job: Job, at: Micros) -> Micros | None:
        when = deadlines.due(job, self.floor, at)
        if job.id in self.deferred and (progress := job.steps[0].progress) is not None:
            again = Micros(progress.at + SECOND)
            return again if when is None else min(when, again)
        return when


def identity_of(command_id: str) -> tuple[str, str]:
    """(what makes it the same command, digest of its content or "")."""
    if command_id.startswith(KEYED):
        identity, _, content = command_id.rpartition(".")
        return identity, content
    return command_id, ""


def refusal_key(event: CommandRejected) -> tuple[str, ...]:
    """Equal refusals have equal keys: of one command type, on one job or by one runtime, for one
    reason; a refusal that names neither is its command's own."""
    if event.job_id is None and event.runtime_id is None:
        return (event.command_type, event.code, event.command_id)
    return (event.command_type, event.code, event.job_id or "", event.runtime_id or "")


def size_of(job: Job) -> int:
    """Bytes that a job is taken to hold: its texts, and a constant for the rest."""
    asked = job.request
    result = job.result.output if job.result else None
    texts = sum(len(k) + len(v) + 110 for k, v in asked.labels.items())
    return 700 + len(memoryview(asked.payload)) + texts + (len(memoryview(result)) if result else 0)


def live_leases(partition: Partition) -> int:
    return sum(
        1 for job in partition.jobs.values() for step in job.steps if held_lease(step) is not None
    )
