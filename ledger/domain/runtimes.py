"""Runtimes as a whole: their sessions, what they hold, what they are given."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from ledger.domain import leases
from ledger.domain.commands import Beat, HeldLease
from ledger.domain.events import (
    Event,
    Extension,
    LeaseGranted,
    LeasesExtended,
    RuntimeEnded,
    RuntimeStarted,
)
from ledger.domain.ids import (
    NO_SESSION,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
    micros,
)
from ledger.domain.job import Cancel, Job, cancel_of, quoted_step
from ledger.domain.partition import Partition
from ledger.domain.progress import merged, progressed
from ledger.domain.queues import RuntimeSession
from ledger.domain.steps import Lease, Step, current_lease, held_lease

GRANTS_MAX = 500
"""Leases in one entry, at most: so that an entry stays far below half a batch."""
SESSIONS_MAX = 10_000
"""Runtimes that one queue counts at a time; a beat of one more is not heard."""
SILENT_PERIODS = 3
"""After so many periods without a beat a session has ended."""


class LeaseNews(Struct, frozen=True, gc=False):
    """What a runtime is told of one lease that it says it holds."""

    job_id: JobId
    fence: Fence
    lease: Lease | None
    """None: it is not held any more; drop it."""
    cancel: Cancel | None = None


def beat(
    partition: Partition,
    command: Beat,
    at: Micros,
    settled: Collection[tuple[JobId, Fence]] = (),
    left: Mapping[JobId, Job] | None = None,
) -> tuple[Event, ...]:
    """The facts in a beat: a session that begins or ends, leases that move, progress.

    `settled` are leases that the same record reports on: they are not prolonged. `left` are the
    jobs as those reports leave them: another lease of one may be void by them.
    """
    if is_older(partition, command):
        return ()
    events: list[Event] = list(_session(partition, command))
    moved: list[Extension] = []
    passed = set(settled)
    for held in command.leases:
        its = (held.job_id, held.fence)
        job = left.get(held.job_id) if left else None
        found = None if its in passed else holding(partition, command, held, job)
        if found is None:
            continue
        job, step = found
        passed.add(its)
        if held.progress is not None:
            said = merged(partition.deferred_word(job.id, held.fence), held.progress)
            events += leases.started(job, step, at)
            events += progressed(job, step, held.fence, said, at)
        # Recorded again only when less than two thirds are left of it: a short job costs none.
        if extension := leases.extension(job, step, at, job.request.lease_us // 3):
            moved.append(extension)
    if moved:
        events.append(LeasesExtended(command.queue, command.runtime_id, tuple(moved)))
    return tuple(events)


def holding(
    partition: Partition, command: Beat, held: HeldLease, job: Job | None = None
) -> tuple[Job, Step] | None:
    """What a runtime says that it holds, if so it is: only the holder may extend a lease or say how
    far it is, whoever else knows the fence. `job`: as it is by now, if the partition lags."""
    if job is None:
        job = partition.jobs.get(held.job_id)
    step = quoted_step(job, held.fence) if job is not None else None
    lease = current_lease(step) if step is not None else None
    if job is None or step is None or lease is None or job.request.queue != command.queue:
        return None
    its = lease.runtime_id == command.runtime_id and lease.session == command.session
    return (job, step) if its else None


def _session(partition: Partition, command: Beat) -> tuple[Event, ...]:
    queue = partition.queues.get(command.queue)
    known = queue.sessions.get(command.runtime_id) if queue else None
    same = known is not None and known.session == command.session
    if command.leaving:
        if not same:
            return ()
        return (RuntimeEnded(command.queue, command.runtime_id, command.session, "left"),)
    period_us = micros(command.period_seconds)
    if known is not None and same and (known.types, known.period_us) == (command.types, period_us):
        return ()
    started = RuntimeStarted(
        command.queue, command.runtime_id, command.session, command.types, period_us
    )
    if known is None and queue is not None and len(queue.sessions) >= SESSIONS_MAX:
        return ()
    if known is None or same:
        return (started,)
    ended = RuntimeEnded(command.queue, command.runtime_id, known.session, "superseded")
    return (ended, started)


def is_older(partition: Partition, command: Beat) -> bool:
    """Whether a later session of the same runtime has begun: sessions sort by their start."""
    queue = partition.queues.get(command.queue)
    known = queue.sessions.get(command.runtime_id) if queue else None
    return known is not None and command.session < known.session


def silent_at(heard_at: Micros, period_us: int) -> Micros:
    """From when on who promised a beat each period has been silent for too long."""
    return Micros(heard_at + SILENT_PERIODS * period_us)


def silent(
    queue: QueueName, runtime_id: RuntimeId, session: RuntimeSession, heard_at: Micros, at: Micros
) -> tuple[Event, ...]:
    """The end of a session that was last heard at `heard_at`, once it has been silent too long."""
    if at < silent_at(heard_at, session.period_us):
        return ()
    return (RuntimeEnded(queue, runtime_id, session.session, "silent"),)


def news(partition: Partition, held: HeldLease) -> LeaseNews:
    """What stands on record of a lease that a runtime says it holds."""
    job = partition.jobs.get(held.job_id)
    step = quoted_step(job, held.fence) if job else None
    lease = held_lease(step) if step else None
    cancel = cancel_of(job, step) if job is not None and step is not None else None
    return LeaseNews(held.job_id, held.fence, lease, cancel)


def grants(
    partition: Partition,
    queue: QueueName,
    types: tuple[str, ...],
    runtime_id: RuntimeId,
    many: int,
    at: Micros,
    *,
    session: Session = NO_SESSION,
    after: int = 0,
) -> list[LeaseGranted]:
    """Leases on the best `many` ready jobs; with a session, numbered on from `after`.

    The partition marks them as taken until the entry that records them is applied.
    """
    given = offer(partition, queue, types, runtime_id, many, at, session=session, after=after)
    partition.taken.update((grant.job_id, grant.step) for grant in given)
    return given


def offer(
    partition: Partition,
    queue: QueueName,
    types: tuple[str, ...],
    runtime_id: RuntimeId,
    many: int,
    at: Micros,
    *,
    session: Session = NO_SESSION,
    after: int = 0,
) -> list[LeaseGranted]:
    """As `grants`, but nothing is marked: the same jobs may be offered again."""
    found = partition.best(queue, types, min(many, GRANTS_MAX), at)
    given: dict[JobId, int] = {}
    grants = []
    for number, (job, step) in enumerate(found, after + 1):
        if len(job.steps) > 1:  # Several of its steps may be among them.
            given[job.id] = given.get(job.id, 0) + 1
        grants.append(
            leases.grant(
                job,
                step,
                runtime_id,
                at,
                session=session,
                number=number if session else 0,
                fences=given.get(job.id, 1),
            )
        )
    return grants
