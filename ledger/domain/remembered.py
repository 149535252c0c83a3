"""What a partition remembers of what is over, and for how long: closed jobs, idempotency keys, and
what became of commands. Oldest first out; each table has a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import assert_never, final

from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.commands import (
    DeclareInputLost,
    LockJob,
    RequestJob,
    RerunJob,
    RunSchedule,
)
from ledger.domain.entries import Entry
from ledger.domain.events import (
    JOB_EVENTS,
    BulkStarted,
    CommandDuplicated,
    CommandRejected,
    Event,
    InputLost,
    JobCollected,
    JobErased,
    JobRequested,
    LeaseGranted,
    LeasesExtended,
    ObjectsDeleted,
    ResultWithdrawn,
    ScheduleFired,
    TemplatePut,
)
from ledger.domain.ids import NO_SESSION, SECOND, JobId, Micros
from ledger.domain.job import Job
from ledger.domain.rejections import PASSING, Rejection
from ledger.domain.sizes import size_of

KEYED = "ik."
"""Ids of commands sent under an Idempotency-Key: `ik.<digest of route and key>.<of content>`."""
LATE_US = 300 * SECOND
"""Keys and ids are held so much longer than they count: for a copy that was sent while they did,
by a clock that is wrong or through an intake that is slow."""
FORGET_MAX = 10_000
"""Rows that a table drops at once, at most: more than the entries since the last time added."""


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
    once_max: int = 1_000_000
    """Keys of one type that is not repeatable: they are held for ever."""


# --- Closed jobs ---------------------------------------------------------------------------------
class ClosedJobs:
    """Jobs that ended lately, in the order in which they ended."""

    __slots__ = ("_bounds", "_jobs", "_order", "bytes")

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._jobs: dict[JobId, Job] = {}
        self._order: deque[JobId] = deque()
        self.bytes = 0

    def get(self, job_id: JobId) -> Job | None:
        return self._jobs.get(job_id)

    def add(self, job: Job) -> None:
        job_id = job.request.job_id
        self._jobs[job_id] = job
        self._order.append(job_id)
        self.bytes += size_of(job)

    def replace(self, before: Job, after: Job) -> None:
        self._jobs[after.id] = after
        self.bytes += size_of(after) - size_of(before)

    def forget(self, at: Micros) -> None:
        bounds, order = self._bounds, self._order
        for _ in range(min(FORGET_MAX, len(order))):
            oldest = self._jobs[order[0]]
            young = (oldest.finished_at or 0) > at - bounds.closed_us
            if young and len(order) <= bounds.closed_max and self.bytes <= bounds.closed_bytes_max:
                return
            del self._jobs[order.popleft()]
            self.bytes -= size_of(oldest)

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._jobs

    def values(self) -> list[Job]:
        return list(self._jobs.values())

    def copy(self) -> dict[JobId, Job]:
        return self._jobs.copy()


LateEvent = JobCollected | ResultWithdrawn | JobErased | ObjectsDeleted
LATE_EVENTS = (JobCollected, ResultWithdrawn, JobErased, ObjectsDeleted)


class Late(Struct, frozen=True, gc=False):
    """What happened to a job after its owner had forgotten it, for who brings older facts along."""

    collected_at: Micros | None = None
    result_expires_at: Micros | None = None
    withdrawn: bool = False
    payload_withdrawn: bool = False
    erased: bool = False

    def after(self, event: LateEvent, at: Micros) -> Late:
        match event:
            case JobCollected():
                if self.collected_at is not None:
                    return self
                return replace(self, collected_at=at, result_expires_at=event.expires_at)
            case ResultWithdrawn(why="owner_removed"):
                return replace(self, withdrawn=True, payload_withdrawn=True)
            case ResultWithdrawn():
                return replace(self, withdrawn=True)
            case JobErased():
                return replace(self, erased=True)
            case ObjectsDeleted():
                return self
            case _:
                assert_never(event)


# --- Idempotency keys ----------------------------------------------------------------------------
class KeyHolder(Struct, frozen=True, gc=False):
    """Which job a key stands for, and until when. `content` is a digest of what it asks for."""

    digest: bytes
    job_id: JobId
    content: bytes
    until: Micros


class Keys:
    """By length of window: within one they end in the order in which they came."""

    __slots__ = ("_by_window", "_held")

    def __init__(self) -> None:
        self._held: dict[bytes, KeyHolder] = {}
        self._by_window: dict[int, deque[KeyHolder]] = {}

    def find(self, digest: bytes, at: Micros, said_at: Micros) -> KeyHolder | None:
        """Who answers for a key at `at`; later still, for a copy that was said while it counted."""
        held = self._held.get(digest)
        return held if held is not None and held.until > min(at, said_at) else None

    def add(self, holder: KeyHolder, at: Micros) -> None:
        self._held[holder.digest] = holder
        self._by_window.setdefault(holder.until - at, deque()).append(holder)

    def forget(self, at: Micros) -> None:
        for window, holders in list(self._by_window.items()):
            for _ in range(min(FORGET_MAX, len(holders))):
                if holders[0].until + LATE_US > at:
                    break
                oldest = holders.popleft()
                if self._held.get(oldest.digest) is oldest:
                    del self._held[oldest.digest]
            if not holders:
                del self._by_window[window]

    def __len__(self) -> int:
        return len(self._held)

    def values(self) -> list[KeyHolder]:
        return list(self._held.values())

    def windows(self) -> list[tuple[int, list[tuple[KeyHolder, bool]]]]:
        """By window all that came and were not forgotten yet, each with whether it answers."""
        held = self._held
        return [
            (window, [(holder, held.get(holder.digest) is holder) for holder in holders])
            for window, holders in self._by_window.items()
        ]

    def put_back(self, window: int, rows: Iterable[tuple[KeyHolder, bool]]) -> None:
        holders = self._by_window.setdefault(window, deque())
        for holder, answers in rows:
            holders.append(holder)
            if answers:
                self._held[holder.digest] = holder


# --- Outcomes of commands ------------------------------------------------------------------------
@final
class Outcome(Struct, frozen=True, gc=False):
    """What became of a command, for whoever asks again under the same id."""

    content: str
    """Digest of what it asked for, where its id says so."""
    job_id: JobId | None = None
    grants: tuple[LeaseGranted, ...] = ()
    rejected: CommandRejected | None = None
    template_version: int | None = None
    operation_id: str | None = None
    created: bool = False
    """Of a put: there was none of that name before."""


class Outcomes:
    """Of commands that would not find their outcome in the state itself if they came again: those
    under an Idempotency-Key, those whose copy would make a job, or take a lease, once more, and
    declarations of what is lost."""

    __slots__ = ("_at", "_bounds", "_held", "_order")

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._held: dict[str, Outcome | JobId] = {}
        """The bare id where nothing but a job came of it, as for most."""
        self._order: deque[str] = deque()
        self._at: deque[Micros] = deque()
        """Of each in that order."""

    def get(self, identity: str) -> Outcome | None:
        held = self._held.get(identity)
        return held if held is None or type(held) is Outcome else Outcome("", JobId(held))

    def note(self, command_id: str, entry: Entry, at: Micros, *, created: bool) -> None:
        """`created`: the entry put something of which there was none before."""
        outcome: Outcome | JobId | None
        if command_id.startswith(KEYED):
            identity, content = identity_of(command_id)
            outcome = _keyed_outcome(content, entry.events)
            if created and outcome is not None:
                outcome = replace(outcome, created=True)
        else:
            identity = command_id
            outcome = _plain_outcome(entry.events)
        if outcome is None:
            return
        # The first one stands: what follows under the same id are its duplicates and conflicts.
        if identity in self._held or len(self._held) >= self._bounds.commands_max:
            return
        self._add(identity, at, outcome)

    def forget(self, at: Micros) -> None:
        held, order = self._held, self._order
        for _ in range(min(FORGET_MAX, len(order))):
            if self._at[0] + self._bounds.commands_us + LATE_US > at:
                return
            self._at.popleft()
            del held[order.popleft()]

    def __len__(self) -> int:
        return len(self._held)

    def rows(self) -> Iterator[tuple[str, Micros, Outcome | JobId]]:
        """As they are now, the oldest first, however late they are looked at."""
        held, instants = self._held.copy(), self._at.copy()
        return (
            (identity, at, outcome)
            for (identity, outcome), at in zip(held.items(), instants, strict=True)
        )

    def put_back(self, rows: Iterable[tuple[str, Micros, Outcome | JobId]]) -> None:
        for row in rows:
            self._add(*row)

    def _add(self, identity: str, at: Micros, outcome: Outcome | JobId) -> None:
        self._held[identity] = outcome
        self._order.append(identity)
        instants = self._at
        instants.append(instants[-1] if instants and instants[-1] == at else at)


_CODES = frozenset(Rejection)
_ONCE = (
    RequestJob.TYPE,
    RerunJob.TYPE,
    RunSchedule.TYPE,
    LockJob.TYPE,
    DeclareInputLost.TYPE,
)
"""Commands whose refused copy might be accepted later."""
_TELLS = frozenset(
    {JobRequested, LeaseGranted, CommandDuplicated, ScheduleFired, InputLost, CommandRejected}
)
"""What an entry begins with that may be a plain command's outcome; most begin with another."""


def _plain_outcome(events: tuple[Event, ...]) -> Outcome | JobId | None:
    first = events[0] if events else None
    if type(first) not in _TELLS:
        return None
    match first:
        case JobRequested():
            # Also where a key answers for it: another template may see another key in it.
            return first.job_id
        case LeaseGranted(session=session) if session == NO_SESSION:
            return Outcome("", None, _grants(events))
        case CommandDuplicated(command_type=kind, job_id=job_id) if kind in _ONCE and job_id:
            return job_id
        case ScheduleFired(manual=True, job_id=job_id) if job_id is not None:
            return job_id
        case InputLost():
            # It is read ahead of its turn, and then in its turn.
            return Outcome("")
        case CommandRejected() if first.command_type in _ONCE:
            return _refusal("", first)
        case _:
            return None


def _keyed_outcome(content: str, events: tuple[Event, ...]) -> Outcome | None:
    for event in events:
        match event:
            case CommandRejected():
                return _refusal(content, event)
            case TemplatePut():
                return Outcome(content, template_version=event.version)
            case BulkStarted():
                return Outcome(content, operation_id=event.operation_id)
            case CommandDuplicated() | ScheduleFired():
                return Outcome(content, event.job_id)
            case LeasesExtended(leases=(extension, *_)):
                return Outcome(content, extension.job_id)
            case _ if isinstance(event, JOB_EVENTS):
                return Outcome(content, event.job_id, _grants(events))
            case _:
                pass
    return Outcome(content)


def _grants(events: tuple[Event, ...]) -> tuple[LeaseGranted, ...]:
    return tuple(e for e in events if isinstance(e, LeaseGranted) and e.session == NO_SESSION)


def _refusal(content: str, event: CommandRejected) -> Outcome | None:
    """None for one that binds nothing, or that only a later version could explain."""
    if event.code not in _CODES or event.code in PASSING:
        return None
    return Outcome(content, event.job_id, rejected=event)


def identity_of(command_id: str) -> tuple[str, str]:
    """(what makes it the same command, digest of its content or "")."""
    if command_id.startswith(KEYED):
        identity, _, content = command_id.rpartition(".")
        return identity, content
    return command_id, ""
