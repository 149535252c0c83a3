"""What may happen to a queue as a whole, told a second time: limits, policies, pauses, schedules,
retention, counted from the events alone. It shares no table with the fold that it checks.

Memory is bounded by what is open, by names that operators gave, and by the ended jobs that
`retention_traces` remembers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from ledger.domain.commands import Limit, QueueSettings, Schedule, Template
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    CancelRequested,
    Event,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    LeasesExtended,
    PassRestarted,
    QueuePaused,
    QueuePut,
    QueueResumed,
    RetryScheduled,
    ScheduleDeleted,
    ScheduleDisabled,
    ScheduleEnabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
    SentBack,
    StepCancelled,
    StepQueued,
    StepSkipped,
    StepSucceeded,
    TemplatePut,
    Unknown,
    WaitStarted,
    decoded,
)
from ledger.domain.evolve_flow import behind
from ledger.domain.flow_plan import base_of
from ledger.domain.ids import JobId, StepName
from ledger.domain.limits import value_of
from ledger.domain.retention_traces import RetentionTraces

Complaint = tuple[str, JobId | None, str]
"""(invariant, job, what is wrong)"""
Key = tuple[str, str, int, bytes]
"""(queue, type or "", number of the limit, value)"""
_NO_MATTER = frozenset(
    {AttemptStarted, JobProgressed, LeasesExtended, RetryScheduled, StepQueued, StepSkipped}
)
"""Events that say nothing of a queue."""
JobEnd = JobSucceeded | JobFailed | JobExpired | JobCancelled


class OpenJob:
    __slots__ = ("asked", "cancelling", "leases")

    def __init__(self, asked: JobRequested) -> None:
        self.asked = asked
        self.cancelling = False
        self.leases: set[StepName] = set()
        """Steps that hold a live one."""


class Life(Struct):
    """A schedule from its first put to its delete."""

    enabled: bool
    next_at: int | None
    last: int = 0
    """Nothing up to here may come again."""


class QueueTraces:
    """Of one partition."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, OpenJob] = {}
        self._limits: dict[tuple[str, str], tuple[Limit, ...]] = {}
        self._is_limited = False
        """Whether any of them says anything."""
        self._holders: dict[Key, set[tuple[JobId, str]]] = {}
        self._templates: dict[tuple[str, str], Template] = {}
        self._paused: set[str] = set()
        self._open: dict[str, list[JobId]] = {}
        """By what is equal in them."""
        self._done: dict[str, JobId] = {}
        self._schedules: dict[tuple[str, str], Life] = {}
        self._owed: list[tuple[JobId, JobId]] = []
        """(a new job, one that it takes the place of), in this entry."""
        self._occurrences: dict[JobId, str] = {}
        """Jobs of schedules that no `ScheduleFired` of this entry has named yet."""
        self._retention = RetentionTraces()

    # --- One event -------------------------------------------------------------------------------
    def follow(self, event: Event, at: int) -> Iterable[Complaint]:
        """Hot: what most events are is told by their type, see `steps.current_lease`."""
        kind = type(event)
        if kind in _NO_MATTER:
            return ()
        if kind is JobRequested:
            return self._requested(event)  # type: ignore[arg-type]
        if kind is LeaseGranted:
            return self._granted(event)  # type: ignore[arg-type]
        if kind is JobSucceeded:
            self._closed(event, at)  # type: ignore[arg-type]
            return ()
        return self._follow(event, at)

    def _follow(self, event: Event, at: int) -> Iterator[Complaint]:
        match event:
            case (
                LeaseReleased()
                | WaitStarted()
                | AttemptFailed()
                | AttemptExpired()
                | StepSucceeded()
                | StepCancelled()
            ):
                self._ends(event.job_id, {event.step})
            case SentBack():
                self._sent_back(event)
            case PassRestarted():
                self._ends(event.job_id, None)
            case JobFailed() | JobExpired() | JobCancelled():
                self._closed(event, at)
            case CancelRequested():
                if (job := self.jobs.get(event.job_id)) is not None:
                    job.cancelling = True
            case Unknown():
                self._forget(JobId(event.key))  # Nothing can be said of it any more.
            case TemplatePut():
                template = decoded(event.template, Template)
                if template is not None:
                    self._templates[event.queue, event.type] = template
                    self._declare(event.queue, event.type, template.limits)
            case QueuePut():
                settings = decoded(event.settings, QueueSettings)
                if settings is not None:
                    self._declare(event.queue, "", settings.limits)
            case QueuePaused():
                self._paused.add(event.queue)
            case QueueResumed():
                self._paused.discard(event.queue)
            case (
                SchedulePut()
                | ScheduleDeleted()
                | ScheduleEnabled()
                | ScheduleDisabled()
                | ScheduleStopped()
                | ScheduleSkipped()
                | ScheduleFired()
            ):
                yield from self._scheduled(event, at)
            case _:
                yield from self._retention.follow(event, at, event_is_open=self._is_open(event))

    def end_of_entry(self) -> Iterable[Complaint]:
        """What one entry must bring with it."""
        return self._still_owed() if self._owed or self._occurrences else ()

    def _still_owed(self) -> Iterator[Complaint]:
        for job_id, before in self._owed:
            old = self.jobs.get(before)
            if old is not None and not old.cancelling:
                yield "I15", job_id, f"it replaces {before}, which goes on"
        for job_id, name in self._occurrences.items():
            yield "I17", job_id, f"a job of the schedule {name}, and no occurrence says so"
        self._owed.clear()
        self._occurrences.clear()

    def held_back(self, job_id: JobId) -> bool:
        """Whether a limit that is full keeps the job from being leased."""
        job = self.jobs.get(job_id)
        return job is not None and self._full(job.asked) is not None

    def _is_open(self, event: Event) -> bool:
        return getattr(event, "job_id", None) in self.jobs

    # --- Jobs ------------------------------------------------------------------------------------
    def _requested(self, asked: JobRequested) -> Iterable[Complaint]:
        job_id, digest = asked.job_id, asked.dedupe_digest
        if job_id in self.jobs:
            return ()
        self.jobs[job_id] = OpenJob(asked)
        if asked.schedule is not None:
            self._occurrences[job_id] = asked.schedule
        return () if digest is None else self._equal(asked, digest)

    def _equal(self, asked: JobRequested, digest: str) -> Iterator[Complaint]:
        job_id = asked.job_id
        before = self._open.setdefault(digest, [])
        newest = self._templates.get((asked.queue, asked.type))
        if newest is not None:
            if asked.once and digest in self._done:
                yield "I15", job_id, f"not repeatable, and {self._done[digest]} has succeeded"
            yield from self._beside(job_id, before, newest.concurrency_policy)
        before.append(job_id)

    def _beside(self, job_id: JobId, before: list[JobId], policy: str) -> Iterator[Complaint]:
        match policy:
            case "reject_same_scope" if before:
                yield "I15", job_id, f"its equal {before[0]} has not ended"
            case "share_in_flight":
                for other in before:
                    if not self.jobs[other].cancelling:
                        yield "I15", job_id, f"its equal {other} is in flight"
            case "replace_existing":
                self._owed += [(job_id, other) for other in before]
            case _:
                pass

    def _closed(self, event: JobEnd, at: int) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        self._retention.ended(job.asked, event, at)
        digest = job.asked.dedupe_digest
        if isinstance(event, JobSucceeded) and job.asked.once and digest is not None:
            self._done.setdefault(digest, event.job_id)
        self._forget(event.job_id)

    def _forget(self, job_id: JobId) -> None:
        self._ends(job_id, None)
        job = self.jobs.pop(job_id, None)
        digest = None if job is None else job.asked.dedupe_digest
        if digest is None:
            return
        left = [other for other in self._open.get(digest, []) if other != job_id]
        if left:
            self._open[digest] = left
        else:
            self._open.pop(digest, None)

    def _sent_back(self, event: SentBack) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None and job.asked.flow is not None:
            again = behind(job.asked.flow, event.to)
            self._ends(event.job_id, {step for step in job.leases if base_of(step) in again})

    # --- Limits ----------------------------------------------------------------------------------
    def _granted(self, event: LeaseGranted) -> Iterable[Complaint]:
        job = self.jobs.get(event.job_id)
        if job is None:
            return ()
        found: list[Complaint] = []
        if job.asked.queue in self._paused:
            found.append(("I16", event.job_id, "leased while its queue is paused"))
        job.leases.add(event.step)
        if not self._is_limited:
            return found
        if (full := self._full(job.asked)) is not None:
            held = len(self._holders.get(full, ()))
            what = f"leased while {held} hold a lease under its limit {full}"
            found.append(("I14", event.job_id, what))
        for key in self._keys(job.asked):
            self._holders.setdefault(key, set()).add((event.job_id, event.step))
        return found

    def _ends(self, job_id: JobId, steps: set[StepName] | None) -> None:
        job = self.jobs.get(job_id)
        if job is None or not job.leases:
            return
        ended = set(job.leases) if steps is None else job.leases & steps
        if not ended:
            return
        job.leases -= ended
        for key in self._keys(job.asked):
            left = self._holders.get(key, set()) - {(job_id, step) for step in ended}
            if left:
                self._holders[key] = left
            else:
                self._holders.pop(key, None)

    def _declare(self, queue: str, job_type: str, limits: tuple[Limit, ...]) -> None:
        """The newest are of effect at once; who holds more than they allow may go on."""
        if self._limits.get((queue, job_type), ()) == limits:
            return
        self._limits[queue, job_type] = limits
        self._is_limited = any(self._limits.values())
        self._holders = {}
        for job_id, job in self.jobs.items():
            for key in self._keys(job.asked) if job.leases else ():
                self._holders.setdefault(key, set()).update((job_id, s) for s in job.leases)

    def _full(self, asked: JobRequested) -> Key | None:
        for key in self._keys(asked):
            limit = self._limits[key[0], key[1]][key[2]]
            if len(self._holders.get(key, ())) >= limit.max:
                return key
        return None

    def _keys(self, asked: JobRequested) -> Iterable[Key]:
        return self._keys_of(asked) if self._is_limited else ()

    def _keys_of(self, asked: JobRequested) -> Iterator[Key]:
        for name in ("", asked.type):
            for number, limit in enumerate(self._limits.get((asked.queue, name), ())):
                value = value_of(asked, limit.key)
                if value is not None:
                    yield (asked.queue, name, number, value)

    # --- Schedules -------------------------------------------------------------------------------
    def _scheduled(
        self,
        event: SchedulePut
        | ScheduleDeleted
        | ScheduleEnabled
        | ScheduleDisabled
        | ScheduleStopped
        | ScheduleSkipped
        | ScheduleFired,
        at: int,
    ) -> Iterator[Complaint]:
        key = (event.queue, event.name)
        life = self._schedules.get(key)
        if isinstance(event, SchedulePut):
            schedule = decoded(event.schedule, Schedule)
            if schedule is not None:
                last = 0 if life is None else life.last
                self._schedules[key] = Life(schedule.enabled, event.next_at, last)
                yield from self._next(event.name, self._schedules[key])
            return
        if life is None:
            yield "I17", None, f"{event.TYPE} of {event.name}, which is no schedule"
            return
        match event:
            case ScheduleDeleted():
                del self._schedules[key]
            case ScheduleEnabled():
                life.enabled, life.next_at = True, event.next_at
            case ScheduleDisabled():
                life.enabled, life.next_at = False, None
            case ScheduleStopped():
                life.next_at = None
            case ScheduleFired(manual=True):
                if event.job_id is not None:
                    self._occurrences.pop(event.job_id, None)
            case ScheduleFired():
                if event.job_id is not None:
                    self._occurrences.pop(event.job_id, None)
                yield from self._used(event.name, life, event.nominal_at, at)
                life.last, life.next_at = event.nominal_at, event.next_at
            case ScheduleSkipped():
                yield from self._used(event.name, life, event.first_at, at)
                life.last, life.next_at = max(life.last, event.until - 1), event.next_at
        yield from self._next(event.name, life)

    def _used(self, name: str, life: Life, nominal: int, at: int) -> Iterator[Complaint]:
        if not life.enabled:
            yield "I17", None, f"{name} is disabled, and its occurrence of {nominal} came"
        if nominal <= life.last:
            yield "I17", None, f"{name}: {nominal} after {life.last}"
        if nominal != life.next_at:
            yield "I17", None, f"{name}: {nominal} came, {life.next_at} was next"
        if nominal > at:
            yield "I17", None, f"{name}: {nominal} came {nominal - at} us too early"

    def _next(self, name: str, life: Life) -> Iterator[Complaint]:
        if life.next_at is not None and life.next_at <= life.last:
            yield "I17", None, f"{name}: {life.next_at} is to come again"
